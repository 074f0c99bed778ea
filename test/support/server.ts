import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Holdfast } from "@holdfast/sdk";
import { leftovers } from "./leftovers.ts";

const REPO = fileURLToPath(new URL("../..", import.meta.url));
export const MAIN = join(REPO, "packages/server/src/main.ts");
export const CLI = join(REPO, "packages/cli/bin/holdfast.mjs");

/** A real server in a process of its own, over a state directory of its own, that can be killed and started again. */
export class TestServer implements AsyncDisposable {
  readonly dir = mkdtempSync(join(tmpdir(), "holdfast-e2e-"));
  readonly #env: NodeJS.ProcessEnv;
  #process: ChildProcess | null = null;
  #output = "";
  url = "";
  installation = "";

  constructor(env: NodeJS.ProcessEnv = {}) {
    this.#env = env;
  }

  static async start(env: NodeJS.ProcessEnv = {}): Promise<TestServer> {
    const server = new TestServer(env);
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

  async start(): Promise<void> {
    rmSync(join(this.dir, "server.json"), { force: true });
    const child = spawn(process.execPath, [MAIN], { env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        this.#output = (this.#output + text).slice(-20_000);
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
      this.url = (JSON.parse(readFileSync(join(this.dir, "server.json"), "utf8")) as { url: string }).url;
      const answer = await fetch(`${this.url}/readyz`);
      const health = (await answer.json()) as { installation: string };
      this.installation = health.installation;
      return answer.ok;
    } catch {
      return false;
    }
  }

  get key(): string {
    return readFileSync(join(this.dir, "admin.key"), "utf8").trim();
  }

  client(): Holdfast {
    return new Holdfast({ url: this.url, apiKey: this.key });
  }

  fetch(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(`${this.url}${path}`, {
      ...init,
      headers: { authorization: `Bearer ${this.key}`, ...init.headers },
    });
  }

  /** What the driver recorded of an instance: the pid of its keeper. */
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

  leftovers(): string[] {
    return leftovers(this.installation, this.dir);
  }

  /** Deletes every sandbox, stops the server and fails where anything is left. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      if ((await this.#isReady()) && this.#process?.exitCode === null) {
        const client = this.client();
        const { items } = await client.sandboxes.list({ limit: 1000 });
        await Promise.all(items.map(async ({ id }) => (await client.sandboxes.get(id)).delete()));
        client.close();
      }
      const code = await this.kill("SIGTERM");
      const left = this.leftovers();
      if (left.length > 0) throw new Error(`left behind: ${left.join(", ")}\n${this.#output}`);
      if (code !== 0 && code !== null) throw new Error(`the server exited with ${code}: ${this.#output}`);
    } finally {
      await this.kill("SIGKILL");
      rmSync(this.dir, { recursive: true, force: true });
    }
  }
}
