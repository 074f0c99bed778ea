import { SerialQueue } from "../lib/serial-queue.ts";
import type { Link, SupervisedRun } from "../ports/index.ts";
import type { ExecRecord, ProcessRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";

/**
 * The keeper's report about one run: the run's row, or null if the keeper has none, and the link over which the report
 * came.
 */
interface RunReport {
  readonly row: SupervisedRun | null;
  readonly link: Link;
  readonly run: number;
}

/** A named process in memory: its record as stored, and the keeper's last report. */
export class ProcessEntry {
  readonly live: LiveSandbox;
  /** Runs the decisions about the process one after the other. */
  readonly turns = new SerialQueue();
  #record: ProcessRecord;
  #lastExec: ExecRecord | null = null;
  #report: RunReport | null = null;
  #searchedIn: number | null = null;

  constructor(live: LiveSandbox, record: ProcessRecord) {
    this.live = live;
    this.#record = record;
  }

  get record(): ProcessRecord {
    return this.#record;
  }

  /** Replaces the record with the one that was stored. */
  setRecord(record: ProcessRecord): void {
    if (record.run !== this.#record.run) this.#lastExec = null;
    this.#record = record;
  }

  /** The exec record of the last run if its end is recorded; otherwise null. */
  get lastExec(): ExecRecord | null {
    return this.#lastExec;
  }

  setLastExec(record: ExecRecord | null): void {
    this.#lastExec = record;
  }

  /** The keeper's last report about a run; null before the first report. */
  get report(): RunReport | null {
    return this.#report;
  }

  setReport(report: RunReport): void {
    this.#report = report;
  }

  /** Whether the journals were searched for unrecorded runs in this generation. */
  wasSearchedIn(generation: number): boolean {
    return this.#searchedIn === generation;
  }

  markSearchedIn(generation: number): void {
    this.#searchedIn = generation;
  }
}
