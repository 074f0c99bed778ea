/**
 * Converts Holdfast's records to the shapes of the Blaxel client. Facts for which the client has no field are added
 * under `holdfast`.
 */
import {
  type Checkpoint,
  type Drive,
  type DriveStatus,
  type Event,
  type EventType,
  type Exec,
  type ExecStatus,
  type FileStat,
  isProcessOver,
  isTerminal,
  type Process,
  type ProcessEnd,
  type Sandbox,
  type Status,
} from "@holdfast/contract";
import { type AskedExpiry, shownExpiry } from "./control/expiry.ts";
import { fromLabels } from "./control/labels.ts";
import type { Output } from "./process/collected-output.ts";
import { commandOf, generatedName, givenName, nameOf } from "./process/process-names.ts";
import { isMadeUp } from "./process/restarts.ts";

/** The properties of a request that affect the URLs in its response. */
export interface PublicOrigin {
  workspace: string;
  /** Base URL of the adapter; null if the request has no host name. */
  base: string | null;
}

/**
 * The client's status for each Holdfast status. The state `STANDBY` means that a call wakes the sandbox. A paused or
 * missing sandbox has no state, because no call wakes it.
 */
const STATUS: Readonly<Record<Status, { status: string; state?: "RUNNING" | "STANDBY" }>> = {
  queued: { status: "DEPLOYING" },
  creating: { status: "DEPLOYING" },
  ready: { status: "DEPLOYED", state: "RUNNING" },
  degraded: { status: "DEPLOYED", state: "RUNNING" },
  paused: { status: "DEPLOYED" },
  suspending: { status: "DEPLOYED", state: "RUNNING" },
  standby: { status: "DEPLOYED", state: "STANDBY" },
  waking: { status: "DEPLOYED", state: "STANDBY" },
  stopping: { status: "DELETING" },
  terminated: { status: "TERMINATED" },
  failed: { status: "FAILED" },
};

/** Returns the Holdfast statuses that a platform status stands for; none if there is no equivalent. */
export const statusesCalled = (name: string): Status[] =>
  (Object.keys(STATUS) as Status[]).filter((status) => STATUS[status].status === name.toUpperCase());

/** The parts of a sandbox that listings omit. */
interface Detail {
  events: readonly Event[];
  env: Readonly<Record<string, string>>;
}

export function sandboxShape(sandbox: Sandbox, site: PublicOrigin, detail: Detail | null = null) {
  const { id, name, createdAt, lastActivityAt, resources, cause } = sandbox;
  const { labels, externalId, displayName, image, asked } = fromLabels(sandbox.labels);
  const { policies, ...limits } = expiryShown(sandbox);
  const expiresAt = nextExpiry(sandbox);
  const url = site.base && `${site.base}/run/${encodeURIComponent(site.workspace)}/sandboxes/${name}`;
  return {
    metadata: {
      name,
      ...(url ? { url } : {}),
      workspace: site.workspace,
      ...{ labels, externalId, displayName, createdAt, updatedAt: createdAt },
    },
    // The region is omitted: a client that knows the region would connect to the platform's own servers.
    spec: {
      enabled: true,
      runtime: {
        image: image ?? sandbox.image,
        memory: resources.memoryMb,
        ...limits,
        ...(asked?.ports ? { ports: asked.ports } : {}),
        ...(detail === null ? {} : { envs: envsShown(detail.env, asked?.secrets ?? []) }),
      },
      ...(policies ? { lifecycle: { expirationPolicies: policies } } : {}),
    },
    ...STATUS[sandbox.status],
    lastUsedAt: lastActivityAt,
    ...(expiresAt === null ? {} : { expiresIn: secondsUntil(expiresAt) }),
    events: (detail?.events ?? []).map(eventShape),
    errors:
      cause === null
        ? []
        : [{ code: cause.code, message: cause.message, fatal: sandbox.status === "failed", instance: id }],
    holdfast: { id, status: sandbox.status, cause },
  };
}

