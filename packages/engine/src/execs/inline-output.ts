import type { JournalRecord } from "../ports/index.ts";

/** Collects stdout and stderr as bytes, up to a limit, and decodes them once at the end. */
export class InlineOutput {
  readonly #limit: number;
  readonly #parts = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  readonly #sizes = { stdout: 0, stderr: 0 };
  truncated = false;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get full(): boolean {
    return this.#sizes.stdout >= this.#limit && this.#sizes.stderr >= this.#limit;
  }

  take({ stream, data }: JournalRecord): void {
    const room = this.#limit - this.#sizes[stream];
    if (data.length > room) this.truncated = true;
    if (room <= 0) return;
    const part = data.subarray(0, room);
    this.#parts[stream].push(part);
    this.#sizes[stream] += part.length;
  }

  text(): { stdout: string; stderr: string; truncated: boolean } {
    const { stdout, stderr } = this.#parts;
    return {
      stdout: Buffer.concat(stdout).toString("utf8"),
      stderr: Buffer.concat(stderr).toString("utf8"),
      truncated: this.truncated,
    };
  }
}
