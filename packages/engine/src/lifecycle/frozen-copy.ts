import { causeOf, type SandboxId } from "@holdfast/contract";
import { raced, within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import { requireCapability } from "../ports/index.ts";
import { isQuiet, type Standby, untilQuiet } from "./suspend.ts";
import { wrongState } from "./to-error.ts";

interface FrozenCopyParts {
  standby: Standby;
  registry: SandboxRegistry;
}

/**
 * Freezes running sandboxes while their files are copied. Calls are held during the copy, just as they are during a
 * checkpoint. Afterwards the sandboxes are thawed, linked and proven. A failure at any step leaves them running.
 */
export class FrozenCopy {
  readonly #context: EngineContext;
  readonly #parts: FrozenCopyParts;

  constructor(context: EngineContext, parts: FrozenCopyParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Freezes the sandboxes one after the other, and runs `copy` while all of them are frozen. */
  async run<Result>(
    ids: readonly SandboxId[],
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    const [first, ...others] = ids;
    if (first === undefined) return copy(signal);
    const live = await this.#parts.registry.find(first);
    await this.#claim(live, signal);
    try {
      return await this.#copyOne(live, (inner) => this.run(others, copy, inner), signal);
    } finally {
      live.endSave();
    }
  }

  /** Waits for the end of a suspension or checkpoint in progress, and prevents further ones until `endSave`. */
  async #claim(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const isFree = () => live.suspension === null && !live.isSaving;
    const { clock, numbers } = this.#context;
    const limit = { ms: numbers.standbyDeadlineMs, what: "waiting for the suspension in progress", signal };
    await within(clock, limit, async (inner) => {
      while (!isFree()) await live.until(isFree, inner);
    });
    live.beginSave();
  }

  async #copyOne<Result>(
    live: LiveSandbox,
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    const { clock, ids, numbers, stopping } = this.#context;
    const checkpointId = ids.checkpoint();
    const deadline = clock.now() + numbers.standbyDeadlineMs;
    const why = "The files of the sandbox are being copied; it is frozen until the copy is complete.";
    const order = { type: "suspend", checkpointId, kind: "files", deadline, why, saving: true } as const;
    if ((await live.decide(order)) === null)
      throw wrongState(
        live,
        `A sandbox that is ${live.judge().status} can't be frozen for a copy of its files.`,
      );
    const ended = AbortSignal.any([signal, stopping, live.deletedSignal]);
    const limit = { ms: numbers.standbyDeadlineMs, what: "copying the files", signal: ended };
    try {
      const result = await within(clock, limit, (inner) => this.#whileFrozen(live, copy, inner));
      await this.#parts.standby.serveAgain(live);
      await live.decideSurely({ type: "copied", checkpointId });
      return result;
    } catch (error) {
      if (live.deletedSignal.aborted) throw error;
      if (stopping.aborted) await this.#parts.standby.thaw(live);
      else await this.#serveOn(live, checkpointId, error);
      throw error;
    }
  }

  async #whileFrozen<Result>(
    live: LiveSandbox,
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    const { clock, driver, numbers } = this.#context;
    do await untilQuiet(this.#context, live, signal);
    while (!isQuiet(live));
    live.detachLink();
    await raced(live.healing, signal);
    const freezing = { ms: numbers.freezeMs, what: "freezing", signal };
    await within(clock, freezing, (inner) => requireCapability(driver, "freezer").freeze(live.id, inner));
    const copying = copy(signal);
    live.trackDriverWork(copying);
    const result = await copying;
    const seen = (await driver.observe([live.id], signal)).get(live.id);
    if (seen?.seen !== "present" || seen.state !== "frozen")
      throw new Error("the sandbox did not stay frozen while its files were copied");
    return result;
  }

  async #serveOn(
    live: LiveSandbox,
    checkpointId: ReturnType<EngineContext["ids"]["checkpoint"]>,
    error: unknown,
  ): Promise<void> {
    await this.#parts.standby.serveAgain(live);
    await live.decideSurely({ type: "copied", checkpointId });
    const cause = causeOf(error);
    this.#context.log.warn({ sandbox: live.id, cause }, "a copy failed; the sandbox keeps running");
  }
}
