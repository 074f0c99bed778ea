import type { OutputChunk, OutputOptions } from "../api.ts";
import { HoldfastError, OutputDroppedError, unexpected, unreachable } from "../errors.ts";
import { type Calls, STREAM_SILENCE_MS } from "../transport/calls.ts";
import { FRAMES_TYPE, type Frame, FrameDecoder, type OutputFrame } from "../transport/frames.ts";
import type { Exec } from "../types.generated.ts";
import { hasEnded } from "./ended.ts";

/** Callbacks for what an output stream reports about its exec. */
interface Learns {
  exec(exec: Exec): void;
  cursor(cursor: string): void;
  /** Reports whether the exec is frozen together with its sandbox. */
  suspended(suspended: boolean): void;
}

/**
 * Reads an exec's output to its end over any number of connections. A stream that breaks, falls silent, or ends without
 * an `end` record is replaced by a new one, which starts after the last chunk yielded, so no output is missed or
 * repeated. Retries have a time limit, which restarts when an outage has ended. A `start` record alone does not end an
 * outage: a server that only ever sends `start` and closes the connection would keep the reader retrying forever.
 */
export class OutputReader {
  readonly #calls: Calls;
  readonly #path: string;
  readonly #options: OutputOptions;
  readonly #learns: Learns;
  readonly #follow: boolean;
  /**
   * Whether the command waits for this reader when the journal is full, instead of dropping output; undefined for the
   * server's default. It is false for a reader that follows the output and accepts gaps, so that this reader never
   * delays the command.
   */
  readonly #hold: boolean | undefined;
  #chunker = new Chunker();
  /** Position at which the next connection resumes. */
  #position: string | undefined;
  /** The part of a cursor before its byte offset. It is the same in all cursors of the exec. */
  #prefix = "";
  #endExpected = true;
  #done = false;
  #lost = false;
  /** Whether output was skipped between the last chunk and the next one. */
  #dropped = false;

  constructor(calls: Calls, path: string, options: OutputOptions, learns: Learns) {
    this.#calls = calls;
    this.#path = path;
    this.#options = options;
    this.#learns = learns;
    this.#follow = options.follow ?? true;
    this.#hold = options.hold ?? (this.#follow && options.onDropped === "skip" ? false : undefined);
    this.#position = options.cursor;
  }

  async *chunks(signal: AbortSignal | undefined): AsyncGenerator<OutputChunk, void, undefined> {
    const outage = this.#calls.outage({ idempotent: true, waiting: true, signal });
    while (!this.#done) {
      try {
        for await (const frames of this.#frames(signal)) {
          for (const frame of frames) {
            if (frame.type !== "start") outage.over();
            const chunk = this.#take(frame);
            if (chunk !== null) yield chunk;
          }
        }
        if (!this.#done && this.#endExpected) throw this.#cutShort();
        this.#done = true;
      } catch (error) {
        if (this.#skips(error)) continue;
        this.#say("lost", isPassing(error));
        await outage.failed(error);
      }
    }
  }

  async *#frames(signal: AbortSignal | undefined): AsyncGenerator<Frame[], void, undefined> {
    this.#endExpected = true;
    const reply = await this.#calls.open({
      method: "GET",
      path: this.#path,
      query: { cursor: this.#position, follow: this.#follow, stream: this.#options.stream, hold: this.#hold },
      headers: { accept: FRAMES_TYPE },
      type: FRAMES_TYPE,
      idempotent: true,
      silenceMs: STREAM_SILENCE_MS,
      signal,
    });
    const decoder = new FrameDecoder();
    for await (const piece of reply.stream()) yield this.#decoded(decoder, piece);
  }

