import { printError } from "../output/streams.ts";
import { printable, size } from "../output/table.ts";

/** Counts the progress of a copy for the progress line, and reports skipped entries on stderr. */
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

  /** Sets the counts to zero, for a copy that is started again. */
  restart(): void {
    this.#entries = 0;
    this.#bytes = 0;
    this.#skipped = 0;
  }

  done(): void {
    this.#entries += 1;
    this.#update();
  }

  /** Reports a skipped entry. `why` is a clause, such as "it is a socket". */
  skip(path: string, why: string): void {
    this.#skipped += 1;
    printError(`holdfast: skipped ${printable(path)}: ${why}\n`);
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
