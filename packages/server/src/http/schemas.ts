/** Schemas of requests and responses that exist only on the wire, and parts shared by many routes. */
import { type Static, type TSchema, Type } from "@fastify/type-provider-typebox";
import {
  AbsolutePath,
  ErrorBody,
  EVENT_TYPES,
  Event,
  EXEC_ID_PATTERN,
  FileChange,
  Nullable,
  OneOf,
  OUTPUT_STREAMS,
  Sandbox,
  Timestamp,
} from "@holdfast/contract";

export const MAX_LIMIT = 1_000;
const DEFAULT_LIMIT = 100;

export const SandboxRef = Type.Object({
  ref: Type.String({ minLength: 1, maxLength: 64, description: "id or name of a sandbox" }),
});

export const DriveRef = Type.Object({
  ref: Type.String({ minLength: 1, maxLength: 64, description: "id or name of a drive" }),
});

export const ExecRef = Type.Object({ id: Type.String({ pattern: EXEC_ID_PATTERN }) });
export type ExecRef = Static<typeof ExecRef>;

export const Page = {
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: DEFAULT_LIMIT })),
  cursor: Type.Optional(
    Type.String({ minLength: 1, maxLength: 256, description: "`nextCursor` of the previous page" }),
  ),
};
export const pageOf = (query: { limit?: number; cursor?: string }) => ({
  limit: query.limit ?? DEFAULT_LIMIT,
  cursor: query.cursor,
});

export const LabelQuery = {
  label: Type.Optional(
    Type.Array(Type.String({ maxLength: 512 }), {
      maxItems: 64,
      description: "key=value; all must match",
    }),
  ),
};

export const PathQuery = { path: AbsolutePath };

export const ReadQuery = {
  ...PathQuery,
  wake: Type.Optional(
    Type.Boolean({ default: true, description: "false: fail instead of waking a sandbox in standby" }),
  ),
};
export const readOptionsOf = (query: { wake?: boolean }) => ({ wake: query.wake ?? true });

export const DrivePathQuery = {
  path: Type.String({
    minLength: 1,
    maxLength: 4_096,
    description: "an absolute path in the drive, without `..`",
  }),
};

export const CONTEXT_LINES_MAX = 50;

export const SearchQuery = {
  name: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 1_024,
      description:
        "a glob for file names or, if it contains a slash, for paths below the directory. As in a shell, `*` does not match names that begin with a dot",
    }),
  ),
  content: Type.Optional(
    Type.String({ minLength: 1, maxLength: 1_024, description: "text that a line of the file must contain" }),
  ),
  regex: Type.Optional(
    Type.Boolean({ default: false, description: "treat `content` as a JavaScript regular expression" }),
  ),
  ignoreCase: Type.Optional(
    Type.Boolean({ default: false, description: "match `content` case-insensitively" }),
  ),
  contextLines: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: CONTEXT_LINES_MAX,
      default: 0,
      description: "number of lines to return before and after each match",
    }),
  ),
  exclude: Type.Optional(
    Type.Array(Type.String({ maxLength: 255 }), {
      maxItems: 64,
      description: "name of directories to skip; may be repeated",
    }),
  ),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000, default: 1_000 })),
};

export const Mode = Type.String({ pattern: "^[0-7]{3,4}$", description: "permissions in octal" });
export const parseMode = (mode: string | undefined): number | undefined =>
  mode === undefined ? undefined : Number.parseInt(mode, 8);

export const IdempotencyHeaders = Type.Object({
  "idempotency-key": Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 255,
      description: "repeating a request with the same key never creates a second resource",
    }),
  ),
});

export const OutputQuery = {
  cursor: Type.Optional(
    Type.String({ minLength: 1, maxLength: 160, description: "cursor to resume from; default: the start" }),
  ),
  stream: Type.Optional(
    OneOf(OUTPUT_STREAMS, { description: "return only this stream; cursors are valid for both" }),
  ),
  hold: Type.Optional(
    Type.Boolean({
      description:
        "whether the command waits for this reader, if it follows the exec, rather than drop output that the reader has not taken; default: true, except for a command on a terminal and for a named process",
    }),
  ),
};

export const SignalExec = Type.Object(
  {
    signal: Type.String({
      pattern: "^[A-Z][A-Z0-9]{1,12}$",
      description: "signal name, such as SIGINT or INT",
    }),
  },
  { $id: "SignalExec", title: "SignalExec", additionalProperties: false },
);

export const StdinAccepted = Type.Object(
  { accepted: Type.Integer({ description: "stdin offset reached so far; continue from this offset" }) },
  { $id: "StdinAccepted", title: "StdinAccepted" },
);

export const MakeDirectory = Type.Object(
  {
    path: AbsolutePath,
    mode: Type.Optional(Mode),
    parents: Type.Optional(
      Type.Boolean({
        default: true,
        description: "create missing parent directories; succeed if the directory already exists",
      }),
    ),
  },
  { $id: "MakeDirectory", title: "MakeDirectory", additionalProperties: false },
);

