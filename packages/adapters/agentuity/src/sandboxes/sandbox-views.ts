import { type Exec, isHoldfastError, isTerminal, type Sandbox } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { detailsOf } from "./details.ts";
import { isJob } from "./exec-ids.ts";
import { openPort } from "./open-port.ts";
import { type Shown, shownAs, type TheirStatus } from "./shapes.ts";

/** A command that still runs behind so many newer ones is not seen: the sandbox is then called idle, and takes commands. */
const EXECS_LOOKED_AT = 100;

/** Sandboxes as the client has them: whether one is idle or running is not in its own record. */
export class SandboxViews {
  readonly #engine: EngineApi;
  readonly #onShown: (shown: Shown) => void;

  /** `onShown` is called with every one that somebody is told of. */
  constructor(engine: EngineApi, onShown: (shown: Shown) => void) {
    this.#engine = engine;
    this.#onShown = onShown;
  }

  async get(ref: string): Promise<Shown> {
    return this.show(await this.#engine.sandboxes.get(ref));
  }

  async show(sandbox: Sandbox): Promise<Shown> {
    const { executionId, port } = detailsOf(sandbox.labels);
    const shown = shownAs(sandbox, {
      isBusy: sandbox.status === "ready" && (await this.#isBusy(sandbox)),
      first: executionId === undefined ? null : await this.#known(executionId),
      preview: port === undefined ? null : await openPort(this.#engine.previews, sandbox),
    });
    this.#onShown(shown);
    return shown;
  }

  /**
   * As it is when it gets to one of these, or after that long. Held by the sandbox's own events, and looked at again whenever
   * those have nothing new to tell.
   */
  async when(ref: string, wanted: readonly string[], waitMs: number, signal: AbortSignal): Promise<Shown> {
    const { id } = await this.#engine.sandboxes.get(ref);
    const isWanted = ({ status }: { status: TheirStatus }) => wanted.includes(status);
    const patience = AbortSignal.timeout(waitMs);
    try {
      const over = AbortSignal.any([signal, patience]);
      for await (const _page of this.#engine.followEvents({ ref: id }, over)) {
        const shown = await this.get(id);
        if (isWanted(shown)) return shown;
      }
    } catch (error) {
      if (!patience.aborted || signal.aborted) throw error;
    }
    signal.throwIfAborted();
    return this.get(id);
  }

  /** Jobs run beside whatever a sandbox does; they don't make it busy. */
  async #isBusy({ id }: Sandbox): Promise<boolean> {
    const { items } = await this.#engine.execs.list(id, { limit: EXECS_LOOKED_AT });
    return items.some((exec) => !isTerminal(exec.status) && !isJob(exec.id));
  }

  async #known(execId: string): Promise<Exec | null> {
    try {
      return await this.#engine.execs.get(execId);
    } catch (error) {
      if (isHoldfastError(error) && error.code === "exec_not_found") return null;
      throw error;
    }
  }
}
