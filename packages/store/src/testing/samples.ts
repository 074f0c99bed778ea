/** Complete records for tests. Each test changes only the fields that it is about. */
import {
  ALERT_KINDS,
  ALERT_UNITS,
  type AttemptId,
  type CheckpointId,
  type DriveId,
  type ExecId,
  newAlertId,
  newCheckpointId,
  newDeliveryId,
  newDriveId,
  newExecId,
  newPreviewId,
  newProcessId,
  newSandboxId,
  newTokenId,
  PROCESS_ENDS,
  type ProcessId,
  type SandboxId,
  SEVERITIES,
  STOP_REASONS,
  TERMINAL_EXEC_STATUSES,
} from "@holdfast/contract";
import type {
  AlertRecord,
  DeliveryRecord,
  DriveRecord,
  ExecRecord,
  Instance,
  InstanceIdentity,
  Lease,
  MountRecord,
  Origin,
  PhaseState,
  PreviewRecord,
  ProcessRecord,
  ProcessSpec,
  SandboxRecord,
  SavedCheckpoint,
} from "@holdfast/engine";
import fc from "fast-check";

export function sampleSandbox(changes: Partial<SandboxRecord> = {}): SandboxRecord {
  const id = changes.id ?? newSandboxId();
  return {
    id,
    name: id.slice(4),
    nameHeld: true,
    phase: { name: "queued" },
    generation: 0,
    memorySince: 0,
    lease: { state: "none" },
    instance: null,
    spec: {
      image: "host",
      env: {},
      cwd: null,
      resources: { memoryMb: 1024, cpus: 1, pids: 512 },
      lifecycle: {},
      labels: {},
    },
    createdAt: 1_000,
    lastActivityAt: 1_000,
    transitionedAt: 1_000,
    endedAt: null,
    owner: null,
    execsStarted: 0,
    forkedFrom: null,
    mounts: [],
    restarts: null,
    revision: 1,
    ...changes,
  };
}

export function sampleExec(sandboxId: SandboxId, changes: Partial<ExecRecord> = {}): ExecRecord {
  return {
    id: newExecId(),
    sandboxId,
    generation: 1,
    spec: {
      argv: ["true"],
      env: {},
      cwd: "/",
      user: "",
      timeoutMs: null,
      stdin: null,
      tty: null,
      keepAwake: true,
      onWake: null,
    },
    digest: "d",
    status: "running",
    exitCode: null,
    signal: null,
    cause: null,
    dispatched: "yes",
    outputEnd: 0,
    createdAt: 1_000,
    startedAt: 1_000,
    endedAt: null,
    ...changes,
  };
}

/** Returns a checkpoint of a sandbox with one running command. */
export function sampleCheckpoint(
  { id: sandboxId, name: sandboxName, spec }: SandboxRecord,
  changes: Partial<SavedCheckpoint> = {},
): SavedCheckpoint {
  const { id, spec: execSpec, digest, startedAt } = sampleExec(sandboxId);
  return {
    id: newCheckpointId(),
    sandboxId,
    name: "before",
    kind: "memory",
    generation: 1,
    keeperBootId: "boot",
    createdAt: 1_000,
    sizeBytes: 2_000,
    memoryBytes: 1_000,
    spec,
    sandboxName,
    execs: [{ id, keeperId: id, spec: execSpec, digest, startedAt }],
    processes: [],
    execIds: [id],
    ...changes,
  };
}

export const ended = (record: ExecRecord, changes: Partial<ExecRecord> = {}): ExecRecord => ({
  ...record,
  status: "exited",
  exitCode: 0,
  endedAt: 2_000,
  ...changes,
});

const text = fc.string({ unit: "binary", maxLength: 20 });
const texts = fc.dictionary(text, text, { maxKeys: 4, noNullPrototype: true });
const count = fc.nat();
const time = fc.integer({ min: 0, max: 8.64e15 });
const orNull = <Value>(values: fc.Arbitrary<Value>) => fc.option(values, { nil: null });

const { cause } = fc.letrec((tie) => ({
  cause: fc.record(
    { code: text, message: text, cause: tie("cause") },
    { requiredKeys: ["code", "message"], noNullPrototype: true },
  ) as fc.Arbitrary<{ code: string; message: string }>,
}));

const stop = { reason: fc.constantFrom(...STOP_REASONS), generation: count, attempts: count };
const retry = { nextAttemptAt: time, lastError: orNull(text) };
const record = <Shape>(shape: { [Key in keyof Shape]: fc.Arbitrary<Shape[Key]> }) =>
  fc.record(shape, { noNullPrototype: true });
const is = <const Name>(name: Name) => fc.constant(name);

