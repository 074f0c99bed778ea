import { appendFileSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../faults/random.ts";
import { TestServer } from "../server/test-server.ts";
import { LoopDisk } from "./loop-disk.ts";
import { endAll } from "./reboot.ts";

const MB = 1_048_576;
const DISK_MB = 4_000;
const START_MS = 120_000;

/** Intervals of minutes take seconds here, and the disk guard's limits fit the small disk. */
const NUMBERS = {
  heartbeatMs: 2_000,
  linkDeadMs: 6_000,
  observeEveryMs: 2_000,
  maintainEveryMs: 2_000,
  createDeadlineMs: 30_000,
  launchQueueMs: 60_000,
  launchesSuspendedMs: 2_000,
  stopAttemptMs: 20_000,
  stopBackoffMs: [500, 1_000, 2_000, 5_000, 5_000],
  exhaustedRecheckMs: 5_000,
  orphanGraceMs: 4_000,
  orphanCheckEveryMs: 2_000,
  auditEveryMs: 10_000,
  failedKeptMs: 45_000,
  execRetentionMs: 15_000,
  retentionEveryMs: 2_000,
  restartWindowMs: 60_000,
  diskReserveBytes: 400 * MB,
  diskFreezeBytes: 200 * MB,
  diskGuardEveryMs: 1_000,
  sweepStaleMs: 5_000,
  sweepAgeMs: 5_000,
  sweepPressureMs: 5_000,
  sweepPressureShare: 0.9,
};

/** Permanent damage done to a sandbox: calls on it may then fail with that reason. */
type Damage = "files" | "unmounted" | "stopped" | "full";

/** A server on a separate disk, with everything that faults need to find their targets without asking the server. */
export class ChaosWorld implements AsyncDisposable {
  readonly random: Random;
  readonly disk = new LoopDisk(DISK_MB);
  readonly server: TestServer;
  readonly damaged = new Map<string, Set<Damage>>();
  /** Error lines of the server's log, counted by message. */
  readonly complaints = new Map<string, number>();
  /** Observed violations. */
  readonly problems: string[] = [];
  /** Reasons of refused starts. */
  readonly refusedStarts: string[] = [];
  #stopped = new Set<number>();
  #isDown = false;
  #rest = "";

  private constructor(random: Random, port: number, logFile: string | undefined) {
    this.random = random;
    const env = {
      HOLDFAST_PORT: String(port),
      HOLDFAST_NUMBERS_JSON: JSON.stringify(NUMBERS),
      HOLDFAST_LOG_LEVEL: "info",
    };
    const onOutput = (text: string) => {
      if (logFile !== undefined) appendFileSync(logFile, text);
      this.#hear(text);
    };
    this.server = new TestServer(env, { dir: join(this.disk.dir, "state"), onOutput });
  }

  static async make(random: Random, logFile?: string): Promise<ChaosWorld> {
    const world = new ChaosWorld(random, await freePort(), logFile);
    try {
      await world.#start();
      return world;
    } catch (error) {
      await world[Symbol.asyncDispose]();
      throw error;
    }
  }

  #hear(text: string): void {
    const lines = (this.#rest + text).split("\n");
    this.#rest = (lines.pop() ?? "").slice(-100_000);
    for (const line of lines) {
      const { level = 0, msg = "" } = line.startsWith("{") ? parsed(line) : {};
      if (level >= 50) this.complaints.set(msg, (this.complaints.get(msg) ?? 0) + 1);
    }
  }

  get isDown(): boolean {
    return this.#isDown;
  }

  /** Stops the server, waits, and starts the next one. Only one replacement runs at a time. */
  async replaceServer(signal: "SIGKILL" | "SIGTERM", awayMs: number): Promise<boolean> {
    if (this.#isDown) return false;
    this.#isDown = true;
    this.#resume(this.server.pid);
    const code = await this.server.kill(signal);
    if (signal === "SIGTERM" && code !== 0) this.problems.push(`the server stopped with ${code}`);
    await sleep(awayMs);
    await this.#start();
    this.#isDown = false;
    return true;
  }

  /**
   * Starts the server. A full disk or a fault may make a start fail; then it is repeated, as an operator's supervisor
   * would.
   */
  async #start(): Promise<void> {
    const end = Date.now() + START_MS;
    for (;;) {
      try {
        await this.server.start();
        this.#watch(this.server.pid);
        return;
      } catch (error) {
        await this.server.kill("SIGKILL");
        this.refusedStarts.push(reasonOf(error));
        if (Date.now() > end) throw error;
        await sleep(1_000);
      }
    }
  }

  #watch(pid: number): void {
    void this.server.died().then((signal) => {
      if (this.#isDown || pid !== this.server.pid) return;
      this.problems.push(
        `the server ended by itself: ${signal ?? "exit"} ${this.server.output.slice(-2_000)}`,
      );
    });
  }

  /** Returns the sandboxes that have a directory, whatever their record says. */
  sandboxIds(): string[] {
    return list(join(this.server.dir, "sandboxes"));
  }

  place(id: string, ...names: string[]): string {
    return join(this.server.dir, "sandboxes", id, ...names);
  }

  damage(id: string, what: Damage): void {
    const known = this.damaged.get(id) ?? new Set();
    this.damaged.set(id, known.add(what));
  }

  keeperOf(id: string): number | null {
    const { pid = null } = parsed(read(this.place(id, "instance.json"))) as { pid?: number };
    return pid !== null && this.#isOurs(pid) ? pid : null;
  }

  /** Returns the commands of a sandbox and their descendants, without the keeper. */
  commandsOf(id: string): number[] {
    const path = `/sys/fs/cgroup/freezer/holdfast-${this.server.installation}/${id}/cgroup.procs`;
    const keeper = this.keeperOf(id);
    return read(path)
      .split("\n")
      .filter(Boolean)
      .map(Number)
      .filter((pid) => pid !== keeper);
  }

  /** The server's helper processes and their descendants; most live for milliseconds. */
  helpers(): number[] {
    const { installation, pid } = this.server;
    const parent = `/sys/fs/cgroup/freezer/holdfast-${installation}`;
    const launching = list(parent)
      .filter((name) => name.startsWith("helper-"))
      .flatMap((name) =>
        read(join(parent, name, "cgroup.procs"))
          .split("\n")
          .filter(Boolean),
      );
    const children = childrenOf(pid);
    return [...new Set([...launching.map(Number), ...children, ...children.flatMap(childrenOf)])];
  }

  /** Sends a signal to a process of this installation, and never to any other. */
  signal(pid: number, signal: "SIGKILL" | "SIGSTOP" | "SIGCONT"): boolean {
    if (!this.#isOurs(pid)) return false;
    try {
      process.kill(pid, signal);
      if (signal === "SIGSTOP") this.#stopped.add(pid);
      return true;
    } catch {
      return false;
    }
  }

  #isOurs(pid: number): boolean {
    const { installation, pid: serverPid, dir } = this.server;
    if (pid === serverPid) return true;
    const marks = read(`/proc/${pid}/environ`).split("\0");
    if (marks.includes(`HOLDFAST_INSTALLATION=${installation}`)) return true;
    if (marks.some((mark) => mark.startsWith(`HOLDFAST_HELPER=${installation}/`))) return true;
    if (read(`/proc/${pid}/cgroup`).includes(`/holdfast-${installation}/`)) return true;
    if (!executable(pid).startsWith(`${dir}/`)) return false;
    // The process may also be a child of the spawner.
    const parent = parentOf(pid);
    return parent === serverPid || parentOf(parent) === serverPid;
  }

  #resume(pid: number): void {
    if (this.#stopped.delete(pid)) this.signal(pid, "SIGCONT");
  }

  /** Stops a process for a while; the server also if it is replaced meanwhile. */
  async suspend(pid: number, ms: number): Promise<boolean> {
    if (!this.signal(pid, "SIGSTOP")) return false;
    await sleep(ms);
    this.#resume(pid);
    return true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.disk.empty();
    this.#resume(this.server.pid);
    try {
      await this.server[Symbol.asyncDispose]();
    } catch (error) {
      await endAll(this.server);
      rmSync(this.server.dir, { recursive: true, force: true });
      throw error;
    } finally {
      await this.disk[Symbol.asyncDispose]();
    }
  }
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  if (address === null || typeof address === "string") throw new Error("there is no port");
  return address.port;
}

function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  return /Holdfast can't start: .*/.exec(text)?.[0] ?? text.slice(-300);
}

function parsed(text: string): { level?: number; msg?: string } {
  try {
    return JSON.parse(text) as { level?: number; msg?: string };
  } catch {
    return {};
  }
}

const childrenOf = (pid: number): number[] =>
  read(`/proc/${pid}/task/${pid}/children`).split(" ").filter(Boolean).map(Number);

const parentOf = (pid: number): number => {
  const stat = read(`/proc/${pid}/stat`);
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
};

function executable(pid: number): string {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch {
    return "";
  }
}

export function list(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}

export function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
