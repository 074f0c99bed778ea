import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { KeeperRefusal, LinkLost } from "@holdfast/engine";
import { otherProtocol } from "./link.ts";
import { dial, type Greeting } from "./link-codec.ts";
import { KeeperStream } from "./port-stream.ts";
import { ANSWER, FRAME_LIMIT, REFUSAL, REQUEST } from "./protocol.ts";
import { readRefusal } from "./refusal.ts";
import { openSocket } from "./socket.ts";
import { Reader, WireError, Writer } from "./wire.ts";

/** Longer than a keeper that runs takes to give up. */
const ANSWER_MS = 8_000;
const DIAL_ID = 1;
const SIZE_BYTES = 4;

export interface DialOptions extends Greeting {
  socketPath: string;
  port: number;
  deadlineMs?: number;
}

export interface Dialled {
  /** What the keeper calls itself. It has been given no byte yet. */
  bootId: string;
  bytes: Duplex;
}

/**
 * A stream to a TCP port of the sandbox's loopback, on a connection of its own to the keeper. Fails with `KeeperRefusal`
 * where the keeper says no (`system` ECONNREFUSED: nothing listens; `system` ETIMEDOUT: what listens takes nobody;
 * `limit`), with `LinkLost` where no keeper answers in time, with the signal's reason where that comes first. In each case
 * nobody at the port was told anything. The signal ends the stream as well.
 */
export async function dialKeeper(options: DialOptions, signal: AbortSignal): Promise<Dialled> {
  const socket = await openSocket(options.socketPath, null, signal);
  socket.on("error", () => {});
  try {
    socket.write(request(options));
    return await answered(socket, options, signal);
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

function request(options: DialOptions): Buffer {
  const out = new Writer();
  const { type, encode } = dial(options, options.port);
  out.frame(DIAL_ID, type, encode);
  return Buffer.concat(out.take());
}

/** The stream is made in the very turn in which the answer came: nothing that happens to the socket is missed. */
function answered(socket: Socket, options: DialOptions, signal: AbortSignal): Promise<Dialled> {
  const { deadlineMs = ANSWER_MS } = options;
  return new Promise<Dialled>((resolve, reject) => {
    let bytes = Buffer.alloc(0);
    const settle = (act: () => void) => {
      clearTimeout(timer);
      socket.off("data", take).off("close", lost);
      signal.removeEventListener("abort", abort);
      socket.pause();
      try {
        act();
      } catch (error) {
        reject(brokenOff(error));
      }
    };
    const fail = (error: unknown) => settle(() => reject(error));
    const abort = () => fail(signal.reason);
    const lost = () => fail(new LinkLost("the keeper closed the connection without an answer", "no"));
    const late = () => fail(new LinkLost(`the keeper did not answer within ${deadlineMs / 1000} s`, "no"));
    const take = (chunk: Buffer) => {
      bytes = Buffer.concat([bytes, chunk]);
      const size = bytes.length < SIZE_BYTES ? 0 : bytes.readUInt32LE();
      if (size > FRAME_LIMIT) return fail(brokenOff(new WireError(`a frame of ${size} bytes`)));
      const end = SIZE_BYTES + size;
      if (size === 0 || bytes.length < end) return;
      settle(() => {
        const bootId = readAnswer(bytes.subarray(SIZE_BYTES, end), options);
        resolve({ bootId, bytes: new KeeperStream(socket, bytes.subarray(end), signal) });
      });
    };
    const timer = setTimeout(late, deadlineMs);
    signal.addEventListener("abort", abort);
    if (signal.aborted) return abort();
    socket.on("data", take).on("close", lost);
  });
}

function readAnswer(frame: Buffer, options: DialOptions): string {
  const from = Reader.of(frame);
  if (from.u32() !== DIAL_ID) throw new WireError("an answer to what was not asked");
  const type = from.u32();
  if (type === REFUSAL) throw refusalOf(readRefusal(from));
  if (type !== (REQUEST.dial | ANSWER)) throw new WireError("an answer of another type than the request");
  const { spoken, welcome } = dial(options, options.port).decode(from);
  from.end();
  if (welcome === null) throw new LinkLost(otherProtocol(spoken), "no");
  return welcome.bootId;
}

/** A keeper that can't dial waits for a hello. */
const refusalOf = (refusal: KeeperRefusal): KeeperRefusal =>
  refusal.reason === "not_greeted"
    ? new KeeperRefusal("unknown_type", "the sandbox was made by a version of Holdfast that has no ports")
    : refusal;

const brokenOff = (error: unknown): unknown =>
  error instanceof WireError ? new LinkLost(`the keeper broke the protocol: ${error.message}`, "no") : error;
