import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import type { Socket } from "node:net";
import { constants } from "node:os";
import { basename } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { getSystemErrorName } from "node:util";
import { FrameSplitter, type Reader, WireError, Writer } from "../wire/wire.ts";

/** Reports that a helper failed, with the helper's own message. */
export class PorterError extends Error {
  readonly exitCode: number | null;
  constructor(what: string, exitCode: number | null) {
    super(what);
    this.name = "PorterError";
    this.exitCode = exitCode;
  }
}

export interface HelperOrder {
  /** Name of the helper in error messages. Default: the program's name. */
  name?: string;
  /** The program's path, followed by its arguments. PATH is not searched. */
  argv: readonly string[];
  /** The complete environment of the helper. */
  env: Readonly<Record<string, string>>;
  /** The file used as stdin, stdout and stderr. Default: the null device. */
  stdio?: string;
  /**
   * How many bytes of stdout and stderr are returned. A stream with a number does not go to `stdio`, and its further
   * bytes are discarded.
   */
  keep?: { stdout?: number; stderr?: number };
  /**
   * Whether the helper is killed when the spawner ends, which happens at the latest when this process ends. Set for
   * helpers that a later process could not find again, because they would keep running unnoticed.
   */
  isTied?: boolean;
}

export interface HelperEnd {
  /** The exit code of the helper, or the signal that ended it. */
  status: number | NodeJS.Signals;
  stdout: string;
  stderr: string;
}

/** Number of the descriptor at which the spawner has its end of the socket. */
const LINK_FD = 3;
/** Maximum wait for a killed process to end. A process that takes longer hangs in the kernel, so the wait stops. */
const KILL_WAIT_MS = 2_000;
const GONE_POLL_MS = 2;
/**
 * Interval between two checks for answers of the spawner. The spawner acknowledges each request at once, so it is
 * regarded as lost after two intervals without an answer to an unacknowledged request.
 */
const SILENCE_MS = 2_500;

const RUN = 1;
const KILL = 2;
const RECEIVED = 0x8001;
const OUTPUT = 0x0101;
const ENDED = 0x0102;

const EXITED = 0;
const SIGNALLED = 1;
const NOT_STARTED = 2;

interface Helper {
  name: string;
  isTied: boolean;
  /** Pid of the helper; 0 until the spawner has reported it. */
  pid: number;
  kept: [stdout: Buffer[], stderr: Buffer[]];
  resolve: (end: HelperEnd) => void;
  reject: (error: unknown) => void;
}

/**
 * Starts helpers through a small dedicated process (`porter spawn`), because forking this process would block it for
 * milliseconds. The spawner is started with the first request, and again with the first request after it was lost.
 *
 * When the spawner is lost, the calls for helpers in progress fail, but helpers that are not tied keep running. Callers
 * must find those helpers in the same way as after a restart of the server. A spawner never keeps this process alive.
 * It ends when this process ends or calls `close`.
 */
export class Spawner {
  readonly #binary: string;
  #line: SpawnerLine | null = null;

  constructor(binary: string) {
    this.#binary = binary;
  }

  /** The pid of the spawner; undefined if none is running. */
  get pid(): number | undefined {
    return this.#line?.pid;
  }

  /**
   * Runs a helper in its own session, and resolves when the helper has ended. When the signal is aborted, the whole
   * session is killed, and the promise rejects with the signal's reason once the helper has ended, at the latest after
   * KILL_WAIT_MS. Processes that the helper has started are not awaited. Those that have left the session are not
   * killed either.
   */
  async run(order: HelperOrder, signal: AbortSignal): Promise<HelperEnd> {
    signal.throwIfAborted();
    if (this.#line === null || this.#line.isOver) this.#line = new SpawnerLine(this.#binary);
    return this.#line.run(order, signal);
  }

  /** Ends the spawner as soon as no helper is running. A later request starts another spawner. */
  close(): void {
    this.#line?.close();
    this.#line = null;
  }
}

/** One spawner process, from its start to its end. */
class SpawnerLine {
  readonly #child: ChildProcess;
  readonly #socket: Socket | null;
  readonly #writer = new Writer();
  readonly #frames = new FrameSplitter((id, type, payload) => this.#answer(id, type, payload));
  readonly #helpers = new Map<number, Helper>();
  #lastId = 0;
  #unacknowledged = 0;
  #silence: NodeJS.Timeout | undefined;
  #isClosing = false;
  #isOver = false;

  constructor(binary: string) {
    this.#child = spawn(binary, ["spawn"], { stdio: ["ignore", "ignore", "ignore", "pipe"], env: {} });
    this.#child.unref();
    this.#child.on("error", (error) => this.#end(`the spawner can't be run: ${error.message}`));
    // If this process has no free descriptor, `spawn` returns a child without a socket.
    this.#socket = (this.#child.stdio?.[LINK_FD] as Socket | undefined) ?? null;
    this.#socket?.unref();
    this.#socket?.on("error", () => {});
    this.#socket?.on("data", (chunk: Buffer) => this.#feed(chunk));
    this.#socket?.once("close", () => this.#end("the spawner ended"));
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  async run(order: HelperOrder, signal: AbortSignal): Promise<HelperEnd> {
    const { promise, resolve, reject } = Promise.withResolvers<HelperEnd>();
    const id = this.#nextId();
    const name = order.name ?? basename(order.argv[0] ?? "");
    const bytes = this.#request(id, RUN, name, order);
    const { isTied = false } = order;
    this.#helpers.set(id, { name, isTied, pid: 0, kept: [[], []], resolve, reject });
    this.#socket?.ref();
    this.#send(bytes);
    let giveUp: NodeJS.Timeout | undefined;
    const abort = () => {
      this.#send(this.#request(id, KILL, name));
      giveUp = setTimeout(() => reject(signal.reason), KILL_WAIT_MS);
    };
    signal.addEventListener("abort", abort, { once: true });
    try {
      const end = await promise;
      signal.throwIfAborted();
      return end;
    } catch (error) {
      throw signal.aborted ? signal.reason : error;
    } finally {
      signal.removeEventListener("abort", abort);
      clearTimeout(giveUp);
    }
  }

  close(): void {
    this.#isClosing = true;
    if (this.#helpers.size === 0) this.#socket?.destroy();
  }

  #nextId(): number {
    do this.#lastId = (this.#lastId + 1) >>> 0;
    while (this.#helpers.has(this.#lastId));
    return this.#lastId;
  }

  /** Encodes a request. A request that is too large or contains a NUL is refused and not sent. */
  #request(id: number, type: number, name: string, order?: HelperOrder): readonly Uint8Array[] {
    try {
      this.#writer.frame(id, type, (out) => {
        if (order !== undefined) encode(out, order);
      });
      return this.#writer.take();
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new PorterError(`${name} can't be run: ${why}`, null);
    }
  }

