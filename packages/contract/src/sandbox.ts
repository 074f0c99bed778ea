import { type Static, Type } from "typebox";
import { Mount, MountDrive } from "./drive.ts";
import { Cause } from "./errors.ts";
import { CHECKPOINT_ID_PATTERN, IMAGE_PATTERN, NAME_PATTERN, SANDBOX_ID_PATTERN } from "./ids.ts";
import {
  AbsolutePath,
  Environment,
  LabelChanges,
  Labels,
  List,
  Nullable,
  OneOf,
  Timestamp,
  VARIABLES_MAX,
  VariableName,
  VariableValue,
} from "./schema.ts";

/** The stored phase of a sandbox: what the engine is doing with it. */
const PHASES = [
  "queued",
  "launching",
  "running",
  "paused",
  "suspending",
  "standby",
  "waking",
  "deleting",
  "gone",
  "failed",
] as const;
export type Phase = (typeof PHASES)[number];

/** The status shown to callers. It is computed from phase, lease, proof, heartbeat and time, and is never stored. */
export const STATUSES = [
  "queued",
  "creating",
  "ready",
  "degraded",
  "paused",
  "suspending",
  "standby",
  "waking",
  "stopping",
  "terminated",
  "failed",
] as const;
export const Status = OneOf(STATUSES, { description: "computed from evidence at the time of the response" });
export type Status = Static<typeof Status>;

export const Resources = Type.Object(
  {
    memoryMb: Type.Integer({ minimum: 16, maximum: 1_048_576, description: "memory limit, swap included" }),
    cpus: Type.Number({
      minimum: 0.01,
      maximum: 1024,
      description: "CPU limit in cores; default: all cores of the host",
    }),
    pids: Type.Integer({ minimum: 8, maximum: 1_000_000, description: "limit on processes and threads" }),
    diskMb: Type.Optional(
      Type.Integer({
        minimum: 32,
        maximum: 16_777_216,
        description:
          "gives the sandbox its own file system of this size for everything it writes, journals included; default: limited only by the host's disk",
      }),
    ),
  },
  { additionalProperties: false },
);
export type Resources = Static<typeof Resources>;

/** What standby preserves: files, memory and processes, or only files. */
export const STANDBY_KINDS = ["memory", "files"] as const;
export const StandbyKind = OneOf(STANDBY_KINDS, {
  description:
    "memory: processes and memory are saved to disk and restored; files: the instance is stopped and a new one is started on the same files",
});
export type StandbyKind = Static<typeof StandbyKind>;

const OnMemoryLoss = OneOf(["fail", "cold-start"]);

export const Lifecycle = Type.Object(
  {
    maxExecMs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 604_800_000,
        description: "maximum and default timeout of every exec",
      }),
    ),
    maxExecs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 1_000_000_000,
        description: "total number of execs that may be started",
      }),
    ),
    ttlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 31_536_000_000,
        description: "the sandbox is deleted at this age, even if it is busy",
      }),
    ),
    idleTtlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 31_536_000_000,
        description:
          "the sandbox is deleted after this long without a call, awake or in standby; never while it has an unfinished exec, running or frozen",
      }),
    ),
    idleStandbyMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 604_800_000,
        description:
          "the sandbox goes to standby after this long without a call, unless an exec keeps it awake; default: only if the host runs short of memory",
      }),
    ),
    onMemoryLoss: Type.Optional({
      ...OnMemoryLoss,
      description:
        "what to do when the sandbox's processes are lost unexpectedly (a reboot, a killed keeper). fail: the sandbox fails and its files are kept (default); cold-start: it is started again on the same files",
    }),
    disposable: Type.Optional(
      Type.Boolean({
        description:
          "the sandbox may be deleted when the host runs short of resources, unless an exec is in progress",
      }),
    ),
  },
  { additionalProperties: false },
);
export type Lifecycle = Static<typeof Lifecycle>;

export const CreateSandbox = Type.Object(
  {
    name: Type.Optional(
      Type.String({ pattern: NAME_PATTERN, description: "a DNS label; generated if absent" }),
    ),
    image: Type.Optional(Type.String({ pattern: IMAGE_PATTERN, default: "host" })),
    env: Type.Optional(Environment),
    cwd: Type.Optional(AbsolutePath),
    resources: Type.Optional(Type.Partial(Resources, { additionalProperties: false })),
    lifecycle: Type.Optional(Lifecycle),
    labels: Type.Optional(Labels),
    mounts: Type.Optional(
      Type.Array(MountDrive, {
        maxItems: 32,
        description: "drives to mount at creation; a fork inherits no mounts",
      }),
    ),
    fromCheckpoint: Type.Optional(
      Type.String({
        pattern: CHECKPOINT_ID_PATTERN,
        description:
          "id of a checkpoint: the sandbox starts with its files and memory. Image and resources come from the checkpoint, as does every other setting that is absent here",
      }),
    ),
    ifExists: Type.Optional(
      OneOf(["return", "fail"], { description: "what to do if the name is taken; default fail" }),
    ),
  },
  { $id: "CreateSandbox", title: "CreateSandbox", additionalProperties: false },
);
export type CreateSandbox = Static<typeof CreateSandbox>;

