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

/** What the engine is doing. Stored. */
export const PHASES = [
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

/** What a caller is told. Computed from phase, lease, proof, heartbeat and time; never stored. */
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
export const Status = OneOf(STATUSES, { description: "computed from evidence at the time of the answer" });
export type Status = Static<typeof Status>;

export const Resources = Type.Object(
  {
    memoryMb: Type.Integer({ minimum: 16, maximum: 1_048_576, description: "memory limit, swap included" }),
    cpus: Type.Number({
      minimum: 0.01,
      maximum: 1024,
      description: "CPU limit in cores; by default all that the host has",
    }),
    pids: Type.Integer({ minimum: 8, maximum: 1_000_000, description: "limit on processes and threads" }),
    diskMb: Type.Optional(
      Type.Integer({
        minimum: 32,
        maximum: 16_777_216,
        description:
          "size of a file system of its own for all that it writes, journals included; default: no limit of its own",
      }),
    ),
  },
  { additionalProperties: false },
);
export type Resources = Static<typeof Resources>;

/** What standby keeps besides the files. */
export const STANDBY_KINDS = ["memory", "files"] as const;
export const StandbyKind = OneOf(STANDBY_KINDS, {
  description:
    "memory: processes and memory go to disk and come back; files: the instance is ended and started anew on the same files",
});
export type StandbyKind = Static<typeof StandbyKind>;

export const OnMemoryLoss = OneOf(["fail", "cold-start"]);

export const Lifecycle = Type.Object(
  {
    maxExecMs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 604_800_000,
        description: "upper bound, and default, of every exec's timeout",
      }),
    ),
    maxExecs: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 1_000_000_000, description: "execs that may be started in all" }),
    ),
    ttlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 31_536_000_000,
        description: "deleted when it is this old, whatever it is doing",
      }),
    ),
    idleTtlMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 31_536_000_000,
        description:
          "deleted after this long without a call, asleep or not; never while an exec is under way in it, or one that is asleep with it",
      }),
    ),
    idleStandbyMs: Type.Optional(
      Type.Integer({
        minimum: 1_000,
        maximum: 604_800_000,
        description:
          "goes to standby after this long without a call, unless an exec holds it awake; default: only where the host runs short of memory",
      }),
    ),
    onMemoryLoss: Type.Optional({
      ...OnMemoryLoss,
      description:
        "when its processes are gone though nobody ended them (a reboot, a killed keeper): stay failed with its files kept (default), or start again on the same files",
    }),
    disposable: Type.Optional(
      Type.Boolean({
        description: "may be deleted when the host runs short, unless an exec is under way in it",
      }),
    ),
  },
  { additionalProperties: false },
);
export type Lifecycle = Static<typeof Lifecycle>;

export const CreateSandbox = Type.Object(
  {
    name: Type.Optional(
      Type.String({ pattern: NAME_PATTERN, description: "a DNS label; made up where absent" }),
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
        description: "drives that it has from its beginning; a fork has no others",
      }),
    ),
    fromCheckpoint: Type.Optional(
      Type.String({
        pattern: CHECKPOINT_ID_PATTERN,
        description:
          "a checkpoint's id: the sandbox begins with the files, and the memory, that were kept there. Image and resources are those of the checkpoint; what else is not said here is too",
      }),
    ),
    ifExists: Type.Optional(
      OneOf(["return", "fail"], { description: "what to do when the name is taken; default fail" }),
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
        description: "of execs that start from now on; null removes a variable",
      }),
    ),
    lifecycle: Type.Optional(
      Type.Object(
        {
          maxExecMs: Type.Optional(Nullable(Lifecycle.properties.maxExecMs)),
          maxExecs: Type.Optional(Nullable(Lifecycle.properties.maxExecs)),
          ttlMs: Type.Optional(Nullable(Lifecycle.properties.ttlMs)),
          idleTtlMs: Type.Optional(Nullable(Lifecycle.properties.idleTtlMs)),
          idleStandbyMs: Type.Optional(Nullable(Lifecycle.properties.idleStandbyMs)),
          onMemoryLoss: Type.Optional(Nullable(Lifecycle.properties.onMemoryLoss)),
          disposable: Type.Optional(Nullable(Lifecycle.properties.disposable)),
        },
        { additionalProperties: false, description: "null takes a limit or a choice back" },
      ),
    ),
  },
  {
    $id: "UpdateSandbox",
    title: "UpdateSandbox",
    additionalProperties: false,
    description: "what is not named stays as it is",
  },
);
export type UpdateSandbox = Static<typeof UpdateSandbox>;

/** One check of a proof. */
export const Check = Type.Object({
  name: OneOf(["link", "exec", "files", "root", "mounts"], {
    description:
      "link: the keeper answers; exec: a command ran and its output came back; files: a file was written and read back; root, mounts: the root file system, and every drive, is the same seen from inside and outside",
  }),
  ok: Type.Boolean(),
  ms: Type.Number(),
  message: Type.Optional(Type.String()),
});
export type Check = Static<typeof Check>;

export const Proof = Type.Object(
  { at: Timestamp, generation: Type.Integer(), ok: Type.Boolean(), checks: Type.Array(Check) },
  { $id: "Proof", title: "Proof", description: "dated evidence that an instance serves, or what failed" },
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
  { description: "the durable right to, and duty over, the processes of the instance" },
);
export type LeaseView = Static<typeof LeaseView>;

/** What is done about an instance that does not serve, from the gentlest to the last. */
export const RUNGS = ["wait", "relink", "thaw", "remount", "restart", "hold"] as const;
export type Rung = (typeof RUNGS)[number];

export const Recovery = Type.Object(
  {
    step: OneOf(RUNGS, {
      description:
        "wait: it may heal by itself; relink: a new link to the keeper; thaw: let its processes run; remount: put its root back where the host sees it; restart: end the instance, then start it on the same files, or fail it with everything kept, as onMemoryLoss says; hold: it serves again, and has to for a while",
    }),
    since: Timestamp,
    tries: Type.Integer({ minimum: 0, description: "of this step" }),
    nextAt: Type.String({ format: "date-time", description: "when it is decided how to go on" }),
    message: Type.String(),
  },
  { description: "what Holdfast does about it by itself; null where there is nothing to do" },
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
      Type.String({ format: "date-time", description: "when its ttlMs is over; null where it has none" }),
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
        { description: "its memory on disk, where it is in standby or on the way from there" },
      ),
    ),
    forkedFrom: Nullable(
      Type.Object(
        {
          sandboxId: Type.String(),
          checkpointId: Type.String(),
          execs: Type.Record(Type.String(), Type.String(), {
            description: "what its first execs are called here, and what they were called there",
          }),
        },
        { description: "the checkpoint that it began with; null where it began from an image" },
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
