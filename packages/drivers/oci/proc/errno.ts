/** The kernel's name for what went wrong, or "" where it was something else. */
export const errnoOf = (error: unknown): string =>
  error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "";

/** Of a path, a process or a cgroup that is not there, also where it went away while it was being read. */
export const isGone = (error: unknown): boolean => ["ENOENT", "ESRCH", "ENODEV"].includes(errnoOf(error));
