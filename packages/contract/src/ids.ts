import { randomBytes } from "node:crypto";

/** A string type with a brand, so that the compiler rejects any other string, such as a name in place of an id. */
type Branded<Kind extends string> = string & { readonly __kind: Kind };

export type SandboxId = Branded<"SandboxId">;
export type ExecId = Branded<"ExecId">;
export type InstallationId = Branded<"InstallationId">;
/** Identifies one attempt to stop an instance. A result that carries another attempt's id is stale and is ignored. */
export type AttemptId = Branded<"AttemptId">;

/** Identifies a checkpoint of a sandbox: its memory, and its files if they were copied. */
export type CheckpointId = Branded<"CheckpointId">;
export type DriveId = Branded<"DriveId">;
/** Identifies one firing of an alert; a `DeliveryId` identifies one webhook message about it. */
export type AlertId = Branded<"AlertId">;
export type DeliveryId = Branded<"DeliveryId">;
export type PreviewId = Branded<"PreviewId">;
/** The public part of a preview token. */
export type TokenId = Branded<"TokenId">;
/** Identifies a named process; the exec ids of its runs start with it. */
export type ProcessId = Branded<"ProcessId">;

export const SANDBOX_ID_PATTERN = "^sbx_[a-z0-9]{16}$";
/** Pattern of exec ids. Only these characters are allowed, because an exec id is also the file name of its journal. */
export const EXEC_ID_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/**
 * Pattern of names: a DNS label. A name cannot contain an underscore, and the ids of named resources contain one, as in
 * `sbx_`, so a name is never mistaken for an id.
 */
export const NAME_PATTERN = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
export const IMAGE_PATTERN = "^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$";

export const CHECKPOINT_ID_PATTERN = "^ckp_[a-z0-9]{16}$";
export const DRIVE_ID_PATTERN = "^drv_[a-z0-9]{16}$";
export const ALERT_ID_PATTERN = "^alr_[a-z0-9]{16}$";
export const DELIVERY_ID_PATTERN = "^dlv_[a-z0-9]{16}$";
export const PREVIEW_ID_PATTERN = "^prv_[a-z0-9]{16}$";
export const TOKEN_ID_PATTERN = "^[a-z0-9]{16}$";
export const PROCESS_ID_PREFIX = "prc_";
export const PROCESS_ID_PATTERN = `^${PROCESS_ID_PREFIX}[a-z0-9]{16}$`;

const sandboxId = new RegExp(SANDBOX_ID_PATTERN);
const execId = new RegExp(EXEC_ID_PATTERN);
const name = new RegExp(NAME_PATTERN);
const image = new RegExp(IMAGE_PATTERN);

export const isSandboxId = (text: string): text is SandboxId => sandboxId.test(text);
export const isExecId = (text: string): text is ExecId => execId.test(text);
const checkpointId = new RegExp(CHECKPOINT_ID_PATTERN);
export const isCheckpointId = (text: string): text is CheckpointId => checkpointId.test(text);
const driveId = new RegExp(DRIVE_ID_PATTERN);
export const isDriveId = (text: string): text is DriveId => driveId.test(text);
const deliveryId = new RegExp(DELIVERY_ID_PATTERN);
export const isDeliveryId = (text: string): text is DeliveryId => deliveryId.test(text);
const processId = new RegExp(PROCESS_ID_PATTERN);
export const isProcessId = (text: string): text is ProcessId => processId.test(text);
export const isName = (text: string): boolean => name.test(text);
export const isImageName = (text: string): boolean => image.test(text);

const ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz";

/** Returns `length` random characters of `0-9a-z`, uniformly distributed. */
export function randomText(length: number): string {
  let text = "";
  while (text.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < 252 && text.length < length) text += ALPHABET[byte % 36];
    }
  }
  return text;
}

export const newSandboxId = (): SandboxId => `sbx_${randomText(16)}` as SandboxId;
export const newExecId = (): ExecId => `exe_${randomText(20)}` as ExecId;
export const newAttemptId = (): AttemptId => `att_${randomText(12)}` as AttemptId;
export const newCheckpointId = (): CheckpointId => `ckp_${randomText(16)}` as CheckpointId;
export const newDriveId = (): DriveId => `drv_${randomText(16)}` as DriveId;
export const newAlertId = (): AlertId => `alr_${randomText(16)}` as AlertId;
export const newDeliveryId = (): DeliveryId => `dlv_${randomText(16)}` as DeliveryId;
export const newPreviewId = (): PreviewId => `prv_${randomText(16)}` as PreviewId;
export const newTokenId = (): TokenId => randomText(16) as TokenId;
export const newProcessId = (): ProcessId => `${PROCESS_ID_PREFIX}${randomText(16)}` as ProcessId;
export const newInstallationId = (): InstallationId => randomText(8) as InstallationId;