const held: fc.Arbitrary<Lease> = record({
  state: is("held"),
  generation: count,
  startupDeadline: time,
});
const heldLeases: fc.Arbitrary<Lease> = fc.oneof(
  held,
  record({ state: is("stop_needed"), ...stop, ...retry }),
  record({ state: is("stopping"), ...stop, attemptId: text as fc.Arbitrary<AttemptId>, deadline: time }),
  record({ state: is("exhausted"), ...stop, ...retry }),
  text.map((raw): Lease => ({ state: "quarantined", raw: `{${raw.toWellFormed()}` })),
);
const someLease: fc.Arbitrary<Lease> = fc.oneof(is({ state: "none" } as const), heldLeases);

const checkpoint = record({
  id: fc.constantFrom("ckp_0123456789abcdef", "ckp_zzzzzzzzzzzzzzzz") as fc.Arbitrary<CheckpointId>,
  takenAt: time,
  generation: count,
  sizeBytes: count,
  keeperBootId: orNull(text),
});

const restingPhase: fc.Arbitrary<PhaseState> = fc.oneof(
  record({ name: is("queued") }),
  record({ name: is("launching"), deadline: time }),
  record({ name: is("deleting"), cause: orNull(cause) }),
  record({ name: is("failed"), cause, keptUntil: time }),
  record({ name: is("standby"), checkpoint: orNull(checkpoint), failedWakes: count }),
);

const livingPhase: fc.Arbitrary<PhaseState> = fc.oneof(
  record({ name: is("running") }),
  record({ name: is("paused") }),
  record({
    name: is("suspending"),
    checkpointId: is("ckp_0123456789abcdef" as CheckpointId),
    kind: fc.constantFrom("memory", "files"),
    deadline: time,
  }),
  record({
    name: is("suspending"),
    checkpointId: is("ckp_0123456789abcdef" as CheckpointId),
    kind: fc.constantFrom("memory", "files"),
    deadline: time,
    saving: is(true),
  }),
  record({ name: is("waking"), checkpoint, consumed: fc.boolean(), failedWakes: count, deadline: time }),
);

const spec = record({
  image: fc.string({ minLength: 1 }),
  env: texts,
  cwd: orNull(text),
  resources: record({ memoryMb: count, cpus: fc.double({ min: 0.01, max: 1024, noNaN: true }), pids: count }),
  lifecycle: fc.record({ maxExecMs: count }, { requiredKeys: [], noNullPrototype: true }),
  labels: texts,
});

const execId = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,20}$/) as fc.Arbitrary<ExecId>;

const processId = fc.stringMatching(/^prc_[a-z0-9]{16}$/) as fc.Arbitrary<ProcessId>;

const origin: fc.Arbitrary<Origin> = record({
  sandboxId: fc.constantFrom("sbx_0123456789abcdef", "sbx_zzzzzzzzzzzzzzzz") as fc.Arbitrary<SandboxId>,
  sandboxName: fc.string({ minLength: 1 }),
  checkpointId: is("ckp_0123456789abcdef" as CheckpointId),
  kind: fc.constantFrom("memory", "files"),
  generation: count,
  keeperBootId: orNull(text),
  execs: fc.array(record({ id: execId, from: execId, keeperId: execId }), { maxLength: 3 }),
  processes: fc.array(record({ id: processId, from: processId, keeperId: processId }), { maxLength: 2 }),
});

const path = fc.stringMatching(/^\/[a-z ]{1,10}$/);
const driveId = fc.stringMatching(/^drv_[a-z0-9]{16}$/) as fc.Arbitrary<DriveId>;

const mount: fc.Arbitrary<MountRecord> = record({
  drive: fc.string({ minLength: 1 }),
  driveId,
  path,
  subpath: path,
  readOnly: fc.boolean(),
  state: fc.constantFrom("wanted", "removing"),
});

const headers = fc.dictionary(fc.constantFrom("vary", "x-one", "x-two"), fc.string());

/** Generates valid previews of a sandbox. */
export const anyPreviewOf = (sandboxId: SandboxId): fc.Arbitrary<PreviewRecord> =>
  record({
    name: fc.uuid(),
    port: fc.integer({ min: 1, max: 65_535 }),
    public: fc.boolean(),
    createdAt: time,
    expiresAt: orNull(time),
    headers: fc.option(record({ request: headers, response: headers }), { nil: undefined }),
    tokens: fc.array(record({ createdAt: time, expiresAt: time }), { maxLength: 3 }),
  }).map(({ tokens, headers: set, ...rest }) => ({
    ...(set === undefined ? {} : { headers: set }),
    id: newPreviewId(),
    sandboxId,
    ...rest,
    tokens: tokens.map((token) => ({ id: newTokenId(), ...token })),
  }));

