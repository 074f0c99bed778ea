import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { Exec, OnWake, StartExec } from "./exec.ts";
import { NAME_PATTERN } from "./ids.ts";
import { Port } from "./preview.ts";
import { List, Nullable, OneOf, Timestamp } from "./schema.ts";

/** Named, long-lived processes: rows of runs, each of which is an exec with an outcome and a journal of its own. */

export const PROCESS_STATUSES = [
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
    "starting: it is not known to be ready yet; ready: it runs and what readyWhen asks for was seen; unready: it runs, and that was not seen in time; waiting: between two runs; exited: it ended by itself and is not started again; given_up: too many restarts in a row, or it could not be started; stopped: by order; lost: how it ended can't be known and nothing starts it again. The last four are the end of it",
});
export type ProcessStatus = Static<typeof ProcessStatus>;

/** The ways in which a process is over. */
export const PROCESS_ENDS = ["exited", "given_up", "stopped", "lost"] as const;
export type ProcessEnd = (typeof PROCESS_ENDS)[number];
export const isProcessOver = (status: ProcessStatus): status is ProcessEnd =>
  (PROCESS_ENDS as readonly string[]).includes(status);

/** What a restart policy leaves out, and how long readiness is waited for. */
export const PROCESS_DEFAULTS = { restartsMax: 10, backoffMs: 1_000, readyWithinMs: 60_000 } as const;

const WithinMs = Type.Integer({ minimum: 1, maximum: 3_600_000 });

const restartFields = {
  on: OneOf(["failure", "always"], {
    description: "failure: after any end but an exit with 0; always: after that too",
  }),
  max: Type.Integer({
    minimum: 0,
    maximum: 1_000,
    description: "restarts in a row after which it is given up; a run of a minute begins the row anew",
  }),
  backoffMs: Type.Integer({
    minimum: 10,
    maximum: 60_000,
    description: "wait before the first restart of a row; doubled with each, up to a minute",
  }),
};

export const RestartPolicy = Type.Object(restartFields, { $id: "RestartPolicy", title: "RestartPolicy" });
export type RestartPolicy = Static<typeof RestartPolicy>;

const outputText = Type.String({
  minLength: 1,
  maxLength: 1_024,
  description: "text that appears in the run's output",
});
const readyPort = { ...Port, description: "something listens at this port" };

export const ReadyWhen = Type.Union([
  Type.Object({ port: readyPort, withinMs: WithinMs }),
  Type.Object({ output: outputText, withinMs: WithinMs }),
]);
export type ReadyWhen = Static<typeof ReadyWhen>;

export const ConnectBy = Type.Object(
  { port: Port, withinMs: WithinMs },
  {
    additionalProperties: false,
    description: "after a wake, something has to listen at this port within so long; else it is unready",
  },
);
export type ConnectBy = Static<typeof ConnectBy>;

const { command, argv, env, cwd, user, timeoutMs, tty } = StartExec.properties;

export const StartProcess = Type.Object(
  {
    name: Type.String({ pattern: NAME_PATTERN, description: "one process of the sandbox has it at a time" }),
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
          "whether the sandbox stays awake for it; default false: it is frozen with the sandbox and goes on after the wake",
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
          description: "how it is started again; without it, it is not. Default: 10 restarts, and 1 s",
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
          description: "what has to be seen of each run before it is ready; withinMs is a minute by default",
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
          description: "what was seen; running: nothing else was asked for",
        }),
      }),
    ),
    argv: Type.Array(Type.String()),
    restarts: Type.Integer({ description: "in a row" }),
    runs: Type.Integer({ description: "so far" }),
    nextRunAt: Nullable({ ...Timestamp, description: "while it waits, as far as that is known" }),
    execId: Type.String({ description: "of the last run, which is `exec` for as long as that is kept" }),
    exec: Nullable(Exec),
    restart: Nullable(RestartPolicy),
    readyWhen: Nullable(ReadyWhen),
    connectBy: Nullable(ConnectBy),
    keepAwake: Type.Boolean(),
    suspended: Type.Boolean({
      description: "its sandbox sleeps and this with it; it goes on after the wake",
    }),
    createdAt: Timestamp,
    endedAt: Nullable(Timestamp),
  },
  { $id: "Process", title: "Process" },
);
export type Process = Static<typeof Process>;

export const ProcessList = List(Process, "ProcessList");
export type ProcessList = Static<typeof ProcessList>;
