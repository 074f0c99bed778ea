import { type Exec, isHoldfastError, isTerminal, type Sandbox } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { isJob } from "../executions/exec-ids.ts";
import { type Shown, shownAs, type TheirStatus } from "../shapes.ts";
import { detailsOf } from "./details.ts";
import { openPort } from "./open-port.ts";

/**
 * Number of newest execs that are searched for a running command. If only an older exec is running, the sandbox is
 * reported as idle, and accepts commands.
 */
const EXECS_LOOKED_AT = 100;

/**
 * Reads sandboxes in the form that the client expects. A sandbox's record does not say whether the sandbox is idle or
 * running, so this class also reads its execs.
 */
export class SandboxViews {
  readonly #engine: EngineApi;
  readonly #onShown: (shown: Shown) => void;

  /** `onShown` is called with every sandbox that is returned to a client. */
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
   * Returns the sandbox when it has reached one of the wanted statuses, or when `waitMs` have passed. Follows the
   * sandbox's events, and reads the sandbox again after each page of events.
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

  /** Returns whether a command is running. Jobs run in the background and do not make a sandbox busy. */
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
