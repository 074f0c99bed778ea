/** Helpers for the tests of this package: temporary directories, real keepers, bodies to send. */
import { type ChildProcess, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ExecId, randomText } from "@holdfast/contract";
import type { ExecOrder, KeeperExec, Link } from "@holdfast/engine";
import { type ConnectOptions, connectKeeper } from "../link/link.ts";
import { keeperBinaries } from "../porter/binaries.ts";

export const IDENTITY = { installation: "install1", sandbox: "sbx_0123456789abcdef" };

export const soon = () => AbortSignal.timeout(20_000);

export const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** Waits until the condition holds. Fails with the description if it takes too long. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 10_000; !(await holds()); await pause(5)) {
    if (Date.now() > end) throw new Error(`timed out waiting for: ${what}`);
  }
}

const listens = (path: string): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(path);
    socket.once("error", () => resolve(false));
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
  });

export const temporary = (): string => mkdtempSync(join(tmpdir(), "holdfast-test-"));

export const removeAll = (path: string): void => rmSync(path, { recursive: true, force: true });

/**
 * Returns whether any thread of a process is alive. By its state alone, a process whose first thread has ended looks
 * dead although other threads run.
 */
export const isAlive = (pid: number): boolean => {
  try {
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    return !/^State:\s+[ZX]/m.test(status) || !/^Threads:\s+[01]$/m.test(status);
  } catch {
    return false;
  }
};

/** A keeper that runs as an ordinary process, with its control directory and a directory for files. */
export class TestKeeper {
  /** The keeper's path is resolved first, so that nothing is created if the binary is not built. */
  readonly #binary = keeperBinaries().keeper;
  readonly directory = temporary();
  readonly socketPath = join(this.directory, "control", "keeper.sock");
  readonly files = join(this.directory, "files");
  readonly #process: ChildProcess;
  readonly #links: Link[] = [];
  readonly #prefix = `test-${randomText(8)}-`;
  #starts = 0;

  private constructor(through: readonly string[]) {
    const [program = this.#binary, ...args] = [...through, this.#binary];
    this.#process = spawn(program, args, {
      stdio: ["ignore", "inherit", "inherit"],
      env: {
        HOLDFAST_INSTALLATION: IDENTITY.installation,
        HOLDFAST_SANDBOX: IDENTITY.sandbox,
        HOLDFAST_CONTROL: join(this.directory, "control"),
      },
    });
  }

  /** Starts a keeper. `through` is a command line that executes the keeper given as its last argument. */
  static async start(through: readonly string[] = []): Promise<TestKeeper> {
    const keeper = new TestKeeper(through);
    await until("the keeper listens", () => listens(keeper.socketPath));
    return keeper;
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  async connect(options: Partial<ConnectOptions> = {}): Promise<Link> {
    const link = await connectKeeper(
      { socketPath: this.socketPath, ...IDENTITY, generation: 1, ...options },
      soon(),
    );
    this.#links.push(link);
    return link;
  }

  /** Returns an order that runs as root, because this keeper's directory belongs to root. */
  order(argv: readonly string[], rest: Partial<ExecOrder> = {}): ExecOrder {
    const order: ExecOrder = {
      id: `${this.#prefix}${++this.#starts}` as ExecId,
      argv,
      env: { PATH: "/usr/bin:/bin" },
      cwd: "/",
      user: "0",
      timeoutMs: 0,
      stdin: false,
      tty: null,
      journalCapBytes: 1_048_576,
      digest: "",
      ...rest,
    };
    return { ...order, digest: createHash("sha256").update(JSON.stringify(order)).digest("hex") };
  }

  async stop(): Promise<void> {
    for (const link of this.#links) link.close();
    await stopChild(this.#process);
    this.#killCommands();
    removeAll(this.directory);
  }

  /**
   * Kills the commands that a killed keeper leaves behind. When PID 1 of a sandbox is killed, the kernel kills its
   * commands too, but this keeper is an ordinary process.
   */
  #killCommands(): void {
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      if (environmentOf(pid).includes(`HOLDFAST_EXEC=${this.#prefix}`)) process.kill(Number(pid), "SIGKILL");
    }
  }
}

function environmentOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, "utf8");
  } catch {
    return "";
  }
}

/** Stops a child. Asks it to end before killing it, because a keeper ends its commands before it ends itself. */
export function stopChild(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) return resolve();
    const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
    child.once("exit", () => {
      clearTimeout(timer);
      resolve();
    });
    child.kill("SIGTERM");
  });
}

/** Starts an exec and waits for its end. */
export async function run(link: Link, order: ExecOrder): Promise<KeeperExec> {
  const end = nextEnd(link, order.id);
  await link.startExec(order, soon());
  return end;
}

export function nextEnd(link: Link, id: ExecId): Promise<KeeperExec> {
  const end = new Promise<KeeperExec>((resolve, reject) => {
    link.onExecEnd((exec) => {
      if (exec.id === id) resolve(exec);
    });
    link.closed.then((why) => reject(new Error(why)));
    setTimeout(() => reject(new Error(`exec ${id} did not end`)), 20_000).unref();
  });
  // A test may close the link before it waits for the end. Without this handler the rejection would be unhandled and
  // fail the test.
  end.catch(() => undefined);
  return end;
}

/** Returns everything that an exec wrote, by stream. */
export async function output(link: Link, id: ExecId): Promise<{ stdout: string; stderr: string }> {
  const text = { stdout: "", stderr: "" };
  for (let cursor = 0; ; ) {
    const slice = await link.readExec(id, { cursor, maxBytes: 262_144, waitMs: 1_000 }, soon());
    for (const record of slice.records) text[record.stream] += Buffer.from(record.data).toString();
    cursor = slice.next;
    if (!slice.more) return text;
  }
}

export async function* bodyOf(...chunks: (string | Uint8Array)[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield typeof chunk === "string" ? Buffer.from(chunk) : chunk;
}

export async function collect(body: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

export const sha256 = (data: Uint8Array): string => createHash("sha256").update(data).digest("hex");
