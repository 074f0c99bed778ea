import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type ClientOptions, Holdfast } from "@holdfast/sdk";
import { recordInstallation } from "../../setup/run.ts";
import { leftovers } from "./leftovers.ts";

const REPO = fileURLToPath(new URL("../../..", import.meta.url));
export const MAIN = join(REPO, "packages/daemon/src/main.ts");
export const CLI = join(REPO, "packages/cli/bin/holdfast.mjs");

interface ServerPlace {
  /** The state directory, created if missing. Default: a temporary directory. */
  dir?: string;
  /** Receives everything that the server prints. */
  onOutput?: (text: string) => void;
}

const ENDED_MS = 2_000;

/** A real server in a separate process, with its own state directory, that can be killed and started again. */
export class TestServer implements AsyncDisposable {
  readonly dir: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #onOutput: (text: string) => void;
  #process: ChildProcess | null = null;
  #output = "";
  url = "";
  installation = "";

  constructor(env: NodeJS.ProcessEnv = {}, { dir, onOutput = () => undefined }: ServerPlace = {}) {
    this.#env = env;
    this.#onOutput = onOutput;
    if (dir !== undefined) mkdirSync(dir, { recursive: true });
    this.dir = dir ?? mkdtempSync(join(tmpdir(), "holdfast-e2e-"));
  }

  static async start(env: NodeJS.ProcessEnv = {}, place: ServerPlace = {}): Promise<TestServer> {
    const server = new TestServer(env, place);
    await server.start();
    return server;
  }

  get env(): NodeJS.ProcessEnv {
    const { HOLDFAST_URL: _url, HOLDFAST_API_KEY: _key, ...rest } = process.env;
    return {
      ...rest,
      HOLDFAST_DIR: this.dir,
      HOLDFAST_PORT: "0",
      HOLDFAST_SELF_TEST: "0",
      HOLDFAST_LOG_LEVEL: "warn",
      ...this.#env,
    };
  }

  get pid(): number {
    return this.#process?.pid ?? 0;
  }
  get output(): string {
    return this.#output;
  }

  /** `main` and `env` apply to this start only. */
  async start(given: { main?: string; env?: NodeJS.ProcessEnv } = {}): Promise<void> {
    const env = { ...this.env, ...given.env };
    const child = spawn(process.execPath, [given.main ?? MAIN], { env, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        this.#output = (this.#output + text).slice(-20_000);
        this.#onOutput(text);
      });
    }
    const deadline = Date.now() + 50_000;
    for (;;) {
      if (child.exitCode !== null || Date.now() > deadline)
        throw new Error(`the server did not start: ${this.#output}`);
      if (await this.#isReady()) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async #isReady(): Promise<boolean> {
    try {
      const text = readFileSync(join(this.dir, "server.json"), "utf8");
      const { url, pid } = JSON.parse(text) as { url: string; pid: number };
      // The file of a killed server stays until the next server is ready, so its pid is checked.
      if (pid !== this.pid) return false;
      this.url = url;
      const answer = await fetch(`${this.url}/readyz`);
      const health = (await answer.json()) as { installation: string };
      if (this.installation !== health.installation) recordInstallation(health.installation);
      this.installation = health.installation;
      return answer.ok;
    } catch {
      return false;
    }
  }

  get key(): string {
    return readFileSync(join(this.dir, "admin.key"), "utf8").trim();
  }

  client(options: ClientOptions = {}): Holdfast {
    return new Holdfast({ url: this.url, apiKey: this.key, ...options });
  }

  fetch(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(`${this.url}${path}`, {
      ...init,
      headers: { authorization: `Bearer ${this.key}`, ...init.headers },
    });
  }

  /** The keeper's pid, as recorded by the driver. */
  keeperPid(sandboxId: string): number {
    const text = readFileSync(join(this.dir, "sandboxes", sandboxId, "instance.json"), "utf8");
    return (JSON.parse(text) as { pid: number }).pid;
  }

  async kill(signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#process;
    if (child === null || child.exitCode !== null || child.signalCode !== null)
      return child?.exitCode ?? null;
    const exited = once(child, "exit");
    child.kill(signal);
    const [code] = (await exited) as [number | null];
    return code;
  }

  /** Waits for the end of a server that is killed or kills itself; returns the signal. */
  async died(): Promise<NodeJS.Signals | null> {
    const child = this.#process;
    if (child === null) throw new Error("there is no server");
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    return child.signalCode;
  }

  leftovers(): string[] {
    return leftovers(this.installation, this.dir);
  }

  /** Returns leftovers after a grace period, because the kernel ends the server's helpers shortly after the server. */
  async #leftInTheEnd(): Promise<string[]> {
    for (const end = Date.now() + ENDED_MS; this.leftovers().length > 0 && Date.now() < end; )
      await new Promise((resolve) => setTimeout(resolve, 10));
    return this.leftovers();
  }

  /** Deletes all sandboxes and drives, stops the server and fails if anything is left. A killed server is started again for that. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      if (this.#process?.signalCode && this.leftovers().length > 0) await this.start();
      if ((await this.#isReady()) && this.#process?.exitCode === null) {
        const client = this.client();
        const { items } = await client.sandboxes.list({ limit: 1000 });
        await Promise.all(items.map(async ({ id }) => (await client.sandboxes.get(id)).delete()));
        const { items: drives } = await client.drives.list({ limit: 1000 });
        await Promise.all(drives.map(({ id }) => client.drives.delete(id)));
        client.close();
      }
      const code = await this.kill("SIGTERM");
      const left = await this.#leftInTheEnd();
      if (left.length > 0) throw new Error(`left behind: ${left.join(", ")}\n${this.#output}`);
      if (code !== 0 && code !== null) throw new Error(`the server exited with ${code}: ${this.#output}`);
    } finally {
      await this.kill("SIGKILL");
      rmSync(this.dir, { recursive: true, force: true });
    }
  }
}