  #decoded(decoder: FrameDecoder, piece: Uint8Array): Frame[] {
    try {
      return decoder.push(piece);
    } catch (cause) {
      throw new HoldfastError({ ...unexpected(this.#where(), 200, ""), cause });
    }
  }

  #take(frame: Frame): OutputChunk | null {
    switch (frame.type) {
      case "start":
        this.#prefix = frame.cursor.slice(0, frame.cursor.lastIndexOf(".") + 1);
        // If the reader does not follow the output, the stream has an `end` record only if the exec has ended.
        this.#endExpected = this.#follow || hasEnded(frame.exec);
        this.#learns.exec(frame.exec);
        this.#say("back", true);
        return null;
      case "keepalive":
        this.#moveTo(frame.cursor);
        this.#learns.suspended(frame.suspended ?? false);
        return null;
      case "end":
        this.#moveTo(frame.cursor);
        this.#learns.exec(frame.exec);
        this.#done = true;
        return null;
      case "stdout":
      case "stderr":
        return this.#chunk(frame);
      default:
        return frame satisfies never;
    }
  }

  #chunk(frame: OutputFrame): OutputChunk {
    const cursor = `${this.#prefix}${frame.offset}`;
    this.#moveTo(cursor);
    const dropped = this.#dropped;
    this.#dropped = false;
    return this.#chunker.chunk(frame, cursor, dropped);
  }

  #moveTo(cursor: string): void {
    this.#position = cursor;
    this.#learns.cursor(cursor);
  }

  /**
   * Handles an error of the stream. If output was dropped and the caller chose `onDropped: "skip"`, moves the cursor to
   * the oldest output kept and returns true. Otherwise returns false.
   */
  #skips(error: unknown): boolean {
    if (!(error instanceof OutputDroppedError) || this.#options.onDropped !== "skip") return false;
    if (error.floor === null || error.floor === this.#position) return false;
    this.#position = error.floor;
    this.#dropped = true;
    this.#chunker = new Chunker();
    return true;
  }

  #say(state: "lost" | "back", isNews: boolean): void {
    if (!isNews || this.#lost === (state === "lost")) return;
    this.#lost = state === "lost";
    this.#options.onConnection?.(state);
  }

  #cutShort(): HoldfastError {
    return unreachable(this.#where(), "yes", new Error("the stream ended before the exec did"));
  }

  #where() {
    return this.#calls.where({ method: "GET", path: this.#path });
  }
}

const isPassing = (error: unknown): boolean => error instanceof HoldfastError && error.retryable;

const NOTHING = new Uint8Array();

/**
 * Converts frames to chunks. If a chunk ends within a UTF-8 character, the text of that character is part of the next
 * chunk of its stream.
 */
class Chunker {
  readonly #carried: Record<"stdout" | "stderr", Uint8Array> = { stdout: NOTHING, stderr: NOTHING };

  chunk(frame: OutputFrame, cursor: string, dropped: boolean): OutputChunk {
    const before = this.#carried[frame.type];
    const cut = cutCharacter(frame.data, before);
    this.#carried[frame.type] = cut;
    return new Chunk(frame, cursor, dropped, before, cut.length);
  }
}

/** Decodes text and time on access, so that readers of bytes do not pay for them. */
class Chunk implements OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  readonly cursor: string;
  readonly dropped: boolean;
  readonly #timeUs: number;
  readonly #before: Uint8Array;
  readonly #cutBytes: number;

  constructor(
    { type, data, timeUs }: OutputFrame,
    cursor: string,
    dropped: boolean,
    before: Uint8Array,
    cutBytes: number,
  ) {
    this.stream = type;
    this.data = data;
    this.cursor = cursor;
    this.dropped = dropped;
    this.#timeUs = timeUs;
    this.#before = before;
    this.#cutBytes = cutBytes;
  }

  get at(): string {
    return new Date(this.#timeUs / 1000).toISOString();
  }

  get text(): string {
    const whole = Buffer.concat([this.#before, this.data]);
    return whole.toString("utf8", 0, whole.length - this.#cutBytes);
  }
}

/** Returns the last bytes of the data, at most three, that begin a UTF-8 character but do not complete it. */
function cutCharacter(data: Uint8Array, before: Uint8Array = NOTHING): Uint8Array {
  const tail = data.length >= 4 ? data.subarray(-4) : Buffer.concat([before, data]).subarray(-4);
  for (let back = 1; back <= Math.min(3, tail.length); back++) {
    const byte = tail[tail.length - back] ?? 0;
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return needed > back ? Uint8Array.from(tail.subarray(tail.length - back)) : NOTHING;
  }
  return NOTHING;
}
