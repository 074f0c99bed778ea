/** Holdfast's records in the shapes that the Agentuity client reads. It checks them, and drops what it does not know. */
import {
  type Checkpoint,
  type Event,
  type Exec,
  type ExecStatus,
  type FileStat,
  type Image,
  isTerminal,
  type OutputStream,
  type PreviewInfo,
  type Sandbox,
  type Status,
} from "@holdfast/contract";
import { type Details, detailsOf } from "./details.ts";
import { durationText } from "./durations.ts";
import { isJob } from "./exec-ids.ts";

export type TheirStatus =
  | "creating"
  | "idle"
  | "running"
  | "paused"
  | "stopping"
  | "suspended"
  | "terminated"
  | "failed"
  | "deleted";

/** What is not proven to serve is not called idle: one that heals is on its way there, like one that is being created. */
export const STATUS: Readonly<Record<Status, TheirStatus>> = {
  queued: "creating",
  creating: "creating",
  ready: "idle",
  degraded: "creating",
  paused: "paused",
  suspending: "running",
  standby: "suspended",
  waking: "suspended",
  stopping: "stopping",
  terminated: "terminated",
  failed: "failed",
};

/** A sandbox as it is called there, with what that depends on besides its own record. */
export interface Shown {
  sandbox: Sandbox;
  status: TheirStatus;
  details: Details;
  /** The execution that a sandbox was created with, as far as it is still known. */
  first: Exec | null;
  /** The port that is open to everybody. */
  preview: PreviewInfo | null;
}

export const shownAs = (sandbox: Sandbox, known: Known): Shown => ({
  sandbox,
  status: sandbox.status === "ready" && known.isBusy ? "running" : statusWith(sandbox, known.first),
  details: detailsOf(sandbox.labels),
  first: known.first,
  preview: known.preview,
});

/** What is not in a sandbox's record. */
interface Known extends Pick<Shown, "first" | "preview"> {
  /** Whether a command is under way. */
  isBusy: boolean;
}

/** A one-shot whose command has ended is on its way out; one that was ended without an exit code failed. */
function statusWith(sandbox: Sandbox, first: Exec | null): TheirStatus {
  const status = STATUS[sandbox.status];
  const isOver = first !== null && isTerminal(first.status) && detailsOf(sandbox.labels).mode === "oneshot";
  if (!isOver) return status;
  if (first.exitCode === null) return "failed";
  return status === "terminated" || status === "failed" ? status : "stopping";
}

/** Of the execution that it was created with, once that is over. */
export const exitCodeOf = ({ first }: Shown): { exitCode?: number } =>
  first === null || first.exitCode === null ? {} : { exitCode: first.exitCode };

export interface Org {
  id: string;
  name: string;
}

/** Who is told, as far as an answer has to say so. */
export interface Told {
  org: Org;
  /** Where an execution's output is read. */
  links: Links;
  /** Where a port is found. */
  portUrl(preview: PreviewInfo): string;
}

export function summaryShape({ sandbox, status, details, preview }: Shown, { org, portUrl }: Told) {
  const { id, name, createdAt, image, execsStarted, lifecycle } = sandbox;
  const { idleStandbyMs, maxExecMs } = lifecycle;
  return {
    sandboxId: id,
    identifier: name,
    name,
    ...(details.description === undefined ? {} : { description: details.description }),
    status,
    mode: details.mode ?? "interactive",
    createdAt,
    runtime: { id: image, name: details.runtime ?? image },
    executions: execsStarted,
    networkEnabled: false,
    ...(preview === null ? {} : { networkPort: preview.port, url: portUrl(preview) }),
    org,
    timeout: {
      ...(idleStandbyMs === undefined ? {} : { idle: durationText(idleStandbyMs) }),
      ...(maxExecMs === undefined ? {} : { execution: durationText(maxExecMs) }),
    },
    holdfast: { status: sandbox.status, cause: sandbox.cause, recovery: sandbox.recovery },
  };
}

export function sandboxShape(shown: Shown, told: Told) {
  const { sandbox, details, first } = shown;
  const { memoryMb, cpus, diskMb } = sandbox.resources;
  const { projectId, metadata, mode } = details;
  return {
    ...summaryShape(shown, told),
    ...exitCodeOf(shown),
    ...(first === null ? {} : { ...told.links(first), command: { exec: first.argv, mode } }),
    resources: {
      memory: `${memoryMb}Mi`,
      cpu: `${Math.round(cpus * 1_000)}m`,
      ...(diskMb === undefined ? {} : { disk: `${diskMb}Mi` }),
    },
    ...(metadata === undefined ? {} : { metadata }),
    ...(projectId === undefined ? {} : { project: { id: projectId, name: projectId } }),
  };
}

