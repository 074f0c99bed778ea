import { print } from "../output/streams.ts";
import { RawMode, terminalSize } from "./terminal.ts";

/**
 * Switches to the alternate screen, hides the cursor, and turns off line wrapping, so that the terminal itself cuts
 * lines that are too wide.
 */
const ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME = "\x1b[H";
const END_OF_LINE = "\x1b[K";
const END_OF_SCREEN = "\x1b[J";

/**
 * Uses the whole terminal for a page that is redrawn, and reads single key presses. The terminal is restored however
 * the CLI ends, except by SIGKILL.
 */
export class LiveScreen implements Disposable {
  readonly #raw = new RawMode();
  readonly #onKey: (key: string) => void;
  readonly #draw: (rows: number) => readonly string[];
  readonly #leave = () => {
    print(LEAVE);
  };
  readonly #read = (typed: Buffer) => {
    for (const key of typed.toString("latin1")) this.#onKey(key);
  };
  readonly #again = () => {
    print(ENTER);
    this.show();
  };
  readonly #resized = () => this.show();

  constructor(parts: { onKey: (key: string) => void; draw: (rows: number) => readonly string[] }) {
    this.#onKey = parts.onKey;
    this.#draw = parts.draw;
    print(ENTER);
    process.on("exit", this.#leave);
    process.on("SIGCONT", this.#again);
    process.stdout.on("resize", this.#resized);
    process.stdin.on("data", this.#read).resume();
  }

  /** Draws the page at the terminal's current size. */
  show(): void {
    const { rows } = terminalSize();
    const lines = this.#draw(rows).slice(0, rows);
    const page = lines.map((line) => `${line}${END_OF_LINE}`).join("\r\n");
    print(`${HOME}${page}${END_OF_SCREEN}`);
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
