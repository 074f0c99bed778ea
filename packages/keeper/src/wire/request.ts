import { type Reader, WireError, type Writer } from "./wire.ts";

/**
 * How far a request may fill the link. `patient` ones may be answered late on purpose (a read that waits for output),
 * so they leave room for the others; `urgent` ones (pings, closing handles, cancelling) always get through.
 */
export type Lane = "urgent" | "normal" | "patient";

/** One request: what is sent and how the answer is read. */
export interface Ask<Answer> {
  readonly type: number;
  readonly lane: Lane;
  encode(out: Writer): void;
  /** Throws `WireError` and nothing else, whatever it is given. Leaving bytes over is the caller's check. */
  decode(from: Reader): Answer;
}

export const nothing = (): void => {};

export function ask<Answer>(
  type: number,
  encode: (out: Writer) => void,
  decode: (from: Reader) => Answer,
  lane: Lane = "normal",
): Ask<Answer> {
  return { type, lane, encode, decode };
}

/** The word for a number that counts from 1. */
export function oneOf<Word extends string>(words: readonly Word[], code: number, what: string): Word {
  const word = words[code - 1];
  if (word === undefined) throw new WireError(`${code} is no ${what}`);
  return word;
}