  #send(parts: readonly Uint8Array[]): void {
    if (this.#isOver) return;
    this.#unacknowledged++;
    for (const part of parts) this.#socket?.write(part);
    if (this.#unacknowledged === 1) this.#watchSilence();
  }

  /**
   * Detects a spawner that was stopped by a signal and would make all callers wait forever. Silence is checked twice:
   * if this process itself was stopped, the first timer may fire before the answers that have arrived are read.
   */
  #watchSilence(isSecond = false): void {
    clearTimeout(this.#silence);
    if (this.#unacknowledged === 0) return;
    const over = () => (isSecond ? this.#end("the spawner does not answer") : this.#watchSilence(true));
    this.#silence = setTimeout(over, SILENCE_MS).unref();
  }

  #feed(chunk: Buffer): void {
    try {
      this.#frames.feed(chunk, false);
      this.#watchSilence();
    } catch (error) {
      this.#end(`unexpected output from the spawner: ${String(error)}`);
    }
  }

  #answer(id: number, type: number, payload: Reader): void {
    if (type === RECEIVED) this.#received(id, payload);
    else if (type === OUTPUT) this.#keep(id, payload);
    else if (type === ENDED) this.#settle(id, payload);
    else throw new WireError(`a frame of type ${type}`);
    payload.end();
  }

  #received(id: number, payload: Reader): void {
    this.#unacknowledged--;
    const pid = payload.u32();
    const helper = this.#helpers.get(id);
    if (helper !== undefined) helper.pid = pid;
  }

  #keep(id: number, payload: Reader): void {
    const stream = payload.u8();
    const bytes = payload.bytes();
    const kept = this.#helperOf(id).kept[stream];
    if (kept === undefined) throw new WireError(`a stream ${stream}`);
    kept.push(bytes);
  }

  #settle(id: number, payload: Reader): void {
    const how = payload.u8();
    const number = payload.u32();
    const { name, kept, resolve, reject } = this.#helperOf(id);
    this.#helpers.delete(id);
    const [stdout, stderr] = kept.map((parts) => Buffer.concat(parts).toString()) as [string, string];
    if (how === EXITED) resolve({ status: number, stdout, stderr });
    else if (how === SIGNALLED) resolve({ status: signalName(number), stdout, stderr });
    else if (how === NOT_STARTED) reject(new PorterError(`${name} can't be run: ${errorName(number)}`, null));
    else throw new WireError(`an end of kind ${how}`);
    if (this.#helpers.size > 0) return;
    this.#socket?.unref();
    if (this.#isClosing) this.#socket?.destroy();
  }

  #helperOf(id: number): Helper {
    const helper = this.#helpers.get(id);
    if (helper === undefined) throw new WireError(`no helper ${id}`);
    return helper;
  }

  #end(why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#silence);
    this.#child.kill("SIGKILL");
    this.#socket?.destroy();
    for (const helper of this.#helpers.values()) void fail(helper, why);
    this.#helpers.clear();
  }
}

/**
 * Rejects a helper's promise. If the helper is tied, first waits for it to end, but only for a limited time: a helper
 * that was killed in the middle of a mount ends only when the mount is done.
 */
async function fail({ name, isTied, pid, reject }: Helper, why: string): Promise<void> {
  for (const end = Date.now() + KILL_WAIT_MS; isTied && isThere(pid) && Date.now() < end; )
    await sleep(GONE_POLL_MS);
  reject(new PorterError(`${why} while ${name} was running`, null));
}

/** Returns whether a process is running. A zombie that is not reaped yet is not running. */
function isThere(pid: number): boolean {
  try {
    return pid > 0 && !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "latin1"));
  } catch {
    return false;
  }
}

function encode(out: Writer, { argv, env, stdio = "", keep = {}, isTied = false }: HelperOrder): void {
  out.strs(argv);
  out.strs(Object.entries(env).map(([name, value]) => `${name}=${value}`));
  out.str(stdio);
  out.u32(keep.stdout ?? 0);
  out.u32(keep.stderr ?? 0);
  out.flag(isTied);
}

const SIGNALS = new Map(Object.entries(constants.signals).map(([name, number]) => [number, name]));

const signalName = (number: number) => (SIGNALS.get(number) ?? `SIG${number}`) as NodeJS.Signals;

function errorName(number: number): string {
  return Number.isInteger(number) && number > 0 && number < 4_096
    ? getSystemErrorName(-number)
    : String(number);
}
