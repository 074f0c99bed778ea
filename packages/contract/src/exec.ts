import { type Static, Type } from "typebox";
import { Cause, Dispatched } from "./errors.ts";
import { EXEC_ID_PATTERN } from "./ids.ts";
import { AbsolutePath, Environment, List, Nullable, OneOf, Timestamp } from "./schema.ts";

export const EXEC_STATUSES = [
  "queued",
  "starting",
  "running",
  "exited",
  "timed_out",
  "cancelled",
  "lost",
  "refused",
] as const;
export const ExecStatus = OneOf(EXEC_STATUSES, {
  description: "the last five are terminal; an exec reaches exactly one of them",
});
export type ExecStatus = Static<typeof ExecStatus>;

export const TERMINAL_EXEC_STATUSES = ["exited", "timed_out", "cancelled", "lost", "refused"] as const;
export type TerminalExecStatus = (typeof TERMINAL_EXEC_STATUSES)[number];
export const isTerminal = (status: ExecStatus): status is TerminalExecStatus =>
  (TERMINAL_EXEC_STATUSES as readonly string[]).includes(status);

export const TerminalSize = Type.Object(
  { cols: Type.Integer({ minimum: 1, maximum: 4096 }), rows: Type.Integer({ minimum: 1, maximum: 4096 }) },
  { additionalProperties: false, description: "size of a terminal, in characters" },
);
export type TerminalSize = Static<typeof TerminalSize>;

/**
 * What Holdfast does to a command after each wake of its sandbox, so that the command learns that its connections are
 * gone.
 */
export const OnWake = Type.Union(
  [
    Type.Object(
      { signal: Type.String({ pattern: "^SIG[A-Z0-9]{2,10}$" }) },
      { additionalProperties: false, description: "sent to the command's process group" },
    ),
    Type.Object(
      { argv: Type.Array(Type.String({ maxLength: 131_072 }), { minItems: 1, maxItems: 4096 }) },
      {
        additionalProperties: false,
        description: "run alongside the command, with its environment, directory and user",
      },
    ),
  ],
  { description: "action taken once after every wake, when the sandbox is proven; the outcome is an event" },
);
export type OnWake = Static<typeof OnWake>;

export const StartExec = Type.Object(
  {
    id: Type.Optional(
      Type.String({
        pattern: EXEC_ID_PATTERN,
        description:
          "chosen by the caller, so that a retry after a lost response never runs the command twice",
      }),
    ),
    command: Type.Optional(
      Type.String({ minLength: 1, maxLength: 131_072, description: "run by /bin/sh -c" }),
    ),
    argv: Type.Optional(Type.Array(Type.String({ maxLength: 131_072 }), { minItems: 1, maxItems: 4096 })),
    env: Type.Optional(Environment),
    cwd: Type.Optional(AbsolutePath),
    user: Type.Optional(
      Type.String({
        pattern: "^[a-z_][a-z0-9_-]{0,31}$|^[0-9]{1,5}(:[0-9]{1,5})?$",
        description: "default: uid 1000; 'root' is root inside the sandbox only",
      }),
    ),
    timeoutMs: Type.Optional(Type.Integer({ minimum: 1, maximum: 604_800_000 })),
    waitMs: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 240_000,
        description: "how long this call waits for the command to end; default 240 s",
      }),
    ),
    stdin: Type.Optional(
      Type.String({
        maxLength: 1_048_576,
        description: "text for the command's stdin, followed by end of file",
      }),
    ),
    openStdin: Type.Optional(
      Type.Boolean({ description: "keep stdin open after the given text, for POST /v1/execs/:id/stdin" }),
    ),
    tty: Type.Optional({
      ...TerminalSize,
      description: "give the command a terminal of this size; stdin stays open and all output is stdout",
    }),
    keepAwake: Type.Optional(
      Type.Boolean({
        description:
          "whether the exec keeps the sandbox awake while it runs; default true. If false, it is frozen with the sandbox and continues after the wake",
      }),
    ),
    onWake: Type.Optional(OnWake),
    detach: Type.Optional(Type.Boolean({ description: "respond with 202 as soon as the command runs" })),
    awaitReader: Type.Optional(
      Type.Boolean({
        description:
          "the caller follows the output from the start: until this reader comes, for 10 s at most, the command waits rather than drop output; not on a terminal",
      }),
    ),
  },
  { $id: "StartExec", title: "StartExec", additionalProperties: false },
);
export type StartExec = Static<typeof StartExec>;

export const Exec = Type.Object(
  {
    id: Type.String(),
    sandboxId: Type.String(),
    status: ExecStatus,
    argv: Type.Array(Type.String()),
    exitCode: Nullable(Type.Integer()),
    signal: Nullable(Type.String()),
    cause: Nullable(Cause),
    dispatched: Dispatched,
    createdAt: Timestamp,
    startedAt: Nullable(Timestamp),
    endedAt: Nullable(Timestamp),
    timeoutMs: Nullable(Type.Integer()),
    tty: Type.Boolean({ description: "whether the command has a terminal" }),
    keepAwake: Type.Boolean({ description: "whether the exec keeps its sandbox awake" }),
    suspended: Type.Boolean({
      description: "true while the exec is frozen with its sandbox in standby; it continues after the wake",
    }),
    keptUntil: Nullable(
      Type.String({
        format: "date-time",
        description: "until when the id is valid and the output readable; null while the exec runs",
      }),
    ),
    stdout: Type.Optional(
      Type.String({
        description: "present on calls that waited; decoded as UTF-8, the journal has the exact bytes",
      }),
    ),
    stderr: Type.Optional(Type.String()),
    truncated: Type.Boolean({
      description: "true if stdout or stderr above is incomplete, or the beginning of the output was dropped",
    }),
    cursor: Type.String({ description: "end of the output known to this response" }),
  },
  { $id: "Exec", title: "Exec" },
);
export type Exec = Static<typeof Exec>;

export const ExecList = List(Exec, "ExecList");
export type ExecList = Static<typeof ExecList>;

/**
 * One line of a streamed exec. If a stream ends without an `end` record, the client reconnects with the last cursor.
 */
export const StreamRecord = Type.Union(
  [
    Type.Object({ type: Type.Literal("start"), cursor: Type.String(), exec: Type.Ref("Exec") }),
    Type.Object({
      type: OneOf(["stdout", "stderr"]),
      cursor: Type.String({ description: "the position after this chunk" }),
      at: Timestamp,
      data: Type.String({ description: "base64" }),
    }),
    Type.Object({
      type: Type.Literal("keepalive"),
      cursor: Type.String(),
      suspended: Type.Optional(
        Type.Boolean({ description: "true while the sandbox is in standby and the exec is frozen with it" }),
      ),
    }),
    Type.Object({ type: Type.Literal("end"), cursor: Type.String(), exec: Type.Ref("Exec") }),
  ],
  { $id: "StreamRecord", title: "StreamRecord" },
);

/** The output streams of an exec that a reader can select. */
export const OUTPUT_STREAMS = ["stdout", "stderr"] as const;
export type OutputStream = (typeof OUTPUT_STREAMS)[number];

export type StreamRecord =
  | { type: "start"; cursor: string; exec: Exec }
  | { type: "stdout" | "stderr"; cursor: string; at: string; data: string }
  | { type: "keepalive"; cursor: string; suspended?: boolean }
  | { type: "end"; cursor: string; exec: Exec };
