import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";

const PATIENCE_MS = 30_000;

/** Simulates a user at a real terminal, created by script(1), in which a shell runs one line. */
export class Typist implements AsyncDisposable {
  readonly #script: ChildProcess;
  readonly #ended: Promise<unknown>;
  #shown = "";
  /** Number of characters of the output up to the end of the last match of `sees`. */
  #read = 0;

  /** Starts the shell, which sets the size of the terminal and then runs the line. */
  constructor(line: string, options: { env: NodeJS.ProcessEnv; cwd: string }) {
    // The shell ignores Ctrl-C, so that it survives Ctrl-C and can report the program's exit code.
    const whole = `trap : INT; tty; stty rows 40 cols 100; ${line}`;
    this.#script = spawn("script", ["-qfc", whole, "/dev/null"], { ...options, stdio: "pipe" });
    this.#script.stdout?.on("data", (piece: Buffer) => {
      this.#shown += piece.toString();
    });
    this.#script.stdin?.on("error", () => {});
    this.#ended = once(this.#script, "close");
  }

  type(keys: string): void {
    this.#script.stdin?.write(keys);
  }

  /** Waits until the output after the last match contains `what`, and returns that output up to the match. */
  async sees(what: string | RegExp): Promise<string> {
    const pattern = typeof what === "string" ? new RegExp(escaped(what)) : what;
    const deadline = performance.now() + PATIENCE_MS;
    for (;;) {
      const fresh = this.#shown.slice(this.#read);
      const found = pattern.exec(fresh);
      if (found !== null) {
        const end = found.index + found[0].length;
        this.#read += end;
        return fresh.slice(0, end);
      }
      if (performance.now() > deadline)
        throw new Error(`${pattern} was not shown, but: ${JSON.stringify(fresh)}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Resizes the terminal. */
  async resize(rows: number, cols: number): Promise<void> {
    const [, tty = ""] = /(\/dev\/pts\/\d+)/.exec(this.#shown) ?? [];
    execFileSync("stty", ["-F", tty, "rows", String(rows), "cols", String(cols)]);
  }

  /** Waits until the line has ended and returns everything shown. */
  async end(): Promise<string> {
    await this.#ended;
    return this.#shown;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#script.kill("SIGKILL");
    await this.#ended;
  }
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
