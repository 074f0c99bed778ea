import { type ChildProcess, execFile, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { Agent, type IncomingMessage, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { layRoot } from "./rootfs.ts";

const run = promisify(execFile);

interface DaemonOptions {
  experimental?: boolean;
  env?: NodeJS.ProcessEnv;
}

/** The distribution's Docker engine, started only for this benchmark, with its own directories and socket. */
export class Docker implements AsyncDisposable {
  readonly #dir: string;
  readonly #daemon: ChildProcess;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 64 });

  private constructor(dir: string, daemon: ChildProcess) {
    this.#dir = dir;
    this.#daemon = daemon;
  }

  /** Returns null if no Docker engine is installed, or if it does not start on this host. */
  static async start({
    experimental = false,
    env = process.env,
  }: DaemonOptions = {}): Promise<Docker | null> {
    const binary = ["/usr/sbin/dockerd", "/usr/bin/dockerd"].find(isExecutable);
    if (binary === undefined) return null;
    const dir = mkdtempSync(join(tmpdir(), "holdfast-bench-docker-"));
    const options = [
      "--data-root",
      join(dir, "data"),
      "--exec-root",
      join(dir, "exec"),
      "--pidfile",
      join(dir, "pid"),
    ];
    const socket = join(dir, "docker.sock");
    const network = ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"];
    const more = experimental ? ["--experimental"] : [];
    const argv = [...options, ...network, ...more, "-H", `unix://${socket}`];
    const daemon = spawn(binary, argv, { stdio: "ignore", env });
    const docker = new Docker(dir, daemon);
    for (let i = 0; i < 300; i += 1) {
      if (daemon.exitCode !== null) break;
      const up = await docker.ask("GET", "/_ping").then(
        () => true,
        () => false,
      );
      if (up) {
        await docker.#import();
        return docker;
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await docker[Symbol.asyncDispose]();
    return null;
  }

  get #socket(): string {
    return join(this.#dir, "docker.sock");
  }

  async #import(): Promise<void> {
    const root = join(this.#dir, "root");
    layRoot(root);
    execFileSync("sh", ["-c", `tar -C ${root} -cf - . | docker -H unix://${this.#socket} import - bench`], {
      stdio: "ignore",
    });
  }

  /** Runs the `docker run --rm` command line, as a user would. */
  run(...command: string[]): Promise<unknown> {
    return run("docker", [
      "-H",
      `unix://${this.#socket}`,
      "run",
      "--rm",
      "--network=none",
      "-v",
      "/usr:/usr:ro",
      "bench",
      ...command,
    ]);
  }

  /** Address of the daemon's socket, for the `docker -H` option. */
  get host(): string {
    return `unix://${this.#socket}`;
  }

  async create(command: readonly string[] = ["/bin/sleep", "100000"]): Promise<string> {
    const HostConfig = { NetworkMode: "none", Binds: ["/usr:/usr:ro"] };
    const { Id } = await this.json<{ Id: string }>("POST", "/containers/create", {
      Image: "bench",
      Cmd: command,
      HostConfig,
    });
    await this.ask("POST", `/containers/${Id}/start`);
    return Id;
  }

  async remove(id: string): Promise<void> {
    await this.ask("DELETE", `/containers/${id}?force=true`);
  }

  /** Runs an exec over Docker's API in three requests: create, start with its output attached, read the exit code. */
  async exec(
    id: string,
    command: string[],
    onData: (data: Buffer) => void = () => undefined,
  ): Promise<number> {
    const create = { AttachStdout: true, AttachStderr: true, Cmd: command };
    const { Id } = await this.json<{ Id: string }>("POST", `/containers/${id}/exec`, create);
    const answer = await this.ask("POST", `/exec/${Id}/start`, { Detach: false, Tty: false });
    for await (const data of answer) onData(data as Buffer);
    const { ExitCode } = await this.json<{ ExitCode: number }>("GET", `/exec/${Id}/json`);
    return ExitCode;
  }

  async json<Result>(method: string, path: string, body?: unknown): Promise<Result> {
    const answer = await this.ask(method, path, body);
    let text = "";
    for await (const part of answer) text += part;
    return JSON.parse(text) as Result;
  }

  ask(method: string, path: string, body?: unknown, raw?: Buffer): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const headers = raw ? { "content-type": "application/x-tar" } : { "content-type": "application/json" };
      const ask = request(
        { socketPath: this.#socket, agent: this.#agent, method, path, headers },
        (answer) => {
          if ((answer.statusCode ?? 500) >= 400)
            return reject(new Error(`${method} ${path}: ${answer.statusCode}`));
          if (method === "DELETE" || answer.statusCode === 204) answer.resume();
          resolve(answer);
        },
      );
      ask.on("error", reject);
      ask.end(raw ?? (body === undefined ? undefined : JSON.stringify(body)));
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#agent.destroy();
    if (this.#daemon.exitCode === null) {
      const exited = once(this.#daemon, "exit");
      this.#daemon.kill("SIGTERM");
      await Promise.race([exited, new Promise((resolve) => setTimeout(resolve, 15_000))]);
    }
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
