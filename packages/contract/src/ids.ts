import { randomBytes } from "node:crypto";

/** A string that only its own maker can produce, so that a name is never passed where an id belongs. */
type Branded<Kind extends string> = string & { readonly __kind: Kind };

export type SandboxId = Branded<"SandboxId">;
export type ExecId = Branded<"ExecId">;
export type InstallationId = Branded<"InstallationId">;
/** One try at stopping an instance; answers that carry another one are stale. */
export type AttemptId = Branded<"AttemptId">;

/** A sandbox at one moment: its memory, and its files where those are copied. */
export type CheckpointId = Branded<"CheckpointId">;
export type DriveId = Branded<"DriveId">;
/** One firing of an alert, and one message about it. */
export type AlertId = Branded<"AlertId">;
export type DeliveryId = Branded<"DeliveryId">;
export type PreviewId = Branded<"PreviewId">;
/** The part of a preview's token that is no secret. */
export type TokenId = Branded<"TokenId">;
/** A named process; its runs are execs whose ids begin with it. */
export type ProcessId = Branded<"ProcessId">;

export const SANDBOX_ID_PATTERN = "^sbx_[a-z0-9]{16}$";
/** Exec ids become file names of journals, so the alphabet is closed. */
export const EXEC_ID_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/** A DNS label; the underscore of `sbx_` keeps ids and names apart. */
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

/** `length` characters of `0-9a-z`, drawn without bias. */
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
