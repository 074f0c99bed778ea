import { once } from "node:events";
import { ConflictError, type ExecRun, type OutputChunk } from "@holdfast/sdk";
import { Interrupted } from "./interrupt.ts";

/** Writes chunks byte for byte to the stream they belong to, no faster than it takes them. */
export async function pipeOutput(chunks: AsyncIterable<OutputChunk>, signal: AbortSignal): Promise<void> {
  for await (const { stream, data } of chunks) await writeTo(stream, data, signal);
}

export async function writeTo(
  stream: "stdout" | "stderr",
  data: string | Uint8Array,
  signal: AbortSignal,
): Promise<void> {
  const target = process[stream];
  if (!target.destroyed && target.write(data)) return;
  try {
    if (!target.destroyed) await once(target, "drain", { signal });
  } catch (error) {
    signal.throwIfAborted();
    if ((error as NodeJS.ErrnoException).code !== "EPIPE") throw error;
  }
  if (target.destroyed) throw new Interrupted("SIGPIPE");
}

/** A reader that left, as `head` does, or a terminal that was closed ends us like any other program. */
export function watchBrokenPipes(leave: (interrupted: Interrupted) => void): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EPIPE") leave(new Interrupted("SIGPIPE"));
      else if (error.code === "EIO") leave(new Interrupted("SIGHUP"));
      else throw error;
    });
  }
}

/** Our stdin into the command's, exactly once and to its end. An ended command needs no more input: that is no failure. */
export async function pumpStdin(run: ExecRun, signal: AbortSignal): Promise<void> {
  try {
    await run.writeStdin(process.stdin as AsyncIterable<Uint8Array>, { end: true, signal });
  } catch (error) {
    if (!signal.aborted && !(error instanceof ConflictError)) throw error;
  } finally {
    process.stdin.destroy();
  }
}
