import { close, constants, ftruncate, open, read, write, writeSync } from "node:fs";
import { promisify } from "node:util";
import type { LogFiles } from "./log-files.ts";

const opened = promisify(open);
const closed = promisify(close);
const truncated = promisify(ftruncate);
const written = promisify(write);
const readBack = promisify(read);

/** Maximum number of buffered bytes; further lines are dropped and counted. */
const PENDING_BYTES = 1_048_576;
const BATCH_BYTES = 262_144;
/** Maximum length of a line; longer lines are dropped. */
export const LINE_BYTES = 65_536;
/** Time to wait after a failed write before the next attempt. */
const RETRY_MS = 1_000;
const NEWLINE = 10;

interface Current {
  descriptor: number;
  number: number;
  size: number;
}

/**
 * Appends lines to the newest log file, and starts another file when that one is full. Callers never wait: lines are
 * buffered and written in the background. If the disk accepts no data, lines are dropped and counted, because the
 * server must neither exit nor block because of its log. If the server is killed, the buffered lines are lost; those
 * that were also written to stderr can be found there.
 */
export class LogWriter {
  readonly #files: LogFiles;
  readonly #fileBytes: number;
  readonly #count: number;
  #pending: Buffer[] = [];
  #pendingBytes = 0;
  #leftOut = 0;
  #current: Current | null = null;
  #underWay: Buffer | null = null;
  #flushing: Promise<void> | null = null;
  #retry: NodeJS.Timeout | undefined;
  #isOpen = false;

  constructor(files: LogFiles, { fileBytes, count }: { fileBytes: number; count: number }) {
    this.#files = files;
    this.#fileBytes = fileBytes;
    this.#count = count;
  }

  /** Starts writing the buffered lines. */
  open(): void {
    this.#isOpen = true;
    this.#flush();
  }

  write(line: string): void {
    const bytes = Buffer.from(line);
    const isTooLong = bytes.length > Math.min(LINE_BYTES, this.#fileBytes);
    if (isTooLong || this.#pendingBytes + bytes.length > PENDING_BYTES) {
      this.#leftOut += 1;
      return;
    }
    this.#pending.push(bytes);
    this.#pendingBytes += bytes.length;
    this.#flush();
  }

  /** Position up to which the newest file can be read; null if nothing was written yet. */
  get position(): { number: number; size: number } | null {
    return this.#current === null ? null : { number: this.#current.number, size: this.#current.size };
  }

  /** Resolves when all lines added so far are written or dropped. */
  async settle(): Promise<void> {
    this.#flush();
    await this.#flushing;
  }

  async close(): Promise<void> {
    await this.settle();
    this.#isOpen = false;
    clearTimeout(this.#retry);
    const current = this.#current;
    this.#current = null;
    if (current !== null) await closed(current.descriptor);
  }

  /**
   * Writes all buffered lines synchronously when the process exits. A write that is in progress at that moment is
   * repeated at the same position of the file, so no line is lost or stored twice.
   */
  finish(): void {
    if (this.#current === null) return;
    const { descriptor, size } = this.#current;
    const rest = Buffer.concat([...(this.#underWay === null ? [] : [this.#underWay]), ...this.#pending]);
    this.#pending = [];
    this.#pendingBytes = 0;
    try {
      writeSync(descriptor, rest, 0, rest.length, size);
    } catch {
      // The write failed. Of these lines, only those that were also written to stderr can be read after the exit.
    }
  }

  #flush(): void {
    if (!this.#isOpen || this.#flushing !== null || this.#retry !== undefined) return;
    if (this.#pending.length === 0) return;
    this.#flushing = this.#writeAll().finally(() => {
      this.#flushing = null;
      // Lines may have arrived while the last batch was written.
      this.#flush();
    });
  }

  async #writeAll(): Promise<void> {
    try {
      while (this.#pending.length > 0) {
        if (this.#leftOut > 0) this.#sayLeftOut();
        await this.#append(this.#take());
      }
    } catch {
      this.#retry = setTimeout(() => {
        this.#retry = undefined;
        this.#flush();
      }, RETRY_MS).unref();
    }
  }

  #sayLeftOut(): void {
    const notice = {
      level: 40,
      time: Date.now(),
      lines: this.#leftOut,
      msg: "lines of this log were left out",
    };
    const bytes = Buffer.from(`${JSON.stringify(notice)}\n`);
    this.#leftOut = 0;
    this.#pending.unshift(bytes);
    this.#pendingBytes += bytes.length;
  }

  /** Returns the lines of the next batch: at least one. */
  #take(): Buffer[] {
    const most = Math.min(BATCH_BYTES, this.#fileBytes);
    let bytes = 0;
    const over = this.#pending.findIndex((line, at) => {
      bytes += line.length;
      return at > 0 && bytes > most;
    });
    const lines = this.#pending.splice(0, over < 0 ? this.#pending.length : over);
    for (const { length } of lines) this.#pendingBytes -= length;
    return lines;
  }

  async #append(lines: readonly Buffer[]): Promise<void> {
    const batch = Buffer.concat(lines);
    this.#underWay = batch;
    try {
      const current = await this.#roomFor(batch.length);
      for (let done = 0; done < batch.length; ) {
        const left = batch.length - done;
        const { bytesWritten } = await written(current.descriptor, batch, done, left, current.size + done);
        done += bytesWritten;
      }
      current.size += batch.length;
    } catch (error) {
      this.#leftOut += lines.length;
      await this.#dropTorn();
      throw error;
    } finally {
      this.#underWay = null;
    }
  }

  /** Removes a partial line from the end of the file, so that the next line starts on a line of its own. */
  async #dropTorn(): Promise<void> {
    const current = this.#current;
    if (current !== null) await truncated(current.descriptor, current.size).catch(() => undefined);
  }

  async #roomFor(bytes: number): Promise<Current> {
    this.#current ??= await this.#newest();
    const { number, size, descriptor } = this.#current;
    if (size + bytes <= this.#fileBytes || size === 0) return this.#current;
    // The oldest files are deleted before the next file is created, because on a full disk only their deletion makes
    // room for it.
    await this.#files.keep(this.#count - 1);
    const next = await this.#openFile(number + 1, 0);
    this.#current = next;
    await closed(descriptor);
    return next;
  }

  async #newest(): Promise<Current> {
    await this.#files.make();
    await this.#files.keep(this.#count);
    const number = (await this.#files.numbers()).at(-1) ?? 1;
    const size = await this.#files.size(number).catch(() => 0);
    const current = await this.#openFile(number, size);
    current.size = await wholeLines(current);
    return current;
  }

  async #openFile(number: number, size: number): Promise<Current> {
    const flags = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW;
    return { descriptor: await opened(this.#files.path(number), flags, 0o600), number, size };
  }
}

/**
 * Removes a partial last line, which a killed server may have left, and returns the length of the file. The file then
 * ends with a complete line.
 */
async function wholeLines({ descriptor, size }: Current): Promise<number> {
  const tail = Buffer.alloc(Math.min(size, LINE_BYTES));
  const start = size - tail.length;
  await readBack(descriptor, tail, 0, tail.length, start);
  const whole = start + tail.lastIndexOf(NEWLINE) + 1;
  if (whole < size) await truncated(descriptor, whole);
  return whole;
}
