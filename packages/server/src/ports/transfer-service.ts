import type { Readable } from "node:stream";
import type { Drive, Sandbox } from "@holdfast/contract";

/** Exports one sandbox or drive as one archive, and imports it. */
export interface TransferService {
  exportSandbox(ref: string, signal: AbortSignal): Promise<Readable>;
  exportDrive(ref: string, signal: AbortSignal): Promise<Readable>;
  importSandbox(
    name: string | undefined,
    archive: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<Sandbox>;
  importDrive(
    name: string | undefined,
    archive: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<Drive>;
}
