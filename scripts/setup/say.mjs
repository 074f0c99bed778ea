/** A problem that the user has to solve. The message says what it is and how to solve it. */
export class SetupError extends Error {}

export const say = (text) => process.stderr.write(`setup: ${text}\n`);

/** Seconds between two progress lines, when the output is not a terminal. */
const LINE_EVERY_S = 15;

/** Announces work that may take long, shows progress while it runs, and reports its duration if that is a second or more. */
export async function saying(text, work) {
  const isTerminal = process.stderr.isTTY === true;
  const startedAt = Date.now();
  const elapsed = () => Math.round((Date.now() - startedAt) / 1_000);
  const clear = () => {
    if (isTerminal) process.stderr.write("\r\x1b[2K");
  };
  let ticks = 0;
  const tick = () => {
    ticks += 1;
    if (isTerminal) process.stderr.write(`\r\x1b[2Ksetup: ${text} … ${elapsed()} s`);
    else if (ticks % LINE_EVERY_S === 0) say(`${text} … ${elapsed()} s`);
  };
  if (!isTerminal) say(text);
  else process.stderr.write(`setup: ${text} …`);
  const ticker = setInterval(tick, 1_000);
  try {
    const result = await work();
    clear();
    if (elapsed() > 0) say(`${text}: ${elapsed()} s`);
    return result;
  } catch (error) {
    clear();
    throw error;
  } finally {
    clearInterval(ticker);
  }
}
