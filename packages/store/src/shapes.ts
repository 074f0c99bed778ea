/**
 * Schemas of stored records, which are checked before writing and after reading. They are deliberately looser than the
 * API's schemas, so that stored records stay readable when the API becomes stricter.
 */
import {
  ALERT_ID_PATTERN,
  ALERT_KINDS,
  ALERT_UNITS,
  type AlertId,
  type AttemptId,
  Cause,
  CHECKPOINT_ID_PATTERN,
  type CheckpointId,
  DELIVERY_ID_PATTERN,
  DELIVERY_STATES,
  type DeliveryId,
  Dispatched,
  DRIVE_ID_PATTERN,
  DRIVE_PHASES,
  type DriveId,
  EVENT_TYPES,
  EXEC_ID_PATTERN,
  EXEC_STATUSES,
  type ExecId,
  invariant,
  isTerminal,
  Nullable,
  OneOf,
  PREVIEW_ID_PATTERN,
  PROCESS_ENDS,
  PROCESS_ID_PATTERN,
  type PreviewId,
  type ProcessId,
  SANDBOX_ID_PATTERN,
  type SandboxId,
  SEVERITIES,
  STANDBY_KINDS,
  STOP_REASONS,
  TOKEN_ID_PATTERN,
  type TokenId,
} from "@holdfast/contract";
import type {
  AlertRecord,
  CheckpointSummary,
  DeliveryRecord,
  DriveRecord,
  Lease as EngineLease,
  ExecRecord,
  InstanceIdentity,
  PreviewRecord,
  ProcessRecord,
  SandboxRecord,
  SavedCheckpoint,
  StoredEvent,
} from "@holdfast/engine";
import { type Static, type TSchema, Type } from "typebox";
import { Compile } from "typebox/compile";

const Count = Type.Integer({ minimum: 0 });
const Time = Type.Integer();
const Texts = Type.Record(Type.String(), Type.String());
const Sandbox = Type.Unsafe<SandboxId>({ type: "string", pattern: SANDBOX_ID_PATTERN });
const Exec = Type.Unsafe<ExecId>({ type: "string", pattern: EXEC_ID_PATTERN });
const Checkpoint = Type.Unsafe<CheckpointId>({ type: "string", pattern: CHECKPOINT_ID_PATTERN });
const Drive = Type.Unsafe<DriveId>({ type: "string", pattern: DRIVE_ID_PATTERN });
const AlertName = Type.Unsafe<AlertId>({ type: "string", pattern: ALERT_ID_PATTERN });
const DeliveryName = Type.Unsafe<DeliveryId>({ type: "string", pattern: DELIVERY_ID_PATTERN });
const Preview = Type.Unsafe<PreviewId>({ type: "string", pattern: PREVIEW_ID_PATTERN });
const Token = Type.Unsafe<TokenId>({ type: "string", pattern: TOKEN_ID_PATTERN });
const ProcessName = Type.Unsafe<ProcessId>({ type: "string", pattern: PROCESS_ID_PATTERN });
const Attempt = Type.Unsafe<AttemptId>({ type: "string" });

const CheckpointShape = Type.Object({
  id: Checkpoint,
  takenAt: Time,
  generation: Count,
  sizeBytes: Count,
  keeperBootId: Nullable(Type.String()),
  restored: Type.Optional(Type.Literal(true)),
});

const Phase = Type.Union([
  Type.Object({ name: Type.Literal("queued"), restart: Type.Optional(Cause) }),
  Type.Object({ name: Type.Literal("launching"), deadline: Time }),
  Type.Object({ name: Type.Literal("running") }),
  Type.Object({ name: Type.Literal("paused") }),
  Type.Object({
    name: Type.Literal("suspending"),
    checkpointId: Checkpoint,
    kind: OneOf(STANDBY_KINDS),
    deadline: Time,
    saving: Type.Optional(Type.Literal(true)),
  }),
  Type.Object({
    name: Type.Literal("standby"),
    checkpoint: Nullable(CheckpointShape),
    failedWakes: Count,
  }),
  Type.Object({
    name: Type.Literal("waking"),
    checkpoint: CheckpointShape,
    consumed: Type.Boolean(),
    failedWakes: Count,
    deadline: Time,
  }),
  Type.Object({ name: Type.Literal("deleting"), cause: Nullable(Cause) }),
  Type.Object({ name: Type.Literal("gone"), cause: Nullable(Cause) }),
  Type.Object({ name: Type.Literal("failed"), cause: Cause, keptUntil: Time }),
]);

