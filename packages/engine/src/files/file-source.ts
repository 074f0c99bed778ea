import type { FileChange } from "@holdfast/contract";
import type { ReadOptions } from "./api.ts";
import { within } from "./clock.ts";
import { heldBody } from "./held-body.ts";
import type { FileAccess, WriteOptions } from "./ports.ts";
import type { World } from "./world.ts";

export type Reading = Pick<FileAccess, "stat" | "list" | "read">;
/** Keeps what serves the files until a body that is handed out was read. */
export type Hold = <Part>(body: AsyncIterable<Part>) => AsyncIterable<Part>;
export type Work<Files, Result> = (files: Files, signal: AbortSignal, hold: Hold) => Promise<Result>;

/** What a call is about. */
export interface Target {
  /** Of the sandbox or drive. */
  ref: string;
  path: string;
  /** False: it lasts for as long as its bytes move. */
  bounded?: boolean;
}

export interface ReadTarget extends Target, ReadOptions {
  /** All that lies below the path is looked at as well. */
  deep?: boolean;
}

/** Where files are. Whatever serves them is found, held for the call and let go again; errors are in the registry's words. */
export interface FileSource {
  /** Of what is new there; null where whoever serves it knows. What exists keeps its owner. */
  readonly owner: Pick<Required<WriteOptions>, "uid" | "gid"> | null;
  /** Paths that are nobody's business. */
  isReserved(path: string): boolean;
  /** What whoever looks at all below a path above it passes by. */
  isPassedBy(path: string): boolean;
  call<Result>(target: Target, signal: AbortSignal, work: Work<FileAccess, Result>): Promise<Result>;
  /** A call that only reads. */
  reading<Result>(target: ReadTarget, signal: AbortSignal, work: Work<Reading, Result>): Promise<Result>;
  watch(
    target: Target,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

/** Under the deadline of a file call, unless it is one that has none. */
export function during<Result>(
  { clock, numbers }: World,
  { bounded = true }: Pick<Target, "bounded">,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  if (!bounded) return work(signal);
  return within(clock, { ms: numbers.keeperCallMs, what: "the file call", signal }, work);
}

/** Lets go when the work is done or, where it hands out a body, when that was read. */
export async function holding<Result>(
  release: () => void,
  signal: AbortSignal,
  work: (hold: Hold) => Promise<Result>,
): Promise<Result> {
  let isHeldOn = false;
  try {
    return await work((body) => {
      isHeldOn = true;
      return heldBody(body, release, signal);
    });
  } finally {
    if (!isHeldOn) release();
  }
}
