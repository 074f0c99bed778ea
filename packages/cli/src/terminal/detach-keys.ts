import { InvalidArgumentError } from "commander";

/** Keys that leave a terminal and let its command run on: as bytes, in order. */
export type DetachKeys = readonly number[];

/** As docker has them. */
export const DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q";

/** "ctrl-p,ctrl-q", "ctrl-],x": keys one after the other. "none": there are none. */
export function detachKeys(text: string): DetachKeys {
  return text === "none" ? [] : text.split(",").map(byteOf);
}

function byteOf(key: string): number {
  const [, name] = /^ctrl-([a-z@[\\\]^_])$/.exec(key) ?? [];
  if (name !== undefined) return name.toUpperCase().charCodeAt(0) & 0x1f;
  if (/^[\x21-\x7e]$/.test(key)) return key.charCodeAt(0);
  throw new InvalidArgumentError("Use keys such as ctrl-p,ctrl-q or ctrl-],x, or none.");
}

/** Finds the keys in what is typed, and holds back what may be their beginning. */
export class DetachWatch {
  readonly #keys: DetachKeys;
  #held: number[] = [];

  constructor(keys: DetachKeys) {
    this.#keys = keys;
  }

  get isHolding(): boolean {
    return this.#held.length > 0;
  }

  /** What goes to the command; behind the keys nothing does. */
  feed(typed: Uint8Array): { passed: Buffer; isDetached: boolean } {
    if (this.#keys.length === 0) return { passed: Buffer.from(typed), isDetached: false };
    const passed: number[] = [];
    for (const byte of typed) {
      this.#held.push(byte);
      while (!this.#held.every((held, at) => held === this.#keys[at]))
        passed.push(...this.#held.splice(0, 1));
      if (this.#held.length === this.#keys.length) return { passed: Buffer.from(passed), isDetached: true };
    }
    return { passed: Buffer.from(passed), isDetached: false };
  }

  /** What was held back, after all. */
  release(): Buffer {
    return Buffer.from(this.#held.splice(0));
  }
}