/** Any valid drive. */
export const anyDrive: fc.Arbitrary<DriveRecord> = record({
  id: driveId,
  name: fc.uuid(),
  phase: fc.constantFrom("making", "ready", "deleting"),
  sizeMb: orNull(count),
  labels: texts,
  owner: orNull(text),
  createdAt: time,
  revision: count,
});

export const sampleDrive = (changes: Partial<DriveRecord> = {}): DriveRecord => {
  const id = changes.id ?? newDriveId();
  return {
    id,
    name: id.slice(4),
    phase: "making",
    sizeMb: null,
    labels: {},
    owner: null,
    createdAt: 1_000,
    revision: 0,
    ...changes,
  };
};

export const sampleAlert = (changes: Partial<AlertRecord> = {}): AlertRecord => ({
  id: newAlertId(),
  key: "capacity:disk",
  kind: "capacity",
  severity: "warning",
  sandboxId: null,
  message: "90 % of the disk is in use.",
  unit: "percent",
  value: 90,
  threshold: 80,
  clearBelow: 75,
  target: null,
  firedAt: 1_000,
  clearedAt: null,
  ...changes,
});

export const sampleDelivery = (changes: Partial<DeliveryRecord> = {}): DeliveryRecord => ({
  id: newDeliveryId(),
  state: "pending",
  alert: sampleAlert(),
  attempts: 0,
  createdAt: 1_000,
  nextAttemptAt: 1_000,
  deliveredAt: null,
  lastError: null,
  ...changes,
});

const figure = fc.double({ noNaN: true, noDefaultInfinity: true, min: 0 });

/** Any valid alert. */
export const anyAlert: fc.Arbitrary<AlertRecord> = record({
  key: fc.string({ minLength: 1 }),
  kind: fc.constantFrom(...ALERT_KINDS),
  severity: fc.constantFrom(...SEVERITIES),
  sandboxId: orNull(is("sbx_0123456789abcdef" as SandboxId)),
  message: text,
  unit: fc.constantFrom(...ALERT_UNITS),
  value: figure,
  threshold: figure,
  clearBelow: figure,
  target: orNull(figure),
  firedAt: time,
}).map((rest) => ({ id: newAlertId(), clearedAt: null, ...rest }));

/** Any valid delivery. */
export const anyDelivery: fc.Arbitrary<DeliveryRecord> = fc
  .tuple(
    record({ alert: anyAlert, attempts: count, createdAt: time, lastError: orNull(text) }),
    fc.oneof(
      record({ state: is("pending"), nextAttemptAt: time, deliveredAt: is(null) }),
      record({ state: is("delivered"), nextAttemptAt: is(null), deliveredAt: time }),
      record({ state: is("dead"), nextAttemptAt: is(null), deliveredAt: is(null) }),
    ),
  )
  .map(([base, state]) => ({ id: newDeliveryId(), ...base, ...state }));

/** Any valid sandbox. */
export const anySandbox: fc.Arbitrary<SandboxRecord> = fc
  .tuple(
    record({ name: fc.uuid(), nameHeld: fc.boolean(), spec, createdAt: time, lastActivityAt: time }),
    record({
      transitionedAt: time,
      endedAt: orNull(time),
      revision: count,
      generation: count,
      memorySince: count,
      owner: orNull(text),
      execsStarted: count,
      forkedFrom: orNull(origin),
      mounts: fc.uniqueArray(mount, { maxLength: 3, selector: ({ path }) => path }),
      restarts: orNull(record({ since: time, count })),
    }),
    fc.oneof(
      record({ phase: restingPhase, lease: someLease, launched: fc.boolean() }),
      record({ phase: livingPhase, lease: heldLeases, launched: is(true) }),
      record({
        phase: is<PhaseState>({ name: "gone", cause: null }),
        lease: is<Lease>({ state: "none" }),
        launched: is(false),
      }),
    ),
    record({
      identity: record({
        pid: fc.integer({ min: 1 }),
        startTime: text,
      }) as fc.Arbitrary<unknown> as fc.Arbitrary<InstanceIdentity>,
      keeperVersion: text,
    }),
  )
  .map(([base, times, { phase, lease, launched }, where]) => {
    const id = newSandboxId();
    const instance: Instance | null = launched
      ? { sandboxId: id, generation: times.generation, ...where }
      : null;
    const gone = phase.name === "gone" ? { nameHeld: false, endedAt: 1 } : {};
    return { id, ...base, ...times, phase, lease, instance, ...gone };
  });

const anyExecSpec: fc.Arbitrary<ExecRecord["spec"]> = record({
  argv: fc.array(text, { minLength: 1, maxLength: 4 }),
  env: texts,
  cwd: text,
  user: text,
  timeoutMs: orNull(count),
  stdin: orNull(record({ text, end: fc.boolean() })),
  tty: orNull(record({ cols: count, rows: count })),
  keepAwake: fc.boolean(),
  onWake: orNull(
    fc.oneof(record({ signal: text }), record({ argv: fc.array(text, { minLength: 1, maxLength: 2 }) })),
  ),
});

