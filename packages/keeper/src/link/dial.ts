import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { KeeperRefusal, LinkLost } from "@holdfast/engine";
import { dial, type Greeting } from "../wire/link-codec.ts";
import { ANSWER, FRAME_LIMIT, REFUSAL, REQUEST } from "../wire/protocol.ts";
import { readRefusal } from "../wire/refusal.ts";
import { openSocket } from "../wire/socket.ts";
import { Reader, WireError, Writer } from "../wire/wire.ts";
import { otherProtocol } from "./link.ts";
import { KeeperStream } from "./port-stream.ts";

/**
 * Maximum wait for the answer to a dial. A running keeper answers sooner, at the latest with a refusal when its own
 * time limit for connecting to the port has passed.
 */
const ANSWER_MS = 8_000;
const DIAL_ID = 1;
const SIZE_BYTES = 4;

export interface DialOptions extends Greeting {
  socketPath: string;
  port: number;
  deadlineMs?: number;
}

export interface Dialled {
  /**
   * The boot id of the keeper that answered. No data was sent to that keeper yet, so the caller can first check whether
   * it is the expected one.
   */
  bootId: string;
  bytes: Duplex;
}

/**
 * Opens a stream to a TCP port on the sandbox's loopback interface. The stream has its own connection to the keeper.
 * Rejects with `KeeperRefusal` if the keeper refuses the dial. The refusal has the reason `limit` if the keeper has too
 * many streams or open descriptors. It has the reason `system` and the errno ECONNREFUSED if nothing listens at the
 * port, and ETIMEDOUT if the listener does not accept the connection in time. Rejects with `LinkLost` if no keeper
 * answers in time, and with the signal's reason if the signal aborts before the answer.
 *
 * If the promise rejects, the port has received no data. If the signal aborts after the promise was resolved, it ends
 * the open stream.
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

/**
 * Waits for the answer. The stream is created in the same turn of the event loop in which the answer arrives, so that
 * no socket event is missed.
 */
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
        reject(asLinkLost(error));
      }
    };
    const fail = (error: unknown) => settle(() => reject(error));
    const abort = () => fail(signal.reason);
    const lost = () => fail(new LinkLost("the keeper closed the connection without an answer", "no"));
    const late = () => fail(new LinkLost(`the keeper did not answer within ${deadlineMs / 1000} s`, "no"));
    const take = (chunk: Buffer) => {
      bytes = Buffer.concat([bytes, chunk]);
      const size = bytes.length < SIZE_BYTES ? 0 : bytes.readUInt32LE();
      if (size > FRAME_LIMIT) return fail(asLinkLost(new WireError(`a frame of ${size} bytes`)));
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
  if (from.u32() !== DIAL_ID) throw new WireError("an answer without a request");
  const type = from.u32();
  if (type === REFUSAL) throw refusalOf(readRefusal(from));
  if (type !== (REQUEST.dial | ANSWER)) throw new WireError("an answer that does not match the request type");
  const { spoken, welcome } = dial(options, options.port).decode(from);
  from.end();
  if (welcome === null) throw new LinkLost(otherProtocol(spoken), "no");
  return welcome.bootId;
}

/**
 * Explains the refusal `not_greeted`: it comes from a keeper that does not support dials and expects a hello instead.
 */
const refusalOf = (refusal: KeeperRefusal): KeeperRefusal =>
  refusal.reason === "not_greeted"
    ? new KeeperRefusal(
        "unknown_type",
        "the sandbox was created by a version of Holdfast that does not support ports",
      )
    : refusal;

const asLinkLost = (error: unknown): unknown =>
  error instanceof WireError ? new LinkLost(`the keeper broke the protocol: ${error.message}`, "no") : error;
