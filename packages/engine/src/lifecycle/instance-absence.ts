import { type Cause, causeOf } from "@holdfast/contract";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { SANDBOX_DELETED } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Wakes } from "./wake.ts";

interface AbsenceParts {
  events: EngineEvents;
  registry: SandboxRegistry;
  wakes: Wakes;
}

/**
 * Decides what happens to the execs of an instance that is gone: after a delete they are cancelled, after a loss they
 * are lost, and after a standby that preserves memory they stay suspended. Sandboxes whose phase becomes `gone` are
 * dropped from the registry.
 */
export class InstanceAbsence {
  readonly #context: EngineContext;
  readonly #parts: AbsenceParts;
  readonly #leaving = new WeakSet<LiveSandbox>();

  constructor(context: EngineContext, parts: AbsenceParts) {
    this.#context = context;
    this.#parts = parts;
    parts.events.instanceAbsent.subscribe((live) => this.#observed(live));
  }

  async #observed(live: LiveSandbox): Promise<void> {
    const { processesEnded } = this.#parts.events;
    const { phase } = live.record;
    if (phase.name === "standby") return this.#slept(live, { filesOnly: phase.checkpoint === null });
    if (phase.name === "queued") {
      if (phase.restart) await processesEnded.run(live, { status: "lost", cause: phase.restart });
      return;
    }
    if (phase.name === "failed") await processesEnded.run(live, { status: "lost", cause: phase.cause });
    else await processesEnded.run(live, { status: "cancelled", cause: SANDBOX_DELETED });
    this.#dropOnceGone(live);
  }

  /** Drops the sandbox from the registry once its phase is `gone`, which is decided after its files are removed. */
  #dropOnceGone(live: LiveSandbox): void {
    if (this.#leaving.has(live)) return;
    this.#leaving.add(live);
    const { events, registry } = this.#parts;
    live
      .until(() => live.record.phase.name === "gone", this.#context.stopping)
      .then(
        () => {
          registry.drop(live);
          events.gone.emit(live);
        },
        () => undefined,
      );
  }

  /** Ends the execs if standby keeps only files. Wakes the sandbox if it has accepted a new exec in the meantime. */
  async #slept(live: LiveSandbox, { filesOnly }: { filesOnly: boolean }): Promise<void> {
    if (filesOnly)
      await this.#parts.events.processesEnded.run(live, { status: "lost", cause: FILES_STANDBY });
    this.wakeForWaitingExecs(live);
  }

  /** Wakes a sandbox that has accepted execs which have not reached its keeper. */
  wakeForWaitingExecs(live: LiveSandbox): void {
    if (![...live.openExecs].some(({ awaitsKeeper }) => awaitsKeeper)) return;
    this.#parts.wakes.wake(live).catch((error: unknown) => {
      this.#context.log.warn(
        { sandbox: live.id, cause: causeOf(error) },
        "a sandbox with waiting execs could not be woken",
      );
    });
  }
}

const FILES_STANDBY: Cause = {
  code: "files_standby",
  message: "The sandbox went to standby, which on this host keeps files only.",
};