const digest = fc.stringMatching(/^[0-9a-f]{0,64}$/);

const portWithin = record({ port: count, withinMs: count });
const anyProcessSpec: fc.Arbitrary<ProcessSpec> = record({
  command: anyExecSpec,
  restart: orNull(record({ on: fc.constantFrom("failure", "always"), max: count, backoffMs: count })),
  readyWhen: orNull(fc.oneof(portWithin, record({ output: text, withinMs: count }))),
  connectBy: orNull(portWithin),
});

const seenFields = { run: is(1), generation: count, at: time };

/** Any valid process. */
export const anyProcess = (sandboxId: SandboxId): fc.Arbitrary<ProcessRecord> =>
  fc
    .tuple(
      record({
        name: fc.uuid(),
        spec: anyProcessSpec,
        digest,
        run: fc.integer({ min: 1 }),
        generation: count,
        restarts: count,
        seen: orNull(
          fc.oneof(
            record({ ...seenFields, state: is("ready"), how: fc.constantFrom("port", "output") }),
            record({ ...seenFields, state: is("unready"), cause }),
          ),
        ),
        createdAt: time,
        revision: count,
      }),
      fc.oneof(
        record({
          order: orNull(fc.oneof(record({ do: is("stop") }), record({ do: is("restart"), after: count }))),
          end: is(null),
        }),
        record({
          order: is(null),
          end: record({ state: fc.constantFrom(...PROCESS_ENDS), cause: orNull(cause), at: time }),
        }),
      ),
    )
    .map(([rest, end]) => ({ id: newProcessId(), sandboxId, ...rest, ...end }) as ProcessRecord);

export const sampleProcess = (sandboxId: SandboxId, changes: Partial<ProcessRecord> = {}): ProcessRecord => ({
  id: newProcessId(),
  sandboxId,
  name: "web",
  spec: { command: sampleExec(sandboxId).spec, restart: null, readyWhen: null, connectBy: null },
  digest: "d",
  run: 1,
  generation: 1,
  restarts: 0,
  order: null,
  seen: null,
  end: null,
  createdAt: 1_000,
  revision: 0,
  ...changes,
});

/** Generates checkpoints that can be inserted. */
export const anyCheckpoint = (sandboxId: SandboxId): fc.Arbitrary<SavedCheckpoint> =>
  record({
    name: fc.uuid(),
    kind: fc.constantFrom("memory", "files"),
    generation: count,
    keeperBootId: orNull(text),
    createdAt: time,
    sizeBytes: count,
    memoryBytes: count,
    spec,
    sandboxName: fc.string({ minLength: 1 }),
    execs: fc.array(
      record({ id: execId, keeperId: execId, spec: anyExecSpec, digest, startedAt: orNull(time) }),
      { maxLength: 3 },
    ),
    processes: fc.array(
      record({
        id: processId,
        keeperId: processId,
        name: fc.string({ minLength: 1 }),
        spec: anyProcessSpec,
        digest,
        run: fc.integer({ min: 1 }),
        restarts: count,
      }),
      { maxLength: 2 },
    ),
  }).map(
    (rest): SavedCheckpoint => ({
      id: newCheckpointId(),
      sandboxId,
      ...rest,
      execIds: rest.execs.map(({ id }) => id),
    }),
  );

/** Returns the part of a checkpoint that a listing contains. */
export function summaryOf({
  keeperBootId,
  spec,
  sandboxName,
  execs,
  processes,
  ...summary
}: SavedCheckpoint) {
  return summary;
}

/** Generates execs that can be inserted, including ended ones. */
export const anyExec = (sandboxId: SandboxId): fc.Arbitrary<ExecRecord> =>
  fc
    .tuple(
      anyExecSpec,
      record({
        generation: count,
        digest,
        exitCode: fc.integer({ min: 0, max: 255 }),
        signal: orNull(fc.constantFrom("SIGKILL", "SIGTERM")),
        cause: orNull(cause),
        dispatched: fc.constantFrom("yes", "no", "unknown"),
        outputEnd: count,
        createdAt: time,
        startedAt: orNull(time),
      }),
      fc.oneof(
        record({ status: fc.constantFrom("queued", "starting", "running"), endedAt: is(null) }),
        record({ status: fc.constantFrom(...TERMINAL_EXEC_STATUSES), endedAt: time }),
      ),
    )
    .map(
      ([execSpec, rest, end]) =>
        ({ id: newExecId() as ExecId, sandboxId, spec: execSpec, ...rest, ...end }) as ExecRecord,
    );
