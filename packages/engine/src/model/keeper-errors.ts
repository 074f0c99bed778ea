import { type Cause, HoldfastError } from "@holdfast/contract";
import { DeadlinePassed } from "../lib/deadline.ts";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";

/** The error of calls on a link that was closed on purpose, because its instance is being stopped or suspended. */
export class LinkUnwanted extends LinkLost {
  constructor() {
    super("the link is no longer wanted", "no");
    this.name = "LinkUnwanted";
  }
}

/** Rebuilds an error, with its chain of causes, from a stored cause. */
export function errorOf(cause: Cause): Error {
  const options = cause.cause === undefined ? {} : { cause: errorOf(cause.cause) };
  return Object.assign(new Error(cause.message, options), { code: cause.code });
}

/** Returns the message of the root cause. The outer messages only name the operations that failed because of it. */
export const rootMessage = (cause: Cause): string =>
  cause.cause === undefined ? cause.message : rootMessage(cause.cause);

/** What a call acts on: a file if `path` is set, an exec if `execId` is set, otherwise the sandbox. */
interface About {
  sandboxId?: string;
  execId?: string;
  path?: string;
}

/** Converts an error of the keeper or of the link to a `HoldfastError`. Other errors are returned unchanged. */
export function translate(error: unknown, about: About): unknown {
  const { path, ...ids } = about;
  if (error instanceof LinkUnwanted) {
    const message = "The sandbox is being deleted or suspended and accepts no calls.";
    return new HoldfastError("link_lost", { ...ids, dispatched: error.dispatched, message, cause: error });
  }
  if (error instanceof LinkLost) {
    return new HoldfastError("link_lost", {
      ...ids,
      dispatched: error.dispatched,
      message: `The link was lost: ${error.message}`,
      cause: error,
    });
  }
  if (error instanceof DeadlinePassed) {
    return new HoldfastError("deadline", { ...ids, dispatched: "unknown", message: error.message });
  }
  if (!(error instanceof KeeperRefusal)) return error;
  const message = path === undefined ? error.message : `${error.message}: ${path}`;
  // A keeper that has reached a limit refuses a request without carrying out any part of it.
  const dispatched = error.reason === "limit" ? "no" : "yes";
  return new HoldfastError(codeOf(error, about), { ...ids, dispatched, message, cause: error });
}

function codeOf({ reason, errno }: KeeperRefusal, { path, execId }: About): HoldfastError["code"] {
  if (reason === "limit")
    return path !== undefined ? "too_many_file_calls" : execId !== undefined ? "too_many_execs" : "capacity";
  if (reason !== "system") return BY_REASON[reason] ?? "internal";
  const ofPath = path === undefined ? undefined : BY_ERRNO_OF_PATH[errno ?? ""];
  return BY_ERRNO[errno ?? ""] ?? ofPath ?? "system_error";
}

const BY_REASON: Partial<Record<KeeperRefusal["reason"], HoldfastError["code"]>> = {
  no_such_exec: "exec_not_found",
  exec_conflict: "exec_conflict",
  exec_running: "wrong_state",
  below_floor: "output_dropped",
  bad_cursor: "invalid_request",
  not_regular: "not_a_file",
  reserved_path: "forbidden_path",
  too_large: "too_large",
};

/** The error code for each error number of the kernel that means the same for every call. */
const BY_ERRNO: Record<string, HoldfastError["code"]> = {
  ENOSPC: "disk_full",
  EDQUOT: "disk_full",
  EMFILE: "capacity",
  ENFILE: "capacity",
  ENOMEM: "capacity",
  EAGAIN: "capacity",
};

/** The error code for each error number of the kernel that concerns a path or the file at that path. */
const BY_ERRNO_OF_PATH: Record<string, HoldfastError["code"]> = {
  ENOENT: "file_not_found",
  ENOTDIR: "file_conflict",
  EISDIR: "file_conflict",
  EEXIST: "file_conflict",
  ENOTEMPTY: "file_conflict",
  EXDEV: "file_conflict",
  EBUSY: "file_conflict",
  ETXTBSY: "file_conflict",
  EMLINK: "file_conflict",
  ENXIO: "not_a_file",
  ENODEV: "not_a_file",
  EFBIG: "too_large",
  ELOOP: "invalid_path",
  EINVAL: "invalid_path",
  ENAMETOOLONG: "invalid_path",
  EACCES: "permission_denied",
  EPERM: "permission_denied",
  EROFS: "permission_denied",
};
