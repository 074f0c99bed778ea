import { causeOf } from "@holdfast/contract";
import type { ExecLedger, FoundRun } from "../execs/exec-ledger.ts";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { ProcessEntry } from "../live/process-entry.ts";
import { entryOf, isUnrecordedRun, numberIn, rowOf } from "../live/run-ids.ts";
import { newExec } from "../model/exec-outcome.ts";
import { runId } from "../model/process-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import type { KeeperExec, Link, SupervisedRun } from "../ports/index.ts";
import { endingOf, restarted } from "./process-events.ts";
import { execOf, type ProcessRecords, updateOf } from "./process-records.ts";

/**
 * Maximum number of runs that a keeper starts without a server. Only a server makes a keeper forget runs, and a keeper
 * that knows too many runs starts no further ones.
 */
const LEFT_RUNS_MAX = 2_048;

/**
 * Records the runs that a keeper began by itself, as soon as the server finds them. Without a record, such a run would
 * be lost or be treated as an unknown exec.
 */
export class FoundRuns {
  readonly #context: EngineContext;
  readonly #ledger: ExecLedger;
  readonly #records: ProcessRecords;

  constructor(context: EngineContext, ledger: ExecLedger, records: ProcessRecords) {
    this.#context = context;
    this.#ledger = ledger;
    this.#records = records;
  }

  /** Records those runs in a keeper's list that have no record yet. Never rejects. */
  async recordListed(
    live: LiveSandbox,
    listed: readonly KeeperExec[],
    link: Link,
    signal: AbortSignal,
  ): Promise<void> {
    if (!listed.some(({ id }) => isUnrecordedRun(live, id))) return;
    const rows = await link.listSupervised(signal).catch(() => []);
    for (const [entry, all] of Map.groupBy(listed, ({ id }) => entryOf(live, id)))
      if (entry !== undefined)
        await entry.turns
          .run(() => this.#recordOf(entry, all, rowOf(rows, entry)))
          .catch((error: unknown) => {
            const cause = causeOf(error);
            this.#context.log.error(
              { sandbox: live.id, process: entry.record.id, cause },
              "failed to record runs",
            );
          });
  }

  /**
   * Records the listed runs of one process that have no record yet, whatever the record says about the state of the
   * process.
   */
  async #recordOf(entry: ProcessEntry, all: readonly KeeperExec[], row: SupervisedRun | null): Promise<void> {
    const { live, record } = entry;
    const known = all
      .filter(({ id }) => isUnrecordedRun(live, id))
      .sort((one, other) => numberIn(one.id) - numberIn(other.id));
    if (known.length === 0) return;
    const runs = known.map((exec) => ({
      known: exec,
      record: {
        ...newExec(live, { ...execOf(record, exec.startedAt), id: exec.id }),
        startedAt: exec.startedAt,
      },
    }));
    await this.#record(entry, runs, { all, generation: live.record.generation, restarts: row?.restarts });
  }

  /**
   * Records runs that the keeper began and no server saw before the keeper's memory was lost. Their journals still
   * exist and show how the runs ended. No further run begins before these runs are recorded, because the restart policy
   * is applied to the last of them. Returns whether there were any such runs.
   */
  async recordLeft(entry: ProcessEntry): Promise<boolean> {
    const { clock, journals, numbers, stopping } = this.#context;
    const { live, record } = entry;
    const { generation } = live.record;
    const isRemembered = () => this.#records.facts(entry).isRemembered;
    if (record.spec.restart === null || entry.wasSearchedIn(generation) || isRemembered()) return false;
    const limit = { ms: numbers.keeperCallMs, what: "looking for journals of runs", signal: stopping };
    const left: KeeperExec[] = [];
    const runs = await within(clock, limit, async (signal) => {
      const found: FoundRun[] = [];
      while (found.length < LEFT_RUNS_MAX) {
        const id = runId(record.id, record.run + found.length + 1);
        const journal = await journals.end(live.id, id, signal);
        if (journal === null) break;
        if (journal.exec !== null) left.push(journal.exec);
        const order = { ...execOf(record, journal.exec?.startedAt ?? clock.now()), id };
        found.push({ known: null, record: { ...newExec(live, order), generation: record.generation } });
      }
      return found;
    });
    if (runs.length > 0) await this.#record(entry, runs, { all: left, generation: record.generation });
    entry.markSearchedIn(generation);
    return runs.length > 0;
  }

  /**
   * Records the runs after the last recorded one, in order. `all` contains the keeper's entries of these runs and of
   * earlier ones.
   */
  async #record(
    entry: ProcessEntry,
    runs: readonly FoundRun[],
    about: { all: readonly KeeperExec[]; generation: number; restarts?: number | undefined },
  ): Promise<void> {
    const { live, record } = entry;
    const { all, generation, restarts = record.restarts + runs.length } = about;
    const change = {
      run: Math.max(...runs.map((run) => numberIn(run.record.id))),
      generation,
      restarts,
      // A run has begun, so a requested restart is fulfilled. A requested stop remains.
      order: record.order?.do === "stop" ? record.order : null,
      end: null,
    };
    const before = await this.#records.lastExec(entry);
    await this.#records.apply(entry, change, (next) => {
      const events = runs.map(({ record: { id, createdAt } }, place) => {
        const run = {
          ...next,
          run: numberIn(id),
          restarts: Math.max(0, restarts - (runs.length - 1 - place)),
        };
        const previous = all.find((exec) => exec.id === runId(record.id, run.run - 1));
        return restarted(run, endingOf(previous) ?? (place === 0 ? before : null), createdAt);
      });
      return this.#ledger.take(live, runs, { changes: [updateOf(next)], events });
    });
  }
}
