import type { Cell } from "./cell.ts";
import type { KeptRun, Link } from "./ports.ts";
import type { ExecRecord, ProcessRecord } from "./records.ts";

/** A named process in memory: its record as stored, and what was last heard of it. */
export interface ProcessEntry {
  readonly cell: Cell;
  record: ProcessRecord;
  /** The last run where it has ended, as far as that is on record. */
  last: ExecRecord | null;
  /** What its keeper said when it was asked after this run, over which link; null where that was not asked yet. */
  heard: { row: KeptRun | null; link: Link; run: number } | null;
  /** The looks for the readiness of one run in one generation, while there are any. */
  watch: { run: number; generation: number; over: AbortController } | null;
  /** The generation of its sandbox in which journals were looked for of runs that nobody heard of. */
  searchedIn: number | null;
  /** What is decided about it is decided one after the other. */
  tail: Promise<unknown>;
}

export const processEntry = (cell: Cell, record: ProcessRecord): ProcessEntry => ({
  cell,
  record,
  last: null,
  heard: null,
  watch: null,
  searchedIn: null,
  tail: Promise.resolve(),
});