/** Returns the environment as it was set. The value of a variable that was set as a secret is never returned. */
const envsShown = (env: Detail["env"], secrets: readonly string[]) =>
  Object.entries(env).map(([name, value]) =>
    secrets.includes(name) ? { name, secret: true } : { name, value },
  );

/** Returns the expiry settings in the form in which they were requested. */
export function expiryShown({ labels, lifecycle, createdAt }: Sandbox): AskedExpiry {
  const { ports: _ports, secrets: _secrets, ...asked } = fromLabels(labels).asked ?? {};
  return shownExpiry(asked, lifecycle, Date.parse(createdAt));
}

/** Returns when the sandbox expires: at its maximum age, or earlier if it stays idle until its idle limit. */
function nextExpiry({ expiresAt, lastActivityAt, lifecycle: { idleTtlMs } }: Sandbox): number | null {
  const times = expiresAt === null ? [] : [Date.parse(expiresAt)];
  if (idleTtlMs !== undefined) times.push(Date.parse(lastActivityAt) + idleTtlMs);
  return times.length === 0 ? null : Math.min(...times);
}

const secondsUntil = (time: number): number => Math.max(0, Math.ceil((time - Date.now()) / 1_000));

/**
 * Types of the events in a sandbox's timeline for the client: those that change the sandbox's state. The full timeline,
 * with every suspension and command, is in Holdfast's API.
 */
export const SHOWN_EVENTS: readonly EventType[] = [
  "sandbox.created",
  "sandbox.ready",
  "sandbox.degraded",
  "sandbox.recovered",
  "sandbox.memory_lost",
  "sandbox.failed",
  "sandbox.deleting",
  "sandbox.terminated",
];

const eventShape = ({ at, type, message }: Event) => ({
  time: at,
  type,
  message,
  status: EVENT_STATUS[type] ?? "DEPLOYED",
});
const EVENT_STATUS: Readonly<Partial<Record<EventType, string>>> = {
  "sandbox.created": "DEPLOYING",
  "sandbox.failed": "FAILED",
  "sandbox.deleting": "DELETING",
  "sandbox.terminated": "TERMINATED",
};

const DRIVE_STATUS: Readonly<Record<DriveStatus, string>> = {
  creating: "DEPLOYING",
  ready: "DEPLOYED",
  degraded: "FAILED",
  deleting: "DELETING",
};
const MB_PER_GB = 1_024;

export function driveShape(drive: Drive, { workspace }: PublicOrigin) {
  const { name, createdAt, sizeMb, cause, status, id } = drive;
  const { labels, externalId, displayName } = fromLabels(drive.labels);
  return {
    metadata: {
      name,
      displayName: displayName ?? name,
      ...{ workspace, labels, externalId, createdAt, updatedAt: createdAt },
    },
    spec: sizeMb === null ? {} : { size: sizeMb / MB_PER_GB },
    state: {},
    status: DRIVE_STATUS[status],
    events: [],
    holdfast: { id, status, cause, usage: drive.usage, mounts: drive.mounts },
  };
}

/**
 * Converts a drive to a volume. The platform's format has one sandbox to which a volume is attached. In Holdfast
 * several sandboxes can mount a drive, so all of them are also listed under `holdfast`.
 */
export function volumeShape(drive: Drive, site: PublicOrigin) {
  const [one] = drive.mounts;
  return {
    ...driveShape(drive, site),
    spec: drive.sizeMb === null ? {} : { size: drive.sizeMb },
    state: one === undefined ? {} : { attachedTo: `sandbox:${one.sandbox}` },
  };
}

export const snapshotShape = (
  { name: source, labels, image, resources }: Sandbox,
  { id, name, createdAt, kind, sizeBytes }: Checkpoint,
  { workspace }: PublicOrigin,
) => ({
  ...{ id, name, createdAt, workspace, status: "ready", sandboxName: source },
  source: { name: source, kind: "sandbox", deleted: false },
  spec: { image: fromLabels(labels).image ?? image, memory: resources.memoryMb },
  holdfast: { kind, sizeBytes },
});