export type Links = (exec: Exec) => Partial<Record<`${OutputStream}StreamUrl`, string>>;

const EXECUTION_STATUS: Readonly<Record<Exclude<ExecStatus, "exited">, string>> = {
  queued: "queued",
  starting: "running",
  running: "running",
  timed_out: "timeout",
  cancelled: "cancelled",
  lost: "failed",
  refused: "failed",
};

const executionStatus = ({ status, exitCode }: Exec): string =>
  status === "exited" ? (exitCode === 0 ? "completed" : "failed") : EXECUTION_STATUS[status];

export const executeShape = (exec: Exec, links: Links) => ({
  executionId: exec.id,
  status: executionStatus(exec),
  ...outcomeShape(exec),
  ...links(exec),
});

export const executionShape = (exec: Exec, links: Links) => ({
  ...executeShape(exec, links),
  sandboxId: exec.sandboxId,
  type: isJob(exec.id) ? "job" : "exec",
  command: exec.argv,
  ...timesShape(exec),
  ...(errorOf(exec) ?? {}),
  holdfast: holdfastShape(exec),
});

function outcomeShape({ status, exitCode, startedAt, endedAt, truncated }: Exec) {
  return {
    ...(isTerminal(status) && exitCode !== null ? { exitCode } : {}),
    ...(startedAt !== null && endedAt !== null
      ? { durationMs: Math.max(0, Date.parse(endedAt) - Date.parse(startedAt)) }
      : {}),
    ...(truncated ? { outputTruncated: true } : {}),
  };
}

const timesShape = ({ startedAt, endedAt }: Exec) => ({
  ...(startedAt === null ? {} : { startedAt }),
  ...(endedAt === null ? {} : { completedAt: endedAt }),
});

/** Why there is no exit code. */
function errorOf({ cause, signal }: Exec): { error: string } | null {
  if (cause !== null) return { error: `${cause.message} (${cause.code})` };
  return signal === null ? null : { error: `The command was ended by ${signal}.` };
}

const holdfastShape = ({ status, signal, cause, dispatched, suspended }: Exec) => ({
  ...{ status, signal, cause, dispatched, suspended },
});

/** By what ended it: a job that is stopped gets SIGTERM, and one that is stopped by force is cancelled. */
function jobStatus(exec: Exec): string {
  const { status, exitCode, signal } = exec;
  if (status === "queued" || status === "starting") return "pending";
  if (status === "cancelled" || signal === "SIGTERM") return "cancelled";
  if (status === "exited") return exitCode === 0 ? "completed" : "failed";
  return status === "running" ? "running" : "failed";
}

export const jobShape = (exec: Exec, links: Links) => ({
  jobId: exec.id,
  sandboxId: exec.sandboxId,
  command: exec.argv,
  status: jobStatus(exec),
  exitCode: isTerminal(exec.status) ? exec.exitCode : null,
  ...timesShape(exec),
  ...(errorOf(exec) ?? {}),
  ...links(exec),
  holdfast: holdfastShape(exec),
});

export const eventShape = ({ seq, at, type, sandboxId, message, execId, generation, data }: Event) => ({
  eventId: String(seq),
  sandboxId: sandboxId ?? "",
  type,
  event: { ...data, message, ...(execId === null ? {} : { executionId: execId }), generation },
  createdAt: at,
});

export const fileShape = ({ name, sizeBytes, kind, mode, modifiedAt, target }: FileStat) => ({
  path: name,
  size: sizeBytes,
  isDir: kind === "directory",
  ...(kind === "symlink" ? { isSymlink: true } : {}),
  ...(target === undefined ? {} : { linkTarget: target }),
  mode,
  modTime: modifiedAt,
});

/** Each is a copy of its own, so none has a parent. */
export const checkpointShape = ({ id, name, createdAt, kind, sizeBytes }: Checkpoint) => ({
  ...{ id, name, createdAt, parent: "" },
  holdfast: { kind, sizeBytes },
});

export const runtimeShape = ({ name, kind }: Image) => ({
  id: name,
  name,
  description: kind === "host" ? "The programs of the machine that Holdfast runs on." : "An imported image.",
  tags: [kind],
  requirements: { networkEnabled: false },
});
