import { ConflictError, type ExecRun, type OutputChunk } from "@holdfast/sdk";
import { writeTo } from "../output/streams.ts";

/** Writes chunks byte for byte to stdout or stderr, with backpressure. */
export async function pipeOutput(chunks: AsyncIterable<OutputChunk>, signal: AbortSignal): Promise<void> {
  for await (const { stream, data } of chunks) await writeTo(stream, data, signal);
}

/**
 * Sends stdin to the command, exactly once and to its end. If the command ends first, the rest is dropped without
 * error.
 */
export async function pumpStdin(run: ExecRun, signal: AbortSignal): Promise<void> {
  try {
    await run.writeStdin(process.stdin as AsyncIterable<Uint8Array>, { end: true, signal });
  } catch (error) {
    if (!signal.aborted && !(error instanceof ConflictError)) throw error;
  } finally {
    process.stdin.destroy();
  }
}
