import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { Exec, OnWake, StartExec } from "./exec.ts";
import { NAME_PATTERN } from "./ids.ts";
import { Port } from "./preview.ts";
import { List, Nullable, OneOf, Timestamp } from "./schema.ts";

/** The statuses of a named, supervised process. Each run of a process is an exec with its own outcome and journal. */
const PROCESS_STATUSES = [
  "starting",
  "ready",
  "unready",
  "waiting",
  "exited",
  "given_up",
  "stopped",
  "lost",
] as const;
export const ProcessStatus = OneOf(PROCESS_STATUSES, {
  description:
    "starting: not known to be ready yet; ready: running, and the readyWhen condition was met; unready: running, but the readyWhen condition was not met in time; waiting: between two runs; exited: ended by itself and is not restarted; given_up: restarted too many times in a row, or could not be started; stopped: stopped on request; lost: how it ended is unknown, and it is not restarted. The last four are final",
});
export type ProcessStatus = Static<typeof ProcessStatus>;

/** The final statuses of a process. */
export const PROCESS_ENDS = ["exited", "given_up", "stopped", "lost"] as const;
export type ProcessEnd = (typeof PROCESS_ENDS)[number];
export const isProcessOver = (status: ProcessStatus): status is ProcessEnd =>
  (PROCESS_ENDS as readonly string[]).includes(status);

/** The defaults of a restart policy and of a readiness condition. */
export const PROCESS_DEFAULTS = { restartsMax: 10, backoffMs: 1_000, readyWithinMs: 60_000 } as const;

const WithinMs = Type.Integer({ minimum: 1, maximum: 3_600_000 });

const restartFields = {
  on: OneOf(["failure", "always"], {
    description: "failure: restart unless the exit code is 0; always: restart after every exit",
  }),
  max: Type.Integer({
    minimum: 0,
    maximum: 1_000,
    description:
      "consecutive restarts after which the process is given up; a run of one minute resets the count",
  }),
  backoffMs: Type.Integer({
    minimum: 10,
    maximum: 60_000,
    description: "wait before the first of consecutive restarts; doubles with each, up to one minute",
  }),
};

const RestartPolicy = Type.Object(restartFields, { $id: "RestartPolicy", title: "RestartPolicy" });

const outputText = Type.String({
  minLength: 1,
  maxLength: 1_024,
  description: "text that appears in the run's output",
});
const readyPort = { ...Port, description: "a program listens on this port" };

export const ReadyWhen = Type.Union([
  Type.Object({ port: readyPort, withinMs: WithinMs }),
  Type.Object({ output: outputText, withinMs: WithinMs }),
]);
export type ReadyWhen = Static<typeof ReadyWhen>;

export const ConnectBy = Type.Object(
  { port: Port, withinMs: WithinMs },
  {
    additionalProperties: false,
    description:
      "after a wake, a program must listen on this port within this time; otherwise the process is unready",
  },
);
export type ConnectBy = Static<typeof ConnectBy>;

const { command, argv, env, cwd, user, timeoutMs, tty } = StartExec.properties;

export const StartProcess = Type.Object(
  {
    name: Type.String({ pattern: NAME_PATTERN, description: "unique among the sandbox's processes" }),
    command,
    argv,
    env,
    cwd,
    user,
    timeoutMs,
    tty,
    keepAwake: Type.Optional(
      Type.Boolean({
        description:
          "whether the process keeps the sandbox awake; default false: it is frozen with the sandbox and continues after the wake",
      }),
    ),
    onWake: Type.Optional(OnWake),
    restart: Type.Optional(
      Type.Object(
        {
          on: restartFields.on,
          max: Type.Optional(restartFields.max),
          backoffMs: Type.Optional(restartFields.backoffMs),
        },
        {
          additionalProperties: false,
          description:
            "restart policy; without one the process is not restarted. Defaults: max 10, backoffMs 1000",
        },
      ),
    ),
    readyWhen: Type.Optional(
      Type.Union(
        [
          Type.Object(
            { port: readyPort, withinMs: Type.Optional(WithinMs) },
            { additionalProperties: false },
          ),
          Type.Object(
            { output: outputText, withinMs: Type.Optional(WithinMs) },
            { additionalProperties: false },
          ),
        ],
        {
          description: "condition that each run must meet to be ready; withinMs defaults to one minute",
        },
      ),
    ),
    connectBy: Type.Optional(ConnectBy),
  },
  { $id: "StartProcess", title: "StartProcess", additionalProperties: false },
);
export type StartProcess = Static<typeof StartProcess>;

export const Process = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    sandboxId: Type.String(),
    status: ProcessStatus,
    cause: Nullable(Cause),
    ready: Nullable(
      Type.Object({
        at: Timestamp,
        how: OneOf(["port", "output", "running"], {
          description: "the condition that was met; running: no condition was requested",
        }),
      }),
    ),
    argv: Type.Array(Type.String()),
    restarts: Type.Integer({ description: "consecutive restarts" }),
    runs: Type.Integer({ description: "runs so far" }),
    nextRunAt: Nullable({
      ...Timestamp,
      description: "when the next run starts, if the process is waiting and the time is known",
    }),
    execId: Type.String({ description: "id of the last run; `exec` is that run for as long as it is kept" }),
    exec: Nullable(Exec),
    restart: Nullable(RestartPolicy),
    readyWhen: Nullable(ReadyWhen),
    connectBy: Nullable(ConnectBy),
    keepAwake: Type.Boolean(),
    suspended: Type.Boolean({
      description:
        "true while the process is frozen with its sandbox in standby; it continues after the wake",
    }),
    createdAt: Timestamp,
    endedAt: Nullable(Timestamp),
  },
  { $id: "Process", title: "Process" },
);
export type Process = Static<typeof Process>;

export const ProcessList = List(Process, "ProcessList");
export type ProcessList = Static<typeof ProcessList>;
