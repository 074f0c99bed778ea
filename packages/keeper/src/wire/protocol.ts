/** Constants of PROTOCOL.md. */
import type { KeeperRefusal } from "@holdfast/engine";

export const PROTOCOL = 2;

export const HEADER_BYTES = 12;
/** Maximum value of a frame's size field, which counts the bytes after that field. */
export const FRAME_LIMIT = 1_048_576 + 4_096;
/**
 * Maximum number of bytes of file content or stdin input in one frame. The frame itself may be larger, by its header
 * and other fields.
 */
export const DATA_LIMIT = 1_048_576;

export const ANSWER = 0x8000;
export const REFUSAL = 0xffff;
export const EXEC_END = 0x0100;
export const EXEC_BEGIN = 0x0101;

export const REQUEST = {
  hello: 1,
  ping: 2,
  dial: 3,
  execStart: 10,
  execRead: 11,
  execStdin: 12,
  execSignal: 13,
  execCancel: 14,
  execList: 15,
  execForget: 16,
  execResize: 17,
  execSupervise: 18,
  execSupervised: 19,
  fileStat: 20,
  fileOpen: 21,
  fileRead: 22,
  fileCreate: 23,
  fileWrite: 24,
  fileCommit: 25,
  fileClose: 26,
  dirOpen: 27,
  dirRead: 28,
  mkdir: 29,
  remove: 30,
  rename: 31,
  chmod: 32,
  chown: 33,
  symlink: 34,
  hardlink: 35,
  utimes: 36,
  watch: 37,
  watchRead: 38,
  watchEnd: 39,
  probe: 40,
  processes: 41,
  execHold: 42,
  deadline: 43,
} as const;

/** Reasons of refusals. The code of a reason is its index plus 1. */
export const REFUSAL_REASONS: readonly KeeperRefusal["reason"][] = [
  "malformed",
  "too_large",
  "unknown_type",
  "stale_generation",
  "not_greeted",
  "wrong_identity",
  "no_such_exec",
  "exec_conflict",
  "exec_running",
  "limit",
  "system",
  "bad_handle",
  "below_floor",
  "bad_cursor",
  "not_regular",
  "reserved_path",
  "not_on_disk",
];
