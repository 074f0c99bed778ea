/**
 * A caller attached to an exec: output is sent as it is journaled, input is passed to the exec. Any number of callers
 * may be attached to one exec, each with its own cursor. An attachment owns nothing: when it ends, for whatever reason,
 * the exec keeps running, and the caller can reconnect with its last cursor.
 *
 * Input is processed one message at a time, in order, and the socket is not read while a message is processed. So at
 * most one read of the socket is buffered: one message, or several small ones.
 */
import { HoldfastError, isHoldfastError, type OutputStream } from "@holdfast/contract";
import type { OutputRecord } from "@holdfast/engine";
import type { FastifyRequest } from "fastify";
import { CallerLeft } from "../http/callers.ts";
import type { RouteContext } from "../http/context.ts";
import { type ClientMessage, readMessage } from "./attach-messages.ts";
import { type AttachedSocket, CLOSE } from "./attached-socket.ts";
import { frameOf } from "./frames.ts";

export interface Attach {
  id: string;
  cursor?: string | undefined;
  stream?: OutputStream | undefined;
  hold?: boolean | undefined;
  request: FastifyRequest;
  /** Aborts when the caller has disconnected or the server shuts down. */
  signal: AbortSignal;
}

interface Incoming {
  data: Buffer;
  isBinary: boolean;
}

type Input = Exclude<ClientMessage, { type: "stdin" }> | { type: "stdin"; chunk: Chunk };
type Chunk = { offset: number | null; data: Buffer; end: boolean };

export class Attachment {
  readonly #socket: AttachedSocket;
  readonly #context: RouteContext;
  readonly #wanted: Attach;
  readonly #incoming: Incoming[] = [];
  #isTaking = false;
  /** Input is no longer accepted. */
  #isOver = false;

  constructor(socket: AttachedSocket, context: RouteContext, wanted: Attach) {
    this.#socket = socket;
    this.#context = context;
    this.#wanted = wanted;
    socket.onMessage((data, isBinary) => {
      this.#incoming.push({ data, isBinary });
      if (!this.#isTaking) void this.#takeAll();
    });
  }

  /** Sends the output until its end. Resolves when the socket is closed or the connection is lost; never rejects. */
  async run(): Promise<void> {
    const { signal } = this.#wanted;
    const dismiss = () => this.#dismiss();
    signal.addEventListener("abort", dismiss);
    if (signal.aborted) dismiss();
    try {
      await this.#show();
    } catch (error) {
      await this.#fail(error);
    }
  }

  async #show(): Promise<void> {
    const { id, request: _request, ...wanted } = this.#wanted;
    const { engine, metrics } = this.#context;
    for await (const record of engine.execs.output(id, { ...wanted, follow: true })) {
      if ("data" in record) metrics.streamed("attach", record.data.length);
      await this.#socket.send(messageOf(record));
      if (record.type === "end") {
        this.#close(CLOSE.over, "the exec has ended");
        return;
      }
    }
    this.#cut("the stream was cut; reconnect with the last cursor");
  }

  async #takeAll(): Promise<void> {
    this.#isTaking = true;
    this.#socket.pause();
    try {
      for (let next = this.#incoming.shift(); next && !this.#isOver; next = this.#incoming.shift()) {
        await this.#take(next);
      }
    } catch (error) {
      await this.#fail(error);
    }
    this.#isTaking = false;
    this.#socket.resume();
  }

  async #take(incoming: Incoming): Promise<void> {
    let input: Input;
    try {
      input = inputOf(incoming);
    } catch (error) {
      return this.#fail(error, CLOSE.malformed);
    }
    try {
      await this.#give(input);
    } catch (error) {
      // An error that the caller caused, such as input for an exec that has ended or has no terminal, has no effect on
      // the exec, so it is only reported to the caller. After any other error the position in stdin is unknown, and
      // further input could leave a gap, so the error is thrown.
      if (!isCallers(error)) throw error;
      const { body } = this.#context.report(error, this.#wanted.request, false);
      await this.#socket.send(JSON.stringify({ type: "error", of: input.type, error: body.error }));
    }
  }

  async #give(input: Input): Promise<void> {
    const { id, signal } = this.#wanted;
    const { execs } = this.#context.engine;
    switch (input.type) {
      case "resize":
        await execs.resize(id, { cols: input.cols, rows: input.rows }, signal);
        return;
      case "signal":
        await execs.signal(id, input.signal, signal);
        return;
      case "stdin":
        await this.#socket.send(JSON.stringify({ type: "accepted", offset: await this.#write(input.chunk) }));
        return;
      case "detach":
        this.#close(CLOSE.over, "detached");
        return;
      default:
        input satisfies never;
    }
  }

  /**
   * Writes all bytes. When its buffer is full, a keeper accepts only a part, so the rest is sent after a pause.
   * Resolves to the stdin offset after the last byte.
   */
  async #write({ offset, data, end }: Chunk): Promise<number> {
    const { id, signal } = this.#wanted;
    let rest = data;
    let position = offset;
    for (;;) {
      const chunk = { offset: position, data: rest, end };
      const { accepted } = await this.#context.engine.execs.writeStdin(id, chunk, signal);
      if (offset === null || accepted >= offset + data.length) return accepted;
      rest = data.subarray(Math.max(0, accepted - offset));
      position = Math.max(offset, accepted);
    }
  }

  /** Sends the error to the caller, if the caller is still connected, and closes the socket. */
  async #fail(error: unknown, code?: number): Promise<void> {
    if (this.#isOver) return;
    if (isHoldfastError(error) && error.code === "shutting_down") {
      this.#cut("the server is shutting down");
      return;
    }
    this.#isOver = true;
    const left = error instanceof CallerLeft || !this.#socket.isOpen;
    const { status, body } = this.#context.report(error, this.#wanted.request, left);
    if (left) return;
    await this.#socket.send(JSON.stringify({ type: "error", error: body.error })).catch(() => {});
    this.#socket.close(code ?? CLOSE.error + status, body.error.code);
  }

  #close(code: number, reason: string): void {
    this.#isOver = true;
    this.#socket.close(code, reason);
  }

  #cut(reason: string): void {
    this.#isOver = true;
    this.#socket.cut(reason);
  }

  #dismiss(): void {
    if (this.#wanted.signal.reason instanceof CallerLeft) this.#isOver = true;
    else this.#cut("the server is shutting down");
  }
}

/** Output is sent as one binary frame; other records are sent as text. */
function messageOf(record: OutputRecord): string | Uint8Array {
  return "data" in record ? Buffer.concat(frameOf(record)) : JSON.stringify(record);
}

function inputOf({ data, isBinary }: Incoming): Input {
  if (isBinary) return { type: "stdin", chunk: { offset: null, data, end: false } };
  const message = readMessage(data.toString("utf8"));
  if (message.type !== "stdin") return message;
  const { data: text = "", offset = null, end = false } = message;
  return { type: "stdin", chunk: { offset, data: Buffer.from(text, "base64"), end } };
}

const isCallers = (error: unknown): boolean => error instanceof HoldfastError && error.status < 500;
