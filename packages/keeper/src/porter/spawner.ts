import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import type { Socket } from "node:net";
import { constants } from "node:os";
import { basename } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { getSystemErrorName } from "node:util";
import { FrameSplitter, type Reader, WireError, Writer } from "./wire.ts";

/** A helper that failed, in its own words. */
export class PorterError extends Error {
  readonly exitCode: number | null;
  constructor(what: string, exitCode: number | null) {
    super(what);
    this.name = "PorterError";
    this.exitCode = exitCode;
  }
}

export interface HelperOrder {
  /** What it is called in errors; the program's name where absent. */
  name?: string;
  /** The program's path and its arguments: no other place is searched for it. */
  argv: readonly string[];
  /** All of its environment. */
  env: Readonly<Record<string, string>>;
  /** The file that is its stdin, stdout and stderr; the null device where absent. */
  stdio?: string;
  /** How many bytes of an output are kept and given back instead. What is beyond is read, and thrown away. */
  keep?: { stdout?: number; stderr?: number };
  /** Ends with the spawner, as that does with this process. For what nobody would find again. */
  isTied?: boolean;
}

export interface HelperEnd {
  /** Its exit code, or the signal that ended it. */
  status: number | NodeJS.Signals;
  stdout: string;
  stderr: string;
}

/** The spawner's end of its socket. */
const LINK_FD = 3;
/** What was killed is gone within this, or hangs in the kernel and is not waited for. */
const KILL_WAIT_MS = 2_000;
const GONE_POLL_MS = 2;
/** Each request is acknowledged at once. After two such times without a word from it, a spawner counts as lost. */
const SILENCE_MS = 2_500;

const RUN = 1;
const KILL = 2;
const HEARD = 0x8001;
const OUTPUT = 0x0101;
const ENDED = 0x0102;

const EXITED = 0;
const SIGNALLED = 1;
const NOT_STARTED = 2;

interface Helper {
  name: string;
  isTied: boolean;
  /** 0 until it is known. */
  pid: number;
  kept: [stdout: Buffer[], stderr: Buffer[]];
  resolve: (end: HelperEnd) => void;
  reject: (error: unknown) => void;
}

/**
 * Starts helpers through a small process that does nothing else (`porter spawn`): a fork of this one would stop everything
 * in it for milliseconds. That process is started with the first request and again whenever it is lost; what was under way
 * then fails, and what of it still runs is for those to find who asked for it, as after the end of a server. It never keeps
 * this process alive, and ends with it, or when it is let go.
 */
export class Spawner {
  readonly #binary: string;
  #line: SpawnerLine | null = null;

  constructor(binary: string) {
    this.#binary = binary;
  }

  /** The process, where there is one. */
  get pid(): number | undefined {
    return this.#line?.pid;
  }

  /**
   * Runs a helper to its end, in a process session of its own. When the signal is aborted the whole session is killed, and
   * the promise rejects with its reason, but only once the helper is gone. What has left the session by then goes on, and
   * what a helper leaves running is not waited for.
   */
  async run(order: HelperOrder, signal: AbortSignal): Promise<HelperEnd> {
    signal.throwIfAborted();
    if (this.#line === null || this.#line.isOver) this.#line = new SpawnerLine(this.#binary);
    return this.#line.run(order, signal);
  }

  /** The process ends as soon as nothing is under way; a later request starts another. */
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
  #unheard = 0;
  #silence: NodeJS.Timeout | undefined;
  #isClosing = false;
  #isOver = false;

  constructor(binary: string) {
    this.#child = spawn(binary, ["spawn"], { stdio: ["ignore", "ignore", "ignore", "pipe"], env: {} });
    this.#child.unref();
    this.#child.on("error", (error) => this.#end(`the spawner can't be run: ${error.message}`));
    // There are no streams where there were no descriptors for them.
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

  /** Of an order that is too large, or has a NUL in it, nothing is sent. */
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
    this.#unheard++;
    for (const part of parts) this.#socket?.write(part);
    if (this.#unheard === 1) this.#listen();
  }

  /**
   * A spawner that was stopped would have everything wait for ever. It is listened for twice: where this process stood still
   * itself, the first time may be over before what was said meanwhile has been read.
   */
  #listen(isSecond = false): void {
    clearTimeout(this.#silence);
    if (this.#unheard === 0) return;
    const over = () => (isSecond ? this.#end("the spawner does not answer") : this.#listen(true));
    this.#silence = setTimeout(over, SILENCE_MS).unref();
  }

  #feed(chunk: Buffer): void {
    try {
      this.#frames.feed(chunk, false);
      this.#listen();
    } catch (error) {
      this.#end(`the spawner said something else: ${String(error)}`);
    }
  }

  #answer(id: number, type: number, payload: Reader): void {
    if (type === HEARD) this.#hear(id, payload);
    else if (type === OUTPUT) this.#keep(id, payload);
    else if (type === ENDED) this.#settle(id, payload);
    else throw new WireError(`a frame of type ${type}`);
    payload.end();
  }

  #hear(id: number, payload: Reader): void {
    this.#unheard--;
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

/** One that is tied may be in the middle of a mount, and is gone only when that is done. */
async function fail({ name, isTied, pid, reject }: Helper, why: string): Promise<void> {
  for (const end = Date.now() + KILL_WAIT_MS; isTied && isThere(pid) && Date.now() < end; )
    await sleep(GONE_POLL_MS);
  reject(new PorterError(`${why} while ${name} was under way`, null));
}

/** Not what is left of it until its new parent asks. */
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
