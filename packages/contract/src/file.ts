import { type Static, Type } from "typebox";
import { OneOf, Timestamp } from "./schema.ts";

export const FILE_KINDS = ["file", "directory", "symlink", "fifo", "socket", "device"] as const;

export const FileStat = Type.Object(
  {
    path: Type.String(),
    name: Type.String(),
    kind: OneOf(FILE_KINDS),
    sizeBytes: Type.Integer(),
    mode: Type.String({ pattern: "^[0-7]{4}$", description: "permissions in octal" }),
    uid: Type.Integer(),
    gid: Type.Integer(),
    modifiedAt: Timestamp,
    target: Type.Optional(Type.String({ description: "target of a symbolic link" })),
  },
  { $id: "FileStat", title: "FileStat" },
);
export type FileStat = Static<typeof FileStat>;
export type FileKind = FileStat["kind"];

export const FileList = Type.Object(
  { path: Type.String(), items: Type.Array(FileStat), truncated: Type.Boolean() },
  { $id: "FileList", title: "FileList" },
);
export type FileList = Static<typeof FileList>;

export const FileChange = Type.Object(
  {
    kind: OneOf(["created", "modified", "removed", "overflow"], {
      description:
        "modified: content or attributes changed; a move is reported as `removed` and `created`; overflow: changes were missed, list the directory again",
    }),
    path: Type.String(),
    directory: Type.Boolean(),
  },
  { $id: "FileChange", title: "FileChange" },
);
export type FileChange = Static<typeof FileChange>;

export const FileMatch = Type.Object(
  {
    ...FileStat.properties,
    lines: Type.Optional(
      Type.Array(
        Type.Object({
          line: Type.Integer({ minimum: 1 }),
          text: Type.String(),
          before: Type.Optional(
            Type.Array(Type.String(), { description: "lines before the match, with `contextLines`" }),
          ),
          after: Type.Optional(
            Type.Array(Type.String(), { description: "lines after the match, with `contextLines`" }),
          ),
        }),
        { description: "matching lines, truncated to a readable length" },
      ),
    ),
  },
  { $id: "FileMatch", title: "FileMatch" },
);
export type FileMatch = Static<typeof FileMatch>;

export const FileSearch = Type.Object(
  {
    path: Type.String(),
    items: Type.Array(FileMatch),
    truncated: Type.Boolean({ description: "true if a limit ended the search early" }),
  },
  { $id: "FileSearch", title: "FileSearch" },
);
export type FileSearch = Static<typeof FileSearch>;

export const Unpacked = Type.Object(
  { path: Type.String(), files: Type.Integer({ minimum: 0 }), bytes: Type.Integer({ minimum: 0 }) },
  { $id: "Unpacked", title: "Unpacked", description: "the result of extracting an archive" },
);
export type Unpacked = Static<typeof Unpacked>;

const RESERVED_PATH = "/.holdfast";

/**
 * Checks a path that comes from a caller; there is no other such check. Returns the path without empty and `.`
 * segments. Returns null if the path is relative, contains `..` or NUL, or is too long.
 */
export function normalisePath(path: string): string | null {
  if (!path.startsWith("/") || path.length > 4096 || path.includes("\0")) return null;
  const segments = path.split("/").filter((segment) => segment !== "" && segment !== ".");
  if (segments.includes("..") || segments.some((segment) => segment.length > 255)) return null;
  return `/${segments.join("/")}`;
}

export const isReservedPath = (path: string): boolean =>
  path === RESERVED_PATH || path.startsWith(`${RESERVED_PATH}/`);
