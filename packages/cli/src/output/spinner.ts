const FRAMES = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const EVERY_MS = 100;
/** What is done sooner is not worth a line. */
const AFTER_MS = 300;

export interface Progress {
  update(text: string): void;
}

/**
 * Shows on stderr what takes long, and takes the line away again; says nothing where stderr is not a terminal.
 */
export async function withSpinner<Result>(
  text: string,
  work: (progress: Progress) => Promise<Result>,
  stderr: NodeJS.WriteStream = process.stderr,
): Promise<Result> {
  if (!stderr.isTTY) return work({ update() {} });
  const begun = performance.now();
  let shown = text;
  let frame = 0;
  const timer = setInterval(() => {
    const seconds = (performance.now() - begun) / 1000;
    if (seconds * 1000 < AFTER_MS) return;
    stderr.write(`\r\x1b[K${FRAMES[frame++ % FRAMES.length]} ${shown} ${seconds.toFixed(1)}s`);
  }, EVERY_MS);
  try {
    return await work({ update: (next) => (shown = next) });
  } finally {
    clearInterval(timer);
    if (frame > 0) stderr.write("\r\x1b[K");
  }
}
