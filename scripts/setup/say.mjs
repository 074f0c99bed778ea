import { Worker } from "node:worker_threads";

/** A problem that the user has to solve. The message says what it is and how to solve it. */
export class SetupError extends Error {}

export const say = (text) => process.stderr.write(`setup: ${text}\n`);

/** Seconds between two progress lines, when the output is not a terminal. */
const LINE_EVERY_S = 15;

/**
 * Source of a worker that shows the elapsed time while the main thread waits for a command. On a terminal it updates
 * one line every second; otherwise it writes a new line from time to time. A worker is needed because commands block
 * the main thread. `stop` becomes 1 when the command has ended.
 */
const TICKER = `
  const { writeSync } = require("node:fs");
  const { workerData: { text, isTerminal, everyS, stop } } = require("node:worker_threads");
  const flag = new Int32Array(stop);
  const startedAt = Date.now();
  for (let ticks = 1; Atomics.wait(flag, 0, 0, 1_000) === "timed-out"; ticks += 1) {
    const seconds = Math.round((Date.now() - startedAt) / 1_000);
    const line = "setup: " + text + " … " + seconds + " s";
    try {
      if (isTerminal) writeSync(2, "\\r\\x1b[2K" + line);
      else if (ticks % everyS === 0) writeSync(2, line + "\\n");
    } catch {}
  }
  if (isTerminal) try { writeSync(2, "\\r\\x1b[2K"); } catch {}
`;

/**
 * Announces work that may take long, shows progress while it runs, and reports its duration if that is a second or
 * more.
 */
export function saying(text, work) {
  const isTerminal = process.stderr.isTTY === true;
  const stop = new SharedArrayBuffer(4);
  const startedAt = Date.now();
  if (!isTerminal) say(text);
  else process.stderr.write(`setup: ${text} …`);
  const ticker = new Worker(TICKER, {
    eval: true,
    workerData: { text, isTerminal, everyS: LINE_EVERY_S, stop },
  });
  ticker.unref();
  const end = () => {
    Atomics.store(new Int32Array(stop), 0, 1);
    Atomics.notify(new Int32Array(stop), 0);
    if (isTerminal) process.stderr.write("\r\x1b[2K");
  };
  try {
    const result = work();
    end();
    const seconds = Math.round((Date.now() - startedAt) / 1_000);
    if (seconds > 0) say(`${text}: ${seconds} s`);
    return result;
  } finally {
    end();
  }
}
