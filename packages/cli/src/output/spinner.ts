import { setProgressLine } from "./streams.ts";

const FRAMES = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const EVERY_MS = 100;
/** Time after which the spinner is shown. Shorter work shows no spinner. */
const AFTER_MS = 300;
const CLEAR_LINE = "\r\x1b[K";

export interface Progress {
  update(text: string): void;
}

/**
 * Shows a progress line on stderr while `work` runs, then clears it. Other output appears above the progress line.
 * Prints nothing if stderr is not a terminal.
 */
export async function withSpinner<Result>(
  text: string,
  work: (progress: Progress) => Promise<Result>,
): Promise<Result> {
  const { stderr } = process;
  if (!stderr.isTTY) return work({ update() {} });
  const begun = performance.now();
  let shown = text;
  let frame = 0;
  let isDrawn = false;
  const hide = () => {
    if (isDrawn) stderr.write(CLEAR_LINE);
    isDrawn = false;
  };
  const timer = setInterval(() => {
    const seconds = (performance.now() - begun) / 1000;
    if (seconds * 1000 < AFTER_MS) return;
    stderr.write(`${CLEAR_LINE}${FRAMES[frame++ % FRAMES.length]} ${shown} ${seconds.toFixed(1)}s`);
    isDrawn = true;
  }, EVERY_MS);
  setProgressLine(hide);
  try {
    return await work({ update: (next) => (shown = next) });
  } finally {
    clearInterval(timer);
    hide();
    setProgressLine(null);
  }
}
