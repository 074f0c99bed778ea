/** Length of a line. Each begins with its number, so that a missing, repeated or changed byte is noticed anywhere. */
const LINE_BYTES = 1_024;
const NUMBER_DIGITS = 15;
const FILLING = Buffer.from(` ${"x".repeat(LINE_BYTES - NUMBER_DIGITS - 2)}\n`);
const NEWLINE = 10;

/** A command that prints this many lines as fast as it can. */
export const printer = (lines: number): string[] => [
  "/usr/bin/python3",
  "-c",
  `import os
filling = b" " + b"x" * ${FILLING.length - 2} + b"\\n"
for i in range(0, ${lines}, 64):
    os.write(1, b"".join(b"%0${NUMBER_DIGITS}d" % j + filling for j in range(i, min(i + 64, ${lines}))))`,
];

/** Reads numbered lines from any position on. Throws if a line does not follow the one before it. */
export class LineReader {
  /** The number of the last complete line. */
  last = -1;
  bytes = 0;
  /** Number of reported gaps. */
  gaps = 0;
  #rest: Buffer = Buffer.alloc(0);
  #inSync = true;

  /** Reports a gap: the next bytes may begin in the middle of a line. */
  gap(): void {
    this.gaps += 1;
    this.#rest = Buffer.alloc(0);
    this.#inSync = false;
  }

  take(data: Uint8Array): void {
    this.bytes += data.length;
    let from =
      this.#rest.length === 0
        ? Buffer.from(data.buffer, data.byteOffset, data.length)
        : Buffer.concat([this.#rest, data]);
    if (!this.#inSync) {
      const newline = from.indexOf(NEWLINE);
      if (newline === -1) return;
      from = from.subarray(newline + 1);
    }
    for (; from.length >= LINE_BYTES; from = from.subarray(LINE_BYTES))
      this.#line(from.subarray(0, LINE_BYTES));
    this.#rest = Buffer.from(from);
  }

  #line(line: Buffer): void {
    const number = Number(line.toString("latin1", 0, NUMBER_DIGITS));
    if (this.#inSync && number !== this.last + 1)
      throw new Error(`line ${number} came behind line ${this.last}`);
    if (number <= this.last) throw new Error(`line ${number} came again behind line ${this.last}`);
    if (!line.subarray(NUMBER_DIGITS).equals(FILLING)) throw new Error(`line ${number} is damaged`);
    this.#inSync = true;
    this.last = number;
  }
}