const NO_EXIT_CODE = -1;

export function processShape(exec: Exec, { stdout, stderr, logs, truncated }: Output, workingDir = "") {
  return {
    pid: exec.id,
    name: nameOf(exec),
    command: commandOf(exec),
    status: processStatus(exec),
    startedAt: exec.startedAt ?? exec.createdAt,
    completedAt: exec.endedAt ?? "",
    exitCode: isTerminal(exec.status) ? (exec.exitCode ?? NO_EXIT_CODE) : 0,
    workingDir,
    ...{ logs, stdout, stderr },
    keepAlive: exec.keepAwake,
    ...{ restartOnFailure: false, maxRestarts: 0, restartCount: 0 },
    holdfast: { status: exec.status, signal: exec.signal, cause: exec.cause, dispatched: exec.dispatched },
    ...(truncated ? { truncated } : {}),
    ...(exec.suspended ? { suspended: true } : {}),
  };
}

/** Converts a supervised process. Its runs appear as one process with one output. */
export function supervisedShape(process: Process, exec: Exec, output: Output, workingDir = "") {
  const { id, name, status, createdAt, endedAt, restart, runs, cause } = process;
  return {
    ...processShape(exec, output, workingDir),
    pid: id,
    ...(givenName(exec) === null ? { name: isMadeUp(name) ? generatedName(id) : name } : {}),
    status: isProcessOver(status) ? (ROW_STATUS[status] ?? processStatus(exec)) : "running",
    startedAt: createdAt,
    completedAt: endedAt ?? "",
    exitCode: isProcessOver(status) ? (exec.exitCode ?? NO_EXIT_CODE) : 0,
    ...{
      restartOnFailure: restart !== null,
      maxRestarts: restart?.max ?? 0,
      restartCount: Math.max(0, runs - 1),
    },
    holdfast: { status, cause, execId: exec.id },
  };
}

const ROW_STATUS: Readonly<Record<ProcessEnd, string | null>> = {
  exited: null,
  given_up: "failed",
  stopped: "stopped",
  lost: "failed",
};

const BY_SIGNAL: Readonly<Record<string, string>> = { SIGTERM: "stopped", SIGKILL: "killed" };
const BY_STATUS: Readonly<Record<Exclude<ExecStatus, "exited">, string>> = {
  queued: "running",
  starting: "running",
  running: "running",
  timed_out: "killed",
  cancelled: "killed",
  lost: "failed",
  refused: "failed",
};

function processStatus({ status, exitCode, signal }: Exec): string {
  if (status !== "exited") return BY_STATUS[status];
  if (exitCode === 0) return "completed";
  return BY_SIGNAL[signal ?? ""] ?? "failed";
}

export const fileShape = ({ name, path, sizeBytes, mode, uid, gid, modifiedAt }: FileStat) => ({
  name,
  path,
  size: sizeBytes,
  permissions: mode.replace(/^0(?=\d{3}$)/, ""),
  owner: ownerName(uid),
  group: ownerName(gid),
  lastModified: modifiedAt,
});

/** Returns the user name for a UID. Every image has the users `root` and `user`. */
const ownerName = (id: number): string => (id === 0 ? "root" : id === 1_000 ? "user" : String(id));

export function directoryShape(path: string, items: readonly FileStat[]) {
  const [directories, files] = [true, false].map((wanted) =>
    items.filter(({ kind }) => (kind === "directory") === wanted),
  );
  return {
    name: path.slice(path.lastIndexOf("/") + 1) || "/",
    path,
    files: (files ?? []).map(fileShape),
    subdirectories: (directories ?? []).map(({ name, path: at }) => ({ name, path: at })),
  };
}
