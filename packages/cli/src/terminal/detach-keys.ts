import { InvalidArgumentError } from "commander";

/** The key sequence that detaches from a terminal, as bytes. */
export type DetachKeys = readonly number[];

/** The default detach keys, the same as docker's. */
export const DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q";

/** Parses a key sequence such as "ctrl-p,ctrl-q" or "ctrl-],x"; "none" disables detaching. */
export function detachKeys(text: string): DetachKeys {
  return text === "none" ? [] : text.split(",").map(byteOf);
}

function byteOf(key: string): number {
  const [, name] = /^ctrl-([a-z@[\\\]^_])$/.exec(key) ?? [];
  if (name !== undefined) return name.toUpperCase().charCodeAt(0) & 0x1f;
  if (/^[\x21-\x7e]$/.test(key)) return key.charCodeAt(0);
  throw new InvalidArgumentError("Use keys such as ctrl-p,ctrl-q or ctrl-],x, or none.");
}

/**
 * Finds the detach sequence in typed input. A key that may begin the sequence is not sent to the command until later
 * keys show whether it belongs to the sequence.
 */
export class DetachWatch {
  readonly #keys: DetachKeys;
  #held: number[] = [];

  constructor(keys: DetachKeys) {
    this.#keys = keys;
  }

  get isHolding(): boolean {
    return this.#held.length > 0;
  }

  /** Returns the bytes to send to the command. Input after the detach sequence is dropped. */
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

  /** Returns the bytes that are held back, so that they can be sent to the command. */
  release(): Buffer {
    return Buffer.from(this.#held.splice(0));
  }
}
