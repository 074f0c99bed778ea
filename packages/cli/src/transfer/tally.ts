import { printable, size } from "./table.ts";

/** What a copy has done so far, for the progress line; and what it left out, which is said aloud. */
export class Tally {
  readonly #show: (text: string) => void;
  #entries = 0;
  #bytes = 0;
  #skipped = 0;

  constructor(show: (text: string) => void) {
    this.#show = show;
  }

  get skipped(): number {
    return this.#skipped;
  }

  done(): void {
    this.#entries += 1;
    this.#update();
  }

  skip(path: string, why: string): void {
    this.#skipped += 1;
    process.stderr.write(`holdfast: skipped ${printable(path)}: it is ${why}\n`);
  }

  async *counted(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const piece of pieces) {
      this.#bytes += piece.length;
      this.#update();
      yield piece;
    }
  }

  #update(): void {
    this.#show(`copying, ${this.#entries} done, ${size(this.#bytes)}`);
  }
}