const stopFields = { reason: OneOf(STOP_REASONS), generation: Count, attempts: Count };
const retryFields = { nextAttemptAt: Time, lastError: Nullable(Type.String()) };

/** A lease that can be read, in any of its states. A lease that cannot be read gets the state `quarantined` instead. */
const Lease = Type.Union([
  Type.Object({ state: Type.Literal("none") }),
  Type.Object({
    state: Type.Literal("held"),
    generation: Count,
    startupDeadline: Time,
  }),
  Type.Object({ state: Type.Literal("stop_needed"), ...stopFields, ...retryFields }),
  Type.Object({ state: Type.Literal("stopping"), ...stopFields, attemptId: Attempt, deadline: Time }),
  Type.Object({ state: Type.Literal("exhausted"), ...stopFields, ...retryFields }),
]);
const Quarantined = Type.Object({ state: Type.Literal("quarantined"), raw: Type.String() });

const SpecShape = Type.Object({
  image: Type.String({ minLength: 1 }),
  env: Texts,
  cwd: Nullable(Type.String()),
  resources: Type.Object({
    memoryMb: Type.Number(),
    cpus: Type.Number(),
    pids: Type.Number(),
    diskMb: Type.Optional(Type.Number()),
  }),
  lifecycle: Type.Object({
    maxExecMs: Type.Optional(Type.Number()),
    maxExecs: Type.Optional(Type.Number()),
    ttlMs: Type.Optional(Type.Number()),
    idleTtlMs: Type.Optional(Type.Number()),
    idleStandbyMs: Type.Optional(Type.Number()),
    onMemoryLoss: Type.Optional(OneOf(["fail", "cold-start"])),
    disposable: Type.Optional(Type.Boolean()),
  }),
  labels: Texts,
});

const OriginShape = Type.Object({
  sandboxId: Sandbox,
  sandboxName: Type.String({ minLength: 1 }),
  checkpointId: Checkpoint,
  kind: OneOf(STANDBY_KINDS),
  generation: Count,
  keeperBootId: Nullable(Type.String()),
  execs: Type.Array(Type.Object({ id: Exec, from: Exec, keeperId: Exec })),
  processes: Type.Array(Type.Object({ id: ProcessName, from: ProcessName, keeperId: ProcessName })),
});

const SandboxShape = Type.Object({
  id: Sandbox,
  name: Type.String({ minLength: 1 }),
  nameHeld: Type.Boolean(),
  phase: Phase,
  generation: Count,
  memorySince: Count,
  lease: Type.Union([Lease, Quarantined]),
  instance: Nullable(
    Type.Object({
      sandboxId: Sandbox,
      generation: Count,
      identity: Type.Unsafe<InstanceIdentity>(
        Type.Record(Type.String(), Type.Union([Type.String(), Type.Number()])),
      ),
      keeperVersion: Type.String(),
      keeperBootId: Type.Optional(Type.String()),
    }),
  ),
  spec: SpecShape,
  createdAt: Time,
  lastActivityAt: Time,
  transitionedAt: Time,
  endedAt: Nullable(Time),
  owner: Nullable(Type.String()),
  execsStarted: Count,
  forkedFrom: Nullable(OriginShape),
  mounts: Type.Array(
    Type.Object({
      drive: Type.String({ minLength: 1 }),
      driveId: Drive,
      path: Type.String({ pattern: "^/" }),
      subpath: Type.String({ pattern: "^/" }),
      readOnly: Type.Boolean(),
      state: OneOf(["wanted", "removing"]),
    }),
  ),
  restarts: Nullable(Type.Object({ since: Time, count: Count, restoredAt: Type.Optional(Time) })),
  revision: Count,
});

const ExecSpecShape = Type.Object({
  argv: Type.Array(Type.String(), { minItems: 1 }),
  env: Texts,
  cwd: Type.String(),
  user: Type.String(),
  timeoutMs: Nullable(Type.Number()),
  stdin: Nullable(Type.Object({ text: Type.String(), end: Type.Boolean() })),
  tty: Nullable(Type.Object({ cols: Count, rows: Count })),
  keepAwake: Type.Boolean(),
  onWake: Nullable(
    Type.Union([
      Type.Object({ signal: Type.String() }),
      Type.Object({ argv: Type.Array(Type.String(), { minItems: 1 }) }),
    ]),
  ),
});

const portWithin = { port: Count, withinMs: Count };

