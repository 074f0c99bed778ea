import { RawMode, terminalSize } from "./terminal.ts";

/** The other screen, without a cursor, and without wrapping: what is too wide is cut by the terminal, which knows how wide it is. */
const ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME = "\x1b[H";
const END_OF_LINE = "\x1b[K";
const END_OF_SCREEN = "\x1b[J";

/**
 * Our terminal as a page that is written anew, with keys that are read one by one. Whichever way we end but by SIGKILL, it is
 * given back as it was.
 */
export class LiveScreen implements Disposable {
  readonly #raw = new RawMode();
  readonly #onKey: (key: string) => void;
  readonly #draw: (rows: number) => readonly string[];
  readonly #leave = () => {
    process.stdout.write(LEAVE);
  };
  readonly #read = (typed: Buffer) => {
    for (const key of typed.toString("latin1")) this.#onKey(key);
  };
  readonly #again = () => {
    process.stdout.write(ENTER);
    this.show();
  };
  readonly #resized = () => this.show();

  constructor(parts: { onKey: (key: string) => void; draw: (rows: number) => readonly string[] }) {
    this.#onKey = parts.onKey;
    this.#draw = parts.draw;
    process.stdout.write(ENTER);
    process.on("exit", this.#leave);
    process.on("SIGCONT", this.#again);
    process.stdout.on("resize", this.#resized);
    process.stdin.on("data", this.#read).resume();
  }

  /** Draws the page as large as the terminal is now. */
  show(): void {
    const { rows } = terminalSize();
    const lines = this.#draw(rows).slice(0, rows);
    const page = lines.map((line) => `${line}${END_OF_LINE}`).join("\r\n");
    process.stdout.write(`${HOME}${page}${END_OF_SCREEN}`);
  }

  [Symbol.dispose](): void {
    process.stdin.off("data", this.#read).pause();
    process.stdout.off("resize", this.#resized);
    process.off("SIGCONT", this.#again);
    process.off("exit", this.#leave);
    this.#leave();
    this.#raw[Symbol.dispose]();
  }
}