export const UpdateSandbox = Type.Object(
  {
    labels: Type.Optional(LabelChanges),
    env: Type.Optional(
      Type.Record(VariableName, Nullable(VariableValue), {
        additionalProperties: false,
        maxProperties: VARIABLES_MAX,
        description: "environment of execs started from now on; null removes a variable",
      }),
    ),
    lifecycle: Type.Optional(
      Type.Object(
        {
          maxExecMs: Type.Optional(Nullable(Lifecycle.properties.maxExecMs)),
          maxExecs: Type.Optional(Nullable(Lifecycle.properties.maxExecs)),
          ttlMs: Type.Optional(Nullable(Lifecycle.properties.ttlMs)),
          expiresInMs: Type.Optional(
            Type.Integer({
              minimum: 1_000,
              maximum: 31_536_000_000,
              description:
                "the sandbox is deleted this long after the update, even if it is busy; sets `ttlMs`",
            }),
          ),
          idleTtlMs: Type.Optional(Nullable(Lifecycle.properties.idleTtlMs)),
          idleStandbyMs: Type.Optional(Nullable(Lifecycle.properties.idleStandbyMs)),
          onMemoryLoss: Type.Optional(Nullable(Lifecycle.properties.onMemoryLoss)),
          disposable: Type.Optional(Nullable(Lifecycle.properties.disposable)),
        },
        { additionalProperties: false, description: "null resets a setting to its default" },
      ),
    ),
  },
  {
    $id: "UpdateSandbox",
    title: "UpdateSandbox",
    additionalProperties: false,
    description: "absent fields are left unchanged",
  },
);
export type UpdateSandbox = Static<typeof UpdateSandbox>;

export const Check = Type.Object({
  name: OneOf(["link", "exec", "files", "root", "mounts"], {
    description:
      "link: the keeper answers; exec: a command ran and its output was received; files: a file was written and read back; root, mounts: the root file system and every drive are the same seen from inside and outside",
  }),
  ok: Type.Boolean(),
  ms: Type.Number(),
  message: Type.Optional(Type.String()),
});
export type Check = Static<typeof Check>;

export const Proof = Type.Object(
  { at: Timestamp, generation: Type.Integer(), ok: Type.Boolean(), checks: Type.Array(Check) },
  {
    $id: "Proof",
    title: "Proof",
    description: "timestamped evidence that the sandbox serves requests, or which check failed",
  },
);
export type Proof = Static<typeof Proof>;

export const STOP_REASONS = ["delete", "standby", "replace", "launch_failed", "died"] as const;
export type StopReason = (typeof STOP_REASONS)[number];

export const LeaseView = Type.Object(
  {
    state: OneOf(["none", "held", "stop_needed", "stopping", "exhausted", "quarantined"]),
    reason: Type.Optional(OneOf(STOP_REASONS)),
    attempts: Type.Optional(Type.Integer()),
    nextAttemptAt: Type.Optional(Timestamp),
    lastError: Type.Optional(Type.String()),
  },
  { description: "durable record that the server owns the sandbox's processes and must stop them" },
);
export type LeaseView = Static<typeof LeaseView>;

/** The recovery steps for an instance that does not serve, from the gentlest to the most drastic. */
const RUNGS = ["wait", "relink", "thaw", "remount", "restart", "hold"] as const;
export type Rung = (typeof RUNGS)[number];

export const Recovery = Type.Object(
  {
    step: OneOf(RUNGS, {
      description:
        "wait: give it time to recover by itself; relink: open a new connection to the keeper; thaw: unfreeze its processes; remount: restore its root mount on the host; restart: stop the instance, then start it on the same files or fail it with everything kept, depending on onMemoryLoss; hold: it serves again and must keep serving for a while",
    }),
    since: Timestamp,
    tries: Type.Integer({ minimum: 0, description: "attempts of this step" }),
    nextAt: Type.String({ format: "date-time", description: "when the next step is decided" }),
    message: Type.String(),
  },
  { description: "automatic recovery in progress; null if none is needed" },
);
export type Recovery = Static<typeof Recovery>;

export const Sandbox = Type.Object(
  {
    id: Type.String({ pattern: SANDBOX_ID_PATTERN }),
    name: Type.String(),
    status: Status,
    cause: Nullable(Cause),
    generation: Type.Integer({ description: "counts launches and restores" }),
    image: Type.String(),
    createdAt: Timestamp,
    lastActivityAt: Timestamp,
    endedAt: Nullable(Timestamp),
    keptUntil: Nullable(Timestamp),
    expiresAt: Nullable(
      Type.String({ format: "date-time", description: "when its ttlMs ends; null if it has none" }),
    ),
    execsStarted: Type.Integer({ minimum: 0 }),
    provenAt: Nullable(Timestamp),
    proof: Nullable(Proof),
    lease: LeaseView,
    recovery: Nullable(Recovery),
    standbyKind: StandbyKind,
    checkpoint: Nullable(
      Type.Object(
        { id: Type.String(), takenAt: Timestamp, sizeBytes: Type.Integer({ minimum: 0 }) },
        { description: "its saved memory, while the sandbox is in standby or waking" },
      ),
    ),
    forkedFrom: Nullable(
      Type.Object(
        {
          sandboxId: Type.String(),
          checkpointId: Type.String(),
          execs: Type.Record(Type.String(), Type.String(), {
            description: "maps the ids of the inherited execs in this sandbox to their ids in the original",
          }),
        },
        {
          description:
            "the checkpoint that the sandbox was created from; null if it was created from an image",
        },
      ),
    ),
    resources: Resources,
    lifecycle: Lifecycle,
    labels: Labels,
    mounts: Type.Array(Mount),
  },
  { $id: "Sandbox", title: "Sandbox" },
);
export type Sandbox = Static<typeof Sandbox>;

export const SandboxList = List(Sandbox, "SandboxList");
export type SandboxList = Static<typeof SandboxList>;