const ProcessSpecShape = Type.Object({
  command: ExecSpecShape,
  restart: Nullable(Type.Object({ on: OneOf(["failure", "always"]), max: Count, backoffMs: Count })),
  readyWhen: Nullable(
    Type.Union([Type.Object(portWithin), Type.Object({ output: Type.String(), withinMs: Count })]),
  ),
  connectBy: Nullable(Type.Object(portWithin)),
});

const processFields = {
  id: ProcessName,
  name: Type.String({ minLength: 1 }),
  spec: ProcessSpecShape,
  digest: Type.String(),
  run: Type.Integer({ minimum: 1 }),
  restarts: Count,
};

const seenFields = { run: Count, generation: Count, at: Time };

const ProcessShape = Type.Object({
  ...processFields,
  sandboxId: Sandbox,
  generation: Count,
  order: Nullable(
    Type.Union([
      Type.Object({ do: Type.Literal("stop") }),
      Type.Object({ do: Type.Literal("restart"), after: Count }),
    ]),
  ),
  seen: Nullable(
    Type.Union([
      Type.Object({ ...seenFields, state: Type.Literal("ready"), how: OneOf(["port", "output"]) }),
      Type.Object({
        ...seenFields,
        state: Type.Literal("unready"),
        cause: Cause,
        said: Type.Optional(Type.Boolean()),
      }),
    ]),
  ),
  end: Nullable(Type.Object({ state: OneOf(PROCESS_ENDS), cause: Nullable(Cause), at: Time })),
  createdAt: Time,
  revision: Count,
});

const summaryFields = {
  id: Checkpoint,
  sandboxId: Sandbox,
  name: Type.String({ minLength: 1 }),
  kind: OneOf(STANDBY_KINDS),
  generation: Count,
  createdAt: Time,
  sizeBytes: Count,
  memoryBytes: Count,
  execIds: Type.Array(Exec),
};

const SavedShape = Type.Object({
  ...summaryFields,
  keeperBootId: Nullable(Type.String()),
  spec: SpecShape,
  sandboxName: Type.String({ minLength: 1 }),
  execs: Type.Array(
    Type.Object({
      id: Exec,
      keeperId: Exec,
      spec: ExecSpecShape,
      digest: Type.String(),
      startedAt: Nullable(Time),
    }),
  ),
  processes: Type.Array(Type.Object({ ...processFields, keeperId: ProcessName })),
});

const ExecShape = Type.Object({
  id: Exec,
  sandboxId: Sandbox,
  generation: Count,
  spec: ExecSpecShape,
  digest: Type.String(),
  status: OneOf(EXEC_STATUSES),
  exitCode: Nullable(Type.Integer()),
  signal: Nullable(Type.String()),
  cause: Nullable(Cause),
  dispatched: Dispatched,
  outputEnd: Count,
  createdAt: Time,
  startedAt: Nullable(Time),
  endedAt: Nullable(Time),
});

const DriveShape = Type.Object({
  id: Drive,
  name: Type.String({ minLength: 1 }),
  phase: OneOf(DRIVE_PHASES),
  sizeMb: Nullable(Count),
  labels: Texts,
  owner: Nullable(Type.String()),
  createdAt: Time,
  revision: Count,
});

const Headers = Type.Record(Type.String(), Type.String());
const PreviewShape = Type.Object({
  id: Preview,
  sandboxId: Sandbox,
  name: Type.String({ minLength: 1 }),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  public: Type.Boolean(),
  createdAt: Time,
  expiresAt: Nullable(Time),
  headers: Type.Optional(Type.Object({ request: Headers, response: Headers })),
  tokens: Type.Array(Type.Object({ id: Token, createdAt: Time, expiresAt: Time })),
});

const AlertShape = Type.Object({
  id: AlertName,
  key: Type.String({ minLength: 1 }),
  kind: OneOf(ALERT_KINDS),
  severity: OneOf(SEVERITIES),
  sandboxId: Nullable(Sandbox),
  message: Type.String(),
  unit: OneOf(ALERT_UNITS),
  value: Type.Number(),
  threshold: Type.Number(),
  clearBelow: Type.Number(),
  target: Nullable(Type.Number()),
  firedAt: Time,
  clearedAt: Nullable(Time),
});

const DeliveryShape = Type.Object({
  id: DeliveryName,
  state: OneOf(DELIVERY_STATES),
  alert: AlertShape,
  attempts: Count,
  createdAt: Time,
  nextAttemptAt: Nullable(Time),
  deliveredAt: Nullable(Time),
  lastError: Nullable(Type.String()),
});

