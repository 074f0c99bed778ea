/**
 * A reader for which a command waits. The reader is present, or it is absent and expected to come (for the first time
 * or again).
 */
export interface HeldReader {
  /** The reader has taken the output before this position. */
  cursor: number;
  /** When the command stops waiting for this reader. */
  until: number;
  isHere: boolean;
}

/** The output that the keeper must not drop before the time `until`: everything from position `cursor` on. */
export interface Hold {
  cursor: number;
  until: number;
}

/**
 * Returns one hold for all readers whose `until` has not passed: from the position of the slowest of them, until the
 * latest `until`. Returns null if there is no such reader.
 */
export function holdOf(readers: Iterable<HeldReader>, now: number): Hold | null {
  const counting = [...readers].filter(({ until }) => until > now);
  if (counting.length === 0) return null;
  return {
    cursor: Math.min(...counting.map(({ cursor }) => cursor)),
    until: Math.max(...counting.map(({ until }) => until)),
  };
}

/**
 * Returns the time until which the command waits for a reader that has left: at most `returnMs` from now, and never
 * later than if the reader had stayed.
 */
export const untilReturn = ({ until }: HeldReader, now: number, returnMs: number): number =>
  Math.min(until, now + returnMs);

/**
 * Decides which absent reader has come back when a reader arrives at `cursor`: the one with the nearest position.
 * Returns null if no reader is absent. The positions may differ: if a connection broke while output was in transit, the
 * reader comes back at an earlier position than the server had sent.
 */
export function absentNear<Reader extends HeldReader>(
  readers: Iterable<Reader>,
  cursor: number,
): Reader | null {
  let nearest: Reader | null = null;
  const distance = (reader: Reader) => Math.abs(reader.cursor - cursor);
  for (const reader of readers) {
    if (!reader.isHere && (nearest === null || distance(reader) < distance(nearest))) nearest = reader;
  }
  return nearest;
}
