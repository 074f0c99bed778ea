import { type Cause, causeOf } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { ended, type Outcome, type Trace, unseenEnd } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import { StoreConflict } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { Retention } from "./exec-retention.ts";
import { KEEPER_FORGOT, type OpenExecs } from "./open-execs.ts";

/** Time limit for reading a journal on the local disk. */
const TRACE_MS = 5_000;
/** Pause before another attempt to store an outcome that the store failed to commit. */
const STORE_RETRY_MS = 1_000;

/** Explains why a sandbox's command was killed; returns null if the reason is not known. */
export interface KillAttribution {
  whyKilled(live: LiveSandbox): Promise<Cause | null>;
}

interface FinishParts {
  open: OpenExecs;
  retention: Retention;
  killAttribution: KillAttribution;
  events: EngineEvents;
}

/** Ends execs and stores their outcomes. Every exec ends exactly once, in `finish`. */
export class ExecFinish {
  readonly #context: EngineContext;
  readonly #parts: FinishParts;

  constructor(context: EngineContext, parts: FinishParts) {
    this.#context = context;
    this.#parts = parts;
  }

  async finish(exec: OpenExec, outcome: Outcome): Promise<void> {
    if (!exec.markEnding()) return;
    const { open, retention, events } = this.#parts;
    const explained = await this.#explained(exec, outcome);
    const record = ended(exec.record, explained);
    await this.#store(record);
    open.leave(exec);
    // An exec that prevents standby, or that runs in a sandbox with an `idleTtlMs`, keeps the sandbox in use. Its end is
    // recorded as activity, so that idle time is counted from then on.
    const { idleTtlMs } = exec.live.record.spec.lifecycle;
    if (record.spec.keepAwake || idleTtlMs !== undefined) exec.live.touch();
    exec.markEnded(record);
    retention.ended(exec.live, record, { mayComeAgain: exec.mayHaveBeenSent });
    events.execClosed.emit(exec);
  }

  /** Ends an exec that its keeper no longer knows. */
  lose(exec: OpenExec): Promise<void> {
    return this.endUnseen(exec, "lost", KEEPER_FORGOT);
  }

  /** Ends an exec whose end no keeper will report. The outcome is read from the journal on disk. */
  async endUnseen(exec: OpenExec, status: "lost" | "cancelled", cause: Cause): Promise<void> {
    const trace = exec.isQueued ? "no journal" : await this.trace(exec.record);
    await this.finish(exec, unseenEnd(status, exec.record, cause, this.#context.clock.now(), trace));
  }

  /** Ends an exec that an earlier server left open, if the sandbox of the exec no longer has a record. */
  async abandon(record: ExecRecord): Promise<void> {
    const cause = { code: "sandbox_gone", message: "The sandbox was gone before the outcome was known." };
    const trace = await this.trace(record);
    await this.#store(ended(record, unseenEnd("lost", record, cause, this.#context.clock.now(), trace)));
  }

  /**
   * Reads the exec's end from its journal on disk. A failed read is reported as unknown, because it proves nothing
   * about the exec.
   */
  async trace({ sandboxId, id }: ExecRecord): Promise<Trace> {
    const { clock, journals, log } = this.#context;
    try {
      const limit = { ms: TRACE_MS, what: "reading the journal" };
      return (await within(clock, limit, (signal) => journals.end(sandboxId, id, signal))) ?? "no journal";
    } catch (error) {
      log.warn({ sandbox: sandboxId, exec: id, cause: causeOf(error) }, "failed to read a journal");
      return "not looked for";
    }
  }

  /** Adds the cause to the outcome if the command was killed because the sandbox ran out of memory. */
  async #explained(exec: OpenExec, outcome: Outcome): Promise<Outcome> {
    const killed = outcome.status === "exited" && (outcome.signal === "SIGKILL" || outcome.exitCode === 137);
    if (!killed) return outcome;
    const cause = await this.#parts.killAttribution.whyKilled(exec.live).catch(() => null);
    return cause === null ? outcome : { ...outcome, cause };
  }

  /**
   * Stores the outcome, and retries until the store accepts it. An outcome is never dropped because the store fails.
   */
  async #store(record: ExecRecord): Promise<void> {
    const { store, clock, log, stopping } = this.#context;
    const { id: execId, sandboxId, generation, status, exitCode, signal, cause } = record;
    const at = record.endedAt ?? clock.now();
    const message = describeEnd(record);
    const event = {
      at,
      type: "exec.ended",
      sandboxId,
      execId,
      generation,
      message,
      data: { status, exitCode, signal, cause },
    } as const;
    log.info({ sandbox: sandboxId, generation, exec: execId, status, exitCode, signal, cause }, "exec ended");
    for (;;) {
      try {
        await store.commit({
          changes: [{ kind: "exec.end", record }],
          events: [event],
          counters: { execsEnded: 1 },
        });
        this.#parts.events.execEnded.emit(record);
        return;
      } catch (error) {
        if (error instanceof StoreConflict || stopping.aborted) {
          log.error({ exec: execId, cause: causeOf(error) }, "failed to store an outcome");
          return;
        }
        log.error({ exec: execId, cause: causeOf(error) }, "failed to store an outcome, trying again");
        await clock.sleep(STORE_RETRY_MS, stopping).catch(() => undefined);
      }
    }
  }
}

function describeEnd({ status, exitCode, signal, cause }: ExecRecord): string {
  if (status !== "exited") return `exec ${status}`;
  const how = signal === null ? `exec exited with ${exitCode}` : `exec ended by ${signal}`;
  return cause === null ? how : `${how}: ${cause.message}`;
}
