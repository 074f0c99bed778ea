import { causeOf, type OnWake } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import { raced, within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { signalNumber } from "../model/exec-outcome.ts";
import { forkSource } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { ExecLedger } from "./exec-ledger.ts";

const COMMAND_MS = 60_000;

/**
 * After a wake, notifies the commands that have an `onWake`. Standby broke their network connections, and only the
 * commands can restore them.
 */
export class WakeHooks {
  readonly #context: EngineContext;
  readonly #ledger: ExecLedger;

  constructor(context: EngineContext, events: EngineEvents, ledger: ExecLedger) {
    this.#context = context;
    this.#ledger = ledger;
    events.woke.subscribe((live) => void this.notify(live));
    // A fork's first proof is treated as a wake, because the commands in the fork's memory were suspended by the
    // checkpoint.
    events.proven.subscribe(async (live) => {
      if (forkSource(live.record) !== null) void this.notify(live);
    });
  }

  /** Notifies each running exec with an `onWake` once per wake, and records the result as an event. Never rejects. */
  async notify(live: LiveSandbox): Promise<void> {
    const link = live.link;
    if (!link) return;
    const asked = [...live.openExecs].filter(
      ({ record, isAcknowledged }) => isAcknowledged && record.spec.onWake,
    );
    await Promise.all(asked.map((exec) => this.#notifyOne(live, link, exec)));
  }

  async #notifyOne(live: LiveSandbox, link: Link, exec: OpenExec): Promise<void> {
    const { onWake } = exec.record.spec;
    if (onWake === null) return;
    try {
      await this.#record(exec, await this.#act(live, link, exec, onWake));
    } catch (error) {
      // If the server is stopping, nothing is recorded: the exec keeps running, and the next server follows it.
      if (this.#context.stopping.aborted) return;
      await this.#record(exec, `The exec could not be notified of the wake: ${causeOf(error).message}`);
    }
  }

  async #act(live: LiveSandbox, link: Link, exec: OpenExec, onWake: OnWake): Promise<string> {
    const { clock, numbers, ids, stopping } = this.#context;
    if ("signal" in onWake) {
      const limit = { ms: numbers.keeperCallMs, what: "the signal", signal: stopping };
      const number = signalNumber(onWake.signal) ?? 0;
      await within(clock, limit, (signal) => link.signalExec(exec.record.id, number, signal));
      return `The exec was sent ${onWake.signal}.`;
    }
    const id = ids.exec();
    const { generation } = live.record;
    const { env, cwd, user } = exec.record.spec;
    const spec = {
      argv: onWake.argv,
      env,
      cwd,
      user,
      timeoutMs: COMMAND_MS,
      stdin: null,
      tty: null,
      keepAwake: false,
      onWake: null,
    };
    const order: ExecRecord = {
      ...exec.record,
      id,
      generation,
      spec,
      digest: id,
      status: "starting",
      createdAt: clock.now(),
      startedAt: null,
    };
    const started = await this.#ledger.start(live, order, { idempotency: undefined, link, awaited: false });
    await raced(started.over.promise, stopping);
    const { status, exitCode } = started.record;
    return `The onWake command of the exec, exec ${id}, ended: ${status}${exitCode === null ? "" : ` with ${exitCode}`}.`;
  }

  async #record({ record }: OpenExec, message: string): Promise<void> {
    const { id: execId, sandboxId, generation } = record;
    const at = this.#context.clock.now();
    await recordEvent(this.#context, { at, type: "exec.woken", sandboxId, execId, generation, message });
  }
}
