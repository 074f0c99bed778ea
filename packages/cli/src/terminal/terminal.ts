import { execFileSync } from "node:child_process";
import type { TerminalSize } from "@holdfast/sdk";
import { usage } from "../failure.ts";
import { exitCodeOf } from "../interrupt.ts";

const USUAL_SIZE: TerminalSize = { cols: 80, rows: 24 };
const LONGEST_SIDE = 4_096;
const STTY_MS = 2_000;

/** The current size of the local terminal. If there is no terminal, a usual size. */
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

/** Environment variables that describe the local terminal to programs in the sandbox. */
export const terminalEnv = (): Record<string, string> => ({
  TERM: process.env.TERM || "xterm",
  ...(process.env.COLORTERM ? { COLORTERM: process.env.COLORTERM } : {}),
});

/**
 * Puts the local terminal in raw mode, without echo, line editing or signals: every key goes to the command. The
 * terminal is restored on disposal, at the latest when the process exits; only SIGKILL prevents that.
 */
export class RawMode implements Disposable {
  readonly #restore = () => {
    process.stdin.setRawMode(false);
  };
  /** Sets raw mode again after SIGCONT, because the shell has used the terminal while the CLI was stopped. */
  readonly #again = () => {
    process.stdin.setRawMode(false);
    makeRaw();
  };
  /**
   * Exits on SIGQUIT. The signal's default action would leave the terminal in raw mode, and no command of the CLI
   * handles the signal.
   */
  readonly #quit = () => process.exit(exitCodeOf("SIGQUIT"));

  constructor() {
    process.on("exit", this.#restore);
    process.on("SIGCONT", this.#again);
    process.on("SIGQUIT", this.#quit);
    // If the terminal was closed, it can't be restored. The readers of stdin notice the close themselves, so the error
    // is ignored.
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
 * Puts the terminal into raw mode. Node's raw mode still converts every written LF to CR LF, which garbles the output
 * of programs that move the cursor with LF, so stty switches the conversion off. Node restores it when raw mode ends.
 */
function makeRaw(): void {
  process.stdin.setRawMode(true);
  try {
    execFileSync("stty", ["-opost"], { stdio: ["inherit", "ignore", "ignore"], timeout: STTY_MS });
  } catch {
    // The error is ignored, because most programs look right even if stty fails.
  }
}
