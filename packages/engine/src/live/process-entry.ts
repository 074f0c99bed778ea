import { SerialQueue } from "../lib/serial-queue.ts";
import type { Link, SupervisedRun } from "../ports/index.ts";
import type { ExecRecord, ProcessRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";

/** A named process in memory: its record as stored, and the keeper's last report. */
export interface ProcessEntry {
  readonly live: LiveSandbox;
  record: ProcessRecord;
  /** The exec record of the last run if its end is recorded; otherwise null. */
  last: ExecRecord | null;
  /** The keeper's last report about this run, and the link over which it came; null before the first report. */
  heard: { row: SupervisedRun | null; link: Link; run: number } | null;
  /** The readiness check of one run in one generation, while it runs. */
  watch: { run: number; generation: number; over: AbortController } | null;
  /** The generation in which the journals were last searched for unrecorded runs. */
  searchedIn: number | null;
  /** Runs the decisions about the process one after the other. */
  readonly turns: SerialQueue;
}

export const processEntry = (live: LiveSandbox, record: ProcessRecord): ProcessEntry => ({
  live,
  record,
  last: null,
  heard: null,
  watch: null,
  searchedIn: null,
  turns: new SerialQueue(),
});
