import { type Reader, WireError, type Writer } from "./wire.ts";

/**
 * Priority of a request on a link. `patient` requests may be answered late on purpose (a read that waits for output),
 * so this lane leaves room for the other two. `urgent` requests (pings, closing handles, cancelling) are sent even when
 * the other lanes are full.
 */
export type Lane = "urgent" | "normal" | "patient";

/** Describes one kind of request: how it is encoded and how its answer is decoded. */
export interface RequestSpec<Answer> {
  readonly type: number;
  readonly lane: Lane;
  encode(out: Writer): void;
  /** Decodes the answer. Throws only `WireError`, whatever the input is. The caller checks for leftover bytes. */
  decode(from: Reader): Answer;
}

export const nothing = (): void => {};

export function request<Answer>(
  type: number,
  encode: (out: Writer) => void,
  decode: (from: Reader) => Answer,
  lane: Lane = "normal",
): RequestSpec<Answer> {
  return { type, lane, encode, decode };
}

/** Returns the word for a code. The code of a word is its index plus 1. */
export function oneOf<Word extends string>(words: readonly Word[], code: number, what: string): Word {
  const word = words[code - 1];
  if (word === undefined) throw new WireError(`${code} is not a valid ${what}`);
  return word;
}