export const MoveFile = Type.Object(
  {
    from: AbsolutePath,
    to: AbsolutePath,
    overwrite: Type.Optional(Type.Boolean({ default: false })),
  },
  { $id: "MoveFile", title: "MoveFile", additionalProperties: false },
);

/** One record of a file watch. */
export const WatchRecord = Type.Union(
  [
    Type.Object({
      type: Type.Literal("start", { description: "the watch is established; later changes are not missed" }),
      path: Type.String(),
    }),
    Type.Object({ type: Type.Literal("change"), ...FileChange.properties }),
    Type.Object({ type: Type.Literal("keepalive") }),
    Type.Object({ type: Type.Literal("end"), error: ErrorBody.properties.error }),
  ],
  {
    $id: "WatchRecord",
    title: "WatchRecord",
    description:
      "the last record is an `end` with the reason; a stream without one was cut. In both cases watch again and re-read the directory",
  },
);
export type WatchRecord = Static<typeof WatchRecord>;

/** One record of an event stream. */
export const EventRecord = Type.Union(
  [
    Type.Object({
      type: OneOf(["start", "keepalive"], { description: "`start` is always the first record" }),
      cursor: Type.String({ description: "all matching events up to this cursor were sent" }),
    }),
    Type.Object({ type: Type.Literal("event"), cursor: Type.String(), event: Event }),
    Type.Object({ type: Type.Literal("end"), error: Nullable(ErrorBody.properties.error) }),
  ],
  {
    $id: "EventRecord",
    title: "EventRecord",
    description:
      "as server-sent events, `id` is the cursor, `event` is the record type (for timeline events, the type of the event), and `data` is the record (for timeline events, the event alone). The last record is an `end`, with a null error if `until` was reached; a stream without one was cut. Reconnect with the last cursor",
  },
);
export type EventRecord = Static<typeof EventRecord>;

export const TimeQuery = {
  since: Type.Optional(
    Type.String({ maxLength: 64, description: "start of the time range (inclusive), ISO 8601" }),
  ),
  until: Type.Optional(
    Type.String({ maxLength: 64, description: "end of the time range (exclusive), ISO 8601" }),
  ),
};

export const EventQuery = {
  exec: Type.Optional(Type.String({ pattern: EXEC_ID_PATTERN })),
  drive: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a drive" })),
  type: Type.Optional(Type.Array(Type.String(), { description: `any of: ${EVENT_TYPES.join(", ")}` })),
  ...TimeQuery,
  order: Type.Optional(
    OneOf(["oldest", "newest"], {
      description: "sort order; default: oldest first. Not available for streams",
    }),
  ),
};

const RunningProcess = Type.Object(
  {
    pid: Type.Integer({ description: "pid inside the sandbox" }),
    parent: Type.Integer(),
    uid: Type.Integer(),
    state: Type.String(),
    cpuMs: Type.Number(),
    rssBytes: Type.Number(),
    name: Type.String(),
    commandLine: Type.String(),
    execId: Type.String({ description: "id of the exec the process belongs to, or empty" }),
  },
  { $id: "RunningProcess", title: "RunningProcess" },
);
export const RunningProcessList = Type.Object(
  { items: Type.Array(RunningProcess) },
  { $id: "RunningProcessList", title: "RunningProcessList" },
);
export type RunningProcessList = Static<typeof RunningProcessList>;

export const Cleanup = Type.Object(
  {
    dryRun: Type.Optional(
      Type.Boolean({ default: false, description: "report what would be removed without removing it" }),
    ),
  },
  { $id: "Cleanup", title: "Cleanup", additionalProperties: false },
);
export type Cleanup = Static<typeof Cleanup>;

/** One record of a streamed create. */
export const CreateRecord = Type.Union(
  [
    Type.Object({
      type: Type.Literal("progress"),
      step: Type.String({
        description:
          "accepted, waiting (for a launch slot), launching, checkpoint (of a fork), files, root, memory (of a fork), runtime, keeper, proving, ready; more may be added",
      }),
      at: Timestamp,
    }),
    Type.Object({ type: Type.Literal("keepalive") }),
    Type.Object({
      type: Type.Literal("sandbox"),
      sandbox: Sandbox,
      existed: Type.Boolean({ description: "the sandbox existed before this request" }),
    }),
    Type.Object({ type: Type.Literal("error"), error: ErrorBody.properties.error }),
  ],
  {
    $id: "CreateRecord",
    title: "CreateRecord",
    description:
      "the last record is a `sandbox` or an `error`; its type gives the outcome, regardless of the HTTP status",
  },
);
export type CreateRecord = Static<typeof CreateRecord>;

/** Describes a response of bytes for the API document. It is used for handlers that write to the socket themselves. */
export const bytes = (description: string): TSchema =>
  Type.Unsafe<unknown>({ type: "string", format: "binary", description });
