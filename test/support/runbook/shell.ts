import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { CLI, type TestServer } from "../server/test-server.ts";

const LONGEST_MS = 60_000;

/** Runs commands as an operator types them: bash, curl and `holdfast`, with the few variables that the runbook uses. */
export class Shell implements Disposable {
  readonly #home = mkdtempSync(join(tmpdir(), "holdfast-runbook-"));
  readonly #server: TestServer;
  readonly #env: NodeJS.ProcessEnv;

  constructor(server: TestServer, env: Record<string, string> = {}) {
    this.#server = server;
    this.#env = env;
    const holdfast = `#!/bin/sh\nexec "${process.execPath}" "${CLI}" "$@"\n`;
    writeFileSync(join(this.#home, "holdfast"), holdfast, { mode: 0o755 });
  }

  /** Runs commands; the first that fails ends the run, also in a pipe. */
  async run(commands: string): Promise<{ code: number | null; output: string }> {
    const { PATH = "" } = process.env;
    const child = spawn("bash", ["-euo", "pipefail", "-c", commands], {
      cwd: this.#home,
      env: {
        ...this.#server.env,
        HOLDFAST_URL: this.#server.url,
        HOLDFAST_API_KEY: this.#server.key,
        PATH: [this.#home, dirname(process.execPath), PATH].join(delimiter),
        ...this.#env,
      },
      stdio: ["ignore", "pipe", "pipe"],
      timeout: LONGEST_MS,
      killSignal: "SIGKILL",
    });
    let output = "";
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding("utf8").on("data", (text: string) => {
        output += text;
      });
    const [code] = (await once(child, "close")) as [number | null];
    return { code, output };
  }

  [Symbol.dispose](): void {
    rmSync(this.#home, { recursive: true, force: true });
  }
}
