import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { TestServer } from "../server/test-server.ts";

const LONG_MS = 90_000;
const OUTPUT_BYTES = 64 * 1_048_576;

/**
 * A server, and the published Blaxel client in separate processes, because the client reads its environment when it is
 * imported.
 */
export class BlaxelStage implements AsyncDisposable {
  readonly server: TestServer;
  /** Working directory and home of the client, which reads files in both. */
  readonly home = mkdtempSync(join(tmpdir(), "holdfast-blaxel-"));

  private constructor(server: TestServer) {
    this.server = server;
  }

  static async start(): Promise<BlaxelStage> {
    return new BlaxelStage(await TestServer.start());
  }

  environment(key = this.server.key): NodeJS.ProcessEnv {
    const { url } = this.server;
    return {
      PATH: process.env.PATH,
      HOME: this.home,
      HOLDFAST_URL: url,
      HOLDFAST_API_KEY: this.server.key,
      BL_API_URL: `${url}/compat/blaxel/v0`,
      BL_RUN_URL: `${url}/compat/blaxel/run`,
      BL_API_KEY: key,
      BL_WORKSPACE: "demo",
      BL_DISABLE_H2: "1",
      DO_NOT_TRACK: "1",
    };
  }

  /** Runs a script and returns the result, which is the last line that it prints. */
  async play<Result>(
    script: string,
    args: readonly string[],
    { key, timeoutMs = LONG_MS }: { key?: string | undefined; timeoutMs?: number } = {},
  ): Promise<Result> {
    const options = {
      cwd: this.home,
      env: this.environment(key),
      timeout: timeoutMs,
      maxBuffer: OUTPUT_BYTES,
    };
    const { stdout } = await promisify(execFile)(process.execPath, [script, ...args], options);
    return JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "") as Result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.server[Symbol.asyncDispose]();
    rmSync(this.home, { recursive: true, force: true });
  }
}
