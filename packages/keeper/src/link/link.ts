import { type ExecId, NUMBERS, type TerminalSize } from "@holdfast/contract";
import {
  type ExecOrder,
  type FileAccess,
  type KeeperExec,
  KeeperRefusal,
  type Link,
  LinkLost,
  type SupervisedRun,
  type SupervisePolicy,
} from "@holdfast/engine";
import { Files } from "../files/files.ts";
import { Channel } from "../wire/channel.ts";
import {
  cancelExec,
  forgetExec,
  holdExec,
  listExecs,
  listSupervised,
  readExec,
  readOutput,
  resizeExec,
  signalExec,
  startExec,
  superviseExec,
  writeStdin,
} from "../wire/exec-codec.ts";
import { deadline, type Greeting, hello, ping, probe, processes, type Welcome } from "../wire/link-codec.ts";
import { EXEC_BEGIN, EXEC_END, PROTOCOL } from "../wire/protocol.ts";
import { openSocket } from "../wire/socket.ts";
import { type Reader, WireError } from "../wire/wire.ts";

export interface ConnectOptions extends Greeting {
  socketPath: string;
  heartbeatMs?: number;
  deadMs?: number;
  now?: () => number;
}

/**
 * Connects to a keeper's socket and sends a hello. Fails with `KeeperRefusal` if the keeper belongs to another sandbox
 * or has already served a larger generation, with `LinkLost` if no keeper answers or the protocol version differs, and
 * with the signal's reason if the signal aborts first.
 */
export async function connectKeeper(options: ConnectOptions, signal: AbortSignal): Promise<Link> {
  const listeners: Listeners = { begin: new Set(), end: new Set() };
  let channel: Channel | undefined;
  const socket = await openSocket(options.socketPath, (chunk) => channel?.feed(chunk, true), signal);
  channel = new Channel(socket, {
    heartbeatMs: options.heartbeatMs ?? NUMBERS.heartbeatMs,
    deadMs: options.deadMs ?? NUMBERS.linkDeadMs,
    now: options.now ?? Date.now,
    onEvent: (type, payload) => announce(listeners, type, payload),
  });
  return new KeeperLink(channel, await greet(channel, options, signal), listeners);
}

export async function greet(channel: Channel, greeting: Greeting, signal: AbortSignal): Promise<Welcome> {
  try {
    const { spoken, welcome } = await channel.request(hello(greeting), signal);
    if (welcome === null) throw new LinkLost(otherProtocol(spoken), "no");
    channel.greeted();
    return welcome;
  } catch (error) {
    channel.close("the link was not greeted");
    // Nothing but the greeting was sent, so no request can have had an effect.
    throw error instanceof LinkLost ? new LinkLost(error.message, "no") : error;
  }
}

export const otherProtocol = (spoken: number) =>
  `the keeper speaks version ${spoken} of the protocol, this server version ${PROTOCOL}: ` +
  "the sandbox was created by another version of Holdfast and can't be served by this one";

type Listeners = Record<"begin" | "end", Set<(exec: KeeperExec) => void>>;
const EVENTS: ReadonlyMap<number, keyof Listeners> = new Map([
  [EXEC_BEGIN, "begin"],
  [EXEC_END, "end"],
]);

function announce(listeners: Listeners, type: number, payload: Reader): void {
  const event = EVENTS.get(type);
  if (event === undefined) throw new WireError("an unknown event");
  const exec = readExec(payload);
  payload.end();
  for (const listener of listeners[event]) listener(exec);
}

class KeeperLink implements Link {
  readonly keeper: Welcome;
  readonly closed: Promise<string>;
  readonly files: FileAccess;
  readonly #channel: Channel;
  readonly #listeners: Listeners;
  #pings = 0;

  constructor(channel: Channel, keeper: Welcome, listeners: Listeners) {
    this.keeper = keeper;
    this.closed = channel.closed;
    this.files = new Files(channel);
    this.#channel = channel;
    this.#listeners = listeners;
  }

  get lastReceivedAt(): number {
    return this.#channel.lastReceivedAt;
  }

  ping(signal: AbortSignal) {
    return this.#channel.request(ping(++this.#pings), signal);
  }

  /**
   * Sets the keeper's deadline; null removes it. Does nothing if the keeper does not know this request, because such a
   * keeper never ends its sandbox by itself.
   */
  async setDeadline(remainingMs: number | null, signal: AbortSignal): Promise<void> {
    try {
      await this.#channel.request(deadline(remainingMs ?? 0), signal);
    } catch (error) {
      if (!(error instanceof KeeperRefusal && error.reason === "unknown_type")) throw error;
    }
  }

  startExec(order: ExecOrder, signal: AbortSignal) {
    return this.#channel.request(startExec(order), signal);
  }

  readExec(id: ExecId, from: { cursor: number; maxBytes: number; waitMs: number }, signal: AbortSignal) {
    return this.#channel.request(readOutput(id, from), signal);
  }

  /**
   * Holds an exec's output from a cursor on, for a limited time. Returns false if the keeper does not know this request
   * and therefore holds nothing.
   */
  async holdExec(id: ExecId, hold: { cursor: number; leaseMs: number }, signal: AbortSignal) {
    try {
      await this.#channel.request(holdExec(id, hold), signal);
      return true;
    } catch (error) {
      if (error instanceof KeeperRefusal && error.reason === "unknown_type") return false;
      throw error;
    }
  }

  writeStdin(id: ExecId, chunk: { offset: number; data: Uint8Array; end: boolean }, signal: AbortSignal) {
    return this.#channel.request(writeStdin(id, chunk), signal);
  }

  signalExec(id: ExecId, signal: number, abort: AbortSignal) {
    return this.#channel.request(signalExec(id, signal), abort);
  }

  cancelExec(id: ExecId, signal: AbortSignal) {
    return this.#channel.request(cancelExec(id), signal);
  }

  listExecs(signal: AbortSignal) {
    return this.#channel.request(listExecs(), signal);
  }

  forgetExec(id: ExecId, options: { keepJournal: boolean }, signal: AbortSignal) {
    return this.#channel.request(forgetExec(id, options), signal);
  }

  resizeExec(id: ExecId, size: TerminalSize, signal: AbortSignal) {
    return this.#channel.request(resizeExec(id, size), signal);
  }

  onExecEnd(listener: (exec: KeeperExec) => void): void {
    this.#listeners.end.add(listener);
  }

  superviseExec(order: ExecOrder, policy: SupervisePolicy, signal: AbortSignal) {
    return this.#channel.request(superviseExec(order, policy), signal);
  }

  /** Lists the supervised runs. Returns an empty list if the keeper does not know this request. */
  async listSupervised(signal: AbortSignal): Promise<SupervisedRun[]> {
    try {
      return await this.#channel.request(listSupervised(), signal);
    } catch (error) {
      if (error instanceof KeeperRefusal && error.reason === "unknown_type") return [];
      throw error;
    }
  }

  onExecStart(listener: (exec: KeeperExec) => void): void {
    this.#listeners.begin.add(listener);
  }

  probe(signal: AbortSignal) {
    return this.#channel.request(probe(), signal);
  }

  processes(signal: AbortSignal) {
    return this.#channel.request(processes(), signal);
  }

  close(): void {
    this.#channel.close("closed by this side");
  }
}
