/** The error code of a failed system call, such as "ENOENT"; "" for any other error. */
export const errnoOf = (error: unknown): string =>
  error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "";

/** Whether the error means that a path, process or cgroup does not exist, or disappeared while it was being read. */
export const isGone = (error: unknown): boolean => ["ENOENT", "ESRCH", "ENODEV"].includes(errnoOf(error));
