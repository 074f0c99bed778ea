import { Failure } from "../failure.ts";

/** Messages for the usual errors when a local file is read, by error code. */
const REASONS: Readonly<Record<string, (path: string) => string>> = {
  ENOENT: (path) => `there is no file ${path}`,
  EACCES: (path) => `${path} cannot be read: permission denied`,
  EISDIR: (path) => `${path} is a directory`,
};

/**
 * Converts an error from reading a local file to a message for users. Node's own message contains the name of the
 * system call.
 */
export function unreadable(path: string, error: unknown): Failure {
  const { code = "", message } = error as NodeJS.ErrnoException;
  return new Failure(REASONS[code]?.(path) ?? `cannot read ${path}: ${message}`);
}
