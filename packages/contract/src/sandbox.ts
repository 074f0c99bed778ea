import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { IMAGE_PATTERN, NAME_PATTERN, SANDBOX_ID_PATTERN } from "./ids.ts";
import { AbsolutePath, Environment, Labels, List, Nullable, OneOf, Timestamp } from "./schema.ts";

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
  },
  { additionalProperties: false },
);
export type Resources = Static<typeof Resources>;

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
    ifExists: Type.Optional(
      OneOf(["return", "fail"], { description: "what to do when the name is taken; default fail" }),
    ),
  },
  { $id: "CreateSandbox", title: "CreateSandbox", additionalProperties: false },
);
export type CreateSandbox = Static<typeof CreateSandbox>;

/** One check of a proof. */
export const Check = Type.Object({
  name: OneOf(["link", "exec", "files", "root"], {
    description:
      "link: the keeper answers; exec: a command ran and its output came back; files: a file was written and read back; root: the root file system is the same seen from inside and outside",
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
    provenAt: Nullable(Timestamp),
    proof: Nullable(Proof),
    lease: LeaseView,
    resources: Resources,
    lifecycle: Lifecycle,
    labels: Labels,
  },
  { $id: "Sandbox", title: "Sandbox" },
);
export type Sandbox = Static<typeof Sandbox>;

export const SandboxList = List(Sandbox, "SandboxList");
export type SandboxList = Static<typeof SandboxList>;