const EventShape = Type.Object({
  seq: Count,
  at: Time,
  type: OneOf(EVENT_TYPES),
  sandboxId: Nullable(Sandbox),
  execId: Nullable(Exec),
  driveId: Nullable(Drive),
  generation: Nullable(Count),
  message: Type.String(),
  data: Type.Record(Type.String(), Type.Unknown()),
});

/** Returns a function that checks a value, and throws the first error with its location in the record. */
function checker<Schema extends TSchema>(schema: Schema, what: string) {
  const validator = Compile(schema);
  return (value: unknown): Static<Schema> => {
    if (validator.Check(value)) return value;
    const [error] = validator.Errors(value);
    throw new Error(`${what}${error?.instancePath ?? ""} ${error?.message ?? "has the wrong shape"}`);
  };
}

// The types of these functions make the compiler check that every value that fits a schema is a complete record.
const sandboxShape: (value: unknown) => SandboxRecord = checker(SandboxShape, "sandbox");
const execShape: (value: unknown) => ExecRecord = checker(ExecShape, "exec");
export const checkSummary: (value: unknown) => CheckpointSummary = checker(
  Type.Object(summaryFields),
  "checkpoint",
);
export const checkSaved: (value: unknown) => SavedCheckpoint = checker(SavedShape, "checkpoint");
const processShape: (value: unknown) => ProcessRecord = checker(ProcessShape, "process");
export const checkDrive: (value: unknown) => DriveRecord = checker(DriveShape, "drive");
export const checkPreview: (value: unknown) => PreviewRecord = checker(PreviewShape, "preview");
export const checkAlert: (value: unknown) => AlertRecord = checker(AlertShape, "alert");
const deliveryShape: (value: unknown) => DeliveryRecord = checker(DeliveryShape, "delivery");
export const checkEvent: (value: unknown) => StoredEvent = checker(EventShape, "event");

const leaseShape = Compile(Lease);

export const isReadableLease = (value: unknown): value is Exclude<EngineLease, { state: "quarantined" }> =>
  leaseShape.Check(value);

export function checkSandbox(value: unknown): SandboxRecord {
  const record = sandboxShape(value);
  const { phase, lease, instance, mounts } = record;
  invariant(new Set(mounts.map(({ path }) => path)).size === mounts.length, "a path has at most one mount");
  if (instance !== null) {
    invariant(instance.sandboxId === record.id, "an instance belongs to its sandbox");
    invariant(instance.generation <= record.generation, "an instance's generation is at most its sandbox's");
  }
  if (["running", "paused", "suspending"].includes(phase.name)) {
    invariant(instance !== null, "a running sandbox has an instance");
    invariant(lease.state !== "none", "a running sandbox has a lease");
  }
  if (phase.name === "waking") {
    invariant(lease.state !== "none", "a waking sandbox has a lease");
    invariant(!phase.consumed || instance !== null, "a checkpoint is spent on an instance");
  }
  if (phase.name === "gone") {
    invariant(lease.state === "none", "a deleted sandbox has no lease");
    invariant(!record.nameHeld, "a deleted sandbox has released its name");
    invariant(record.endedAt !== null, "a deleted sandbox has an end time");
  }
  return record;
}

export function checkExec(value: unknown): ExecRecord {
  const record = execShape(value);
  invariant(
    isTerminal(record.status) === (record.endedAt !== null),
    "an exec has an end time exactly if its status is terminal",
  );
  invariant(
    record.status !== "exited" || record.exitCode !== null || record.signal !== null,
    "an exec that exited has an exit code or a signal",
  );
  return record;
}

export function checkProcess(value: unknown): ProcessRecord {
  const record = processShape(value);
  const { order, end, seen, run } = record;
  invariant(order === null || end === null, "a process that has ended has no pending request");
  invariant(seen === null || seen.run <= run, "only recorded runs have been observed");
  return record;
}

export function checkDelivery(value: unknown): DeliveryRecord {
  const record = deliveryShape(value);
  const { state, nextAttemptAt, deliveredAt } = record;
  invariant(
    (state === "pending") === (nextAttemptAt !== null),
    "a delivery has a next attempt exactly if it is pending",
  );
  invariant(
    (state === "delivered") === (deliveredAt !== null),
    "a delivery has a delivery time exactly if it is delivered",
  );
  return record;
}
