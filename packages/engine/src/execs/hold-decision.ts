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
 * Returns the time until which the command waits for a reader that has left. A reader that leaves never makes the
 * command wait longer than if it had stayed.
 */
export const untilReturn = ({ until }: HeldReader, now: number, returnMs: number): number =>
  Math.min(until, now + returnMs);

/**
 * Returns the absent reader that is assumed to have come back when a reader arrives at this position: the one with the
 * nearest position. Returns null if no reader is absent. The positions may differ, because after a broken connection a
 * reader continues before the position up to which the server had sent.
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
