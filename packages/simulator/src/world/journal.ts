import type { ExecId } from "@holdfast/contract";
import {
  type JournalEnd,
  type JournalRecord,
  type JournalSlice,
  type KeeperExec,
  KeeperRefusal,
} from "@holdfast/engine";

const HEADER_BYTES = 24;

/**
 * The journal of one exec, as a file. It still exists after the command's process, the keeper and the sandbox are gone.
 */
export class Journal {
  readonly id: ExecId;
  readonly records: JournalRecord[] = [];
  exit: KeeperExec | null = null;
  /** Whether a power cut removed data that was not flushed to disk. */
  torn = false;

  constructor(id: ExecId) {
    this.id = id;
  }

  get end(): number {
    return this.records.at(-1)?.cursor ?? 0;
  }

  append(text: string, at: number): void {
    const data = Buffer.from(text);
    this.records.push({ stream: "stdout", at, cursor: this.end + HEADER_BYTES + data.length, data });
  }

  /** Returns the complete records that follow a cursor. */
  slice(cursor: number, more: boolean): JournalSlice {
    const end = this.end;
    const begins = cursor === 0 || this.records.some((record) => record.cursor === cursor);
    if (!begins) throw new KeeperRefusal("bad_cursor", "no record begins there");
    const records = this.records.filter((record) => record.cursor > cursor);
    return { records, next: end, floor: 0, end, more };
  }

  /**
   * Returns what the journal says about the exec's end: the exit record, or null if there is none, and the position at
   * which the journal ends.
   */
  ending(): JournalEnd {
    return { exec: this.exit === null ? null : { ...this.exit }, end: this.exit?.journalEnd ?? this.end };
  }

  /** Returns an independent copy, as if it were another file. */
  copy(): Journal {
    const copy = new Journal(this.id);
    copy.records.push(...this.records);
    copy.exit = this.exit === null ? null : { ...this.exit };
    copy.torn = this.torn;
    return copy;
  }

  /** Removes the exit record, and all output after the first `records` records, as a power cut does. */
  tear(records: number): void {
    this.exit = null;
    this.torn = true;
    this.records.splice(records);
  }

  get text(): string {
    return Buffer.concat(this.records.map(({ data }) => data)).toString();
  }
}
