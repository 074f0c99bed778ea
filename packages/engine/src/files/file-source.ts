import type { FileChange } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import { releaseOnEnd } from "../lib/release-on-end.ts";
import type { ReadOptions } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import type { FileAccess, WriteOptions } from "../ports/index.ts";

export type Reading = Pick<FileAccess, "stat" | "list" | "read">;
/** Wraps a body so that the file access is closed only after the body has been read. */
type CloseAfter = <Part>(body: AsyncIterable<Part>) => AsyncIterable<Part>;
export type Work<Files, Result> = (
  files: Files,
  signal: AbortSignal,
  closeAfter: CloseAfter,
) => Promise<Result>;

/** What a file call acts on. */
export interface Target {
  /** The sandbox or drive, by id or name. */
  ref: string;
  path: string;
  /** Whether the call has a deadline. False for a transfer, which may take any time as long as bytes move. */
  bounded?: boolean;
}

export interface ReadTarget extends Target, ReadOptions {
  /** Whether the call also reads everything below the path. */
  deep?: boolean;
}

/**
 * A source of files: a sandbox or a drive. It opens the file access for a call, closes it afterwards, and translates
 * errors.
 */
export interface FileSource {
  /** The owner of new files; null if the file access decides. Existing files keep their owner. */
  readonly owner: Pick<Required<WriteOptions>, "uid" | "gid"> | null;
  /** Whether the path is reserved, so that callers may not access it. */
  isReserved(path: string): boolean;
  /** Whether recursive operations (search, archive) skip this path. */
  isSkipped(path: string): boolean;
  call<Result>(target: Target, signal: AbortSignal, work: Work<FileAccess, Result>): Promise<Result>;
  /** Runs a call that only reads. */
  reading<Result>(target: ReadTarget, signal: AbortSignal, work: Work<Reading, Result>): Promise<Result>;
  watch(
    target: Target,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

/** Runs the work under the deadline of a file call, unless the target has no deadline (`bounded` is false). */
export function withDeadline<Result>(
  { clock, numbers }: EngineContext,
  { bounded = true }: Pick<Target, "bounded">,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  if (!bounded) return work(signal);
  return within(clock, { ms: numbers.keeperCallMs, what: "the file call", signal }, work);
}

/** Calls `release` when the work is done or, if the work returns a body, when the body has been read. */
export async function releaseAfter<Result>(
  release: () => void,
  signal: AbortSignal,
  work: (closeAfter: CloseAfter) => Promise<Result>,
): Promise<Result> {
  let hasBody = false;
  try {
    return await work((body) => {
      hasBody = true;
      return releaseOnEnd(body, release, signal);
    });
  } finally {
    if (!hasBody) release();
  }
}
