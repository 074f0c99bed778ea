import { execFileSync } from "node:child_process";
import type { TerminalSize } from "@holdfast/sdk";
import { usage } from "./failure.ts";
import { exitCodeOf } from "./interrupt.ts";

const USUAL_SIZE: TerminalSize = { cols: 80, rows: 24 };
const LONGEST_SIDE = 4_096;
const STTY_MS = 2_000;

/** The terminal that we run on, as large as it is now. */
export function terminalSize(): TerminalSize {
  const shown = [process.stdout, process.stderr].find(({ isTTY }) => isTTY);
  return {
    cols: side(shown?.columns) ?? USUAL_SIZE.cols,
    rows: side(shown?.rows) ?? USUAL_SIZE.rows,
  };
}

const side = (length: number | undefined): number | null =>
  length !== undefined && length > 0 ? Math.min(length, LONGEST_SIDE) : null;

export function requireTerminal(hint: string): void {
  if (!process.stdin.isTTY) throw usage("the input device is not a TTY", hint);
}

/** What programs inside may know of our terminal. */
export const terminalEnv = (): Record<string, string> => ({
  TERM: process.env.TERM || "xterm",
  ...(process.env.COLORTERM ? { COLORTERM: process.env.COLORTERM } : {}),
});

/**
 * Our terminal without echo, line editing or signals of its own: every key goes to the command. Whichever way we end but by
 * SIGKILL, it is given back as it was: that is done on disposal, and at the latest when the process exits.
 */
export class RawMode implements Disposable {
  readonly #restore = () => {
    process.stdin.setRawMode(false);
  };
  /** While we were stopped, the shell had the terminal. */
  readonly #again = () => {
    process.stdin.setRawMode(false);
    makeRaw();
  };
  /** No command uses this signal, and its default would leave the terminal as it is. */
  readonly #quit = () => process.exit(exitCodeOf("SIGQUIT"));

  constructor() {
    process.on("exit", this.#restore);
    process.on("SIGCONT", this.#again);
    process.on("SIGQUIT", this.#quit);
    // A terminal that was closed can't be given back; whoever reads from it notices.
    process.stdin.on("error", () => {});
    makeRaw();
  }

  [Symbol.dispose](): void {
    process.off("exit", this.#restore);
    process.off("SIGCONT", this.#again);
    process.off("SIGQUIT", this.#quit);
    this.#restore();
  }
}

/**
 * Node's raw mode still makes CR LF of every LF that is written, which garbles programs that move the cursor by it; stty can
 * switch that off. Leaving raw mode brings back all that was before it, this included.
 */
function makeRaw(): void {
  process.stdin.setRawMode(true);
  try {
    execFileSync("stty", ["-opost"], { stdio: ["inherit", "ignore", "ignore"], timeout: STTY_MS });
  } catch {
    // Without stty most programs still look right.
  }
}
