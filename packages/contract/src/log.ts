import { type Static, Type } from "typebox";
import { List, Nullable, OneOf, Timestamp } from "./schema.ts";

/** The levels that are kept, least severe first. */
export const LOG_LINE_LEVELS = ["debug", "info", "warn", "error"] as const;

/** A line of the server's own log. */
export const LogLine = Type.Object(
  {
    at: Timestamp,
    level: OneOf(LOG_LINE_LEVELS),
    message: Type.String(),
    sandboxId: Nullable(Type.String()),
    execId: Nullable(Type.String()),
    driveId: Nullable(Type.String()),
    requestId: Nullable(Type.String()),
    fields: Type.Record(Type.String(), Type.Unknown(), { description: "the line's remaining fields" }),
  },
  { $id: "LogLine", title: "LogLine" },
);
export type LogLine = Static<typeof LogLine>;

export const LogList = List(LogLine, "LogList");
export type LogList = Static<typeof LogList>;

export const StoryLine = Type.Object({
  at: Timestamp,
  kind: OneOf(["event", "stdout", "stderr"]),
  text: Type.String(),
  execId: Nullable(Type.String()),
});
export type StoryLine = Static<typeof StoryLine>;

/** The recent events of a sandbox and the last output of its commands. */
export const SandboxStory = Type.Object(
  {
    sandboxId: Type.String(),
    lastActivityAt: Timestamp,
    lines: Type.Array(StoryLine, { description: "oldest first" }),
  },
  { $id: "SandboxStory", title: "SandboxStory" },
);
export type SandboxStory = Static<typeof SandboxStory>;
