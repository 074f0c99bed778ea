/** Requests and answers that exist on the wire only, and the parts that many routes share. */
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
    Type.String({ minLength: 1, maxLength: 256, description: "`nextCursor` of the page before" }),
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
    Type.Boolean({ default: true, description: "false: rather fail than wake a sleeping sandbox" }),
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
        "a glob of names or, with a slash in it, of paths below the directory. As in a shell, `*` means no name that begins with a dot",
    }),
  ),
  content: Type.Optional(
    Type.String({ minLength: 1, maxLength: 1_024, description: "text that a line of the file has in it" }),
  ),
  regex: Type.Optional(
    Type.Boolean({ default: false, description: "`content` is a regular expression, as in JavaScript" }),
  ),
  ignoreCase: Type.Optional(Type.Boolean({ default: false, description: "of `content`" })),
  contextLines: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: CONTEXT_LINES_MAX,
      default: 0,
      description: "how many lines before and after one that was found are told with it",
    }),
  ),
  exclude: Type.Optional(
    Type.Array(Type.String({ maxLength: 255 }), {
      maxItems: 64,
      description: "a name of directories that are not looked into; may be repeated",
    }),
  ),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000, default: 1_000 })),
};

export const Mode = Type.String({ pattern: "^[0-7]{3,4}$", description: "permissions in octal" });
export const parseMode = (mode: string | undefined): number | undefined =>
  mode === undefined ? undefined : Number.parseInt(mode, 8);

export const IdempotencyHeaders = Type.Object({
  "idempotency-key": Type.Optional(
    Type.String({ minLength: 1, maxLength: 255, description: "the same key never makes a second one" }),
  ),
});

export const OutputQuery = {
  cursor: Type.Optional(
    Type.String({ minLength: 1, maxLength: 160, description: "read on from here; default: from the start" }),
  ),
  stream: Type.Optional(OneOf(OUTPUT_STREAMS, { description: "only this stream; cursors stay the same" })),
};

export const SignalExec = Type.Object(
  { signal: Type.String({ pattern: "^[A-Z][A-Z0-9]{1,12}$", description: "such as SIGINT, or INT" }) },
  { $id: "SignalExec", title: "SignalExec", additionalProperties: false },
);

export const StdinAccepted = Type.Object(
  { accepted: Type.Integer({ description: "how far stdin has got; send the rest from here" }) },
  { $id: "StdinAccepted", title: "StdinAccepted" },
);

export const MakeDirectory = Type.Object(
  {
    path: AbsolutePath,
    mode: Type.Optional(Mode),
    parents: Type.Optional(
      Type.Boolean({ default: true, description: "make missing parents; an existing directory is fine" }),
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

/** One record of a watch. */
export const WatchRecord = Type.Union(
  [
    Type.Object({
      type: Type.Literal("start", { description: "from here on nothing is missed" }),
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
      "the last one is an `end` that says why; a stream without it was cut. Watch again, and look again",
  },
);
export type WatchRecord = Static<typeof WatchRecord>;

/** One record of the timeline as a stream. */
export const EventRecord = Type.Union(
  [
    Type.Object({
      type: OneOf(["start", "keepalive"], { description: "start: the first one" }),
      cursor: Type.String({ description: "all that was asked for up to here was told" }),
    }),
    Type.Object({ type: Type.Literal("event"), cursor: Type.String(), event: Event }),
    Type.Object({ type: Type.Literal("end"), error: Nullable(ErrorBody.properties.error) }),
  ],
  {
    $id: "EventRecord",
    title: "EventRecord",
    description:
      "as server-sent events: `id` is the cursor, `event` the type, of an event its own, and `data` then the event alone. The last one is an `end`, whose error is null once `until` has come; a stream without it was cut. Come back with the last cursor",
  },
);
export type EventRecord = Static<typeof EventRecord>;

export const TimeQuery = {
  since: Type.Optional(Type.String({ maxLength: 64, description: "not before this time, in ISO 8601" })),
  until: Type.Optional(Type.String({ maxLength: 64, description: "before this time, in ISO 8601" })),
};

export const EventQuery = {
  exec: Type.Optional(Type.String({ pattern: EXEC_ID_PATTERN })),
  drive: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a drive" })),
  type: Type.Optional(Type.Array(Type.String(), { description: `any of: ${EVENT_TYPES.join(", ")}` })),
  ...TimeQuery,
  order: Type.Optional(
    OneOf(["oldest", "newest"], { description: "which come first; default: the oldest. Not for streams" }),
  ),
};

export const RunningProcess = Type.Object(
  {
    pid: Type.Integer({ description: "as seen inside" }),
    parent: Type.Integer(),
    uid: Type.Integer(),
    state: Type.String(),
    cpuMs: Type.Number(),
    rssBytes: Type.Number(),
    name: Type.String(),
    commandLine: Type.String(),
    execId: Type.String({ description: "the exec it belongs to, or empty" }),
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
      Type.Boolean({ default: false, description: "remove nothing, and say what would be removed" }),
    ),
  },
  { $id: "Cleanup", title: "Cleanup", additionalProperties: false },
);
export type Cleanup = Static<typeof Cleanup>;

/** One record of a create that is streamed. */
export const CreateRecord = Type.Union(
  [
    Type.Object({
      type: Type.Literal("progress"),
      step: Type.String({
        description:
          "accepted, waiting (in line for a launch), launching, checkpoint (of a fork), files, root, memory (of a fork), runtime, keeper, proving, ready; more may be added",
      }),
      at: Timestamp,
    }),
    Type.Object({ type: Type.Literal("keepalive") }),
    Type.Object({
      type: Type.Literal("sandbox"),
      sandbox: Sandbox,
      existed: Type.Boolean({ description: "it was there before this request" }),
    }),
    Type.Object({ type: Type.Literal("error"), error: ErrorBody.properties.error }),
  ],
  {
    $id: "CreateRecord",
    title: "CreateRecord",
    description: "the last one is a `sandbox` or an `error`; the type decides, whatever the HTTP status says",
  },
);
export type CreateRecord = Static<typeof CreateRecord>;

/** Documents what a route answers with by hand: the handler writes to the socket itself. */
export const bytes = (description: string): TSchema =>
  Type.Unsafe<unknown>({ type: "string", format: "binary", description });
