import { Failure } from "../failure.ts";

/** Local files that commands read. */

const REASONS: Readonly<Record<string, (path: string) => string>> = {
  ENOENT: (path) => `there is no file ${path}`,
  EACCES: (path) => `${path} cannot be read: permission denied`,
  EISDIR: (path) => `${path} is a directory`,
};

/** The failure to read a local file, in words; the system's own message repeats the path and names its call. */
export function unreadable(path: string, error: unknown): Failure {
  const { code = "", message } = error as NodeJS.ErrnoException;
  return new Failure(REASONS[code]?.(path) ?? `cannot read ${path}: ${message}`);
}
