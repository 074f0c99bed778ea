/** Converts Holdfast's records to the shapes of the Agentuity client, which validates them and drops unknown fields. */
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
  type Resources,
  type Sandbox,
  type Status,
} from "@holdfast/contract";
import { durationText } from "./durations.ts";
import { isJob } from "./executions/exec-ids.ts";
import { type Details, detailsOf } from "./sandboxes/details.ts";
import { coresOf, megabytesOf, sameQuantity } from "./sandboxes/quantities.ts";

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

/**
 * The client's status for each Holdfast status. `idle` is reported only for sandboxes that are proven to serve, so a
 * degraded sandbox is reported as being created.
 */
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

/** A sandbox, with the other records that determine its reported status. */
export interface Shown {
  sandbox: Sandbox;
  status: TheirStatus;
  details: Details;
  /** The execution that was created with the sandbox. Null if there was none, or if its record was deleted. */
  first: Exec | null;
  /** The public port. */
  preview: PreviewInfo | null;
}

export const shownAs = (sandbox: Sandbox, known: Known): Shown => ({
  sandbox,
  status: sandbox.status === "ready" && known.isBusy ? "running" : statusWith(sandbox, known.first),
  details: detailsOf(sandbox.labels),
  first: known.first,
  preview: known.preview,
});

/** The data that a response contains in addition to the sandbox's own record. */
interface Known extends Pick<Shown, "first" | "preview"> {
  /** Whether a command is running. */
  isBusy: boolean;
}

/**
 * Returns the status that the client sees. A one-shot sandbox whose command has ended is reported as stopping, or as
 * failed if the command ended without an exit code.
 */
function statusWith(sandbox: Sandbox, first: Exec | null): TheirStatus {
  const status = STATUS[sandbox.status];
  const isOver = first !== null && isTerminal(first.status) && detailsOf(sandbox.labels).mode === "oneshot";
  if (!isOver) return status;
  if (first.exitCode === null) return "failed";
  return status === "terminated" || status === "failed" ? status : "stopping";
}

/** Returns the exit code of the execution that was created with the sandbox; none before that execution has ended. */
export const exitCodeOf = ({ first }: Shown): { exitCode?: number } =>
  first === null || first.exitCode === null ? {} : { exitCode: first.exitCode };

interface Org {
  id: string;
  name: string;
}

/** The properties of a request that affect its response, such as the host name in URLs. */
export interface RequestView {
  org: Org;
  /** Returns the URLs of an execution's output. */
  links: Links;
  /** Returns the URL of a port. */
  portUrl(preview: PreviewInfo): string;
}

export function summaryShape({ sandbox, status, details, preview }: Shown, { org, portUrl }: RequestView) {
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

export function sandboxShape(shown: Shown, view: RequestView) {
  const { sandbox, details, first } = shown;
  const { projectId, metadata, mode } = details;
  return {
    ...summaryShape(shown, view),
    ...exitCodeOf(shown),
    ...(first === null ? {} : { ...view.links(first), command: { exec: first.argv, mode } }),
    resources: resourcesShape(sandbox.resources, details.resources),
    ...(metadata === undefined ? {} : { metadata }),
    ...(projectId === undefined ? {} : { project: { id: projectId, name: projectId } }),
  };
}

/**
 * Returns the current resources. A resource that has not changed since the create request has the form of that request.
 */
function resourcesShape({ memoryMb, cpus, diskMb }: Resources, asked: Details["resources"] = {}) {
  return {
    memory: sameQuantity(asked.memory, memoryMb, megabytesOf) ?? `${memoryMb}Mi`,
    cpu: sameQuantity(asked.cpu, cpus, coresOf) ?? `${Math.round(cpus * 1_000)}m`,
    ...(diskMb === undefined ? {} : { disk: sameQuantity(asked.disk, diskMb, megabytesOf) ?? `${diskMb}Mi` }),
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

/** Returns an error that explains why an exec has no exit code; null if it has one. */
function errorOf({ cause, signal }: Exec): { error: string } | null {
  if (cause !== null) return { error: `${cause.message} (${cause.code})` };
  return signal === null ? null : { error: `The command was killed by ${signal}.` };
}

const holdfastShape = ({ status, signal, cause, dispatched, suspended }: Exec) => ({
  ...{ status, signal, cause, dispatched, suspended },
});

/**
 * Returns a job's status. A stop ends the job with SIGTERM, and a forced stop cancels its exec; both give `cancelled`.
 */
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

/** Converts a checkpoint. Every checkpoint is a complete copy, so no checkpoint depends on another as its parent. */
export const checkpointShape = ({ id, name, createdAt, kind, sizeBytes }: Checkpoint) => ({
  ...{ id, name, createdAt, parent: "" },
  holdfast: { kind, sizeBytes },
});

export const runtimeShape = ({ name, kind }: Image) => ({
  id: name,
  name,
  description: kind === "host" ? "The programs of the host that Holdfast runs on." : "An imported image.",
  tags: [kind],
  requirements: { networkEnabled: false },
});
