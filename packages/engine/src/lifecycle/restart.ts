import { type Cause, HoldfastError } from "@holdfast/contract";
import type { Admission } from "../launch/admission.ts";
import type { Launcher } from "../launch/launcher.ts";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { areFilesGone } from "../model/cause-groups.ts";
import { errorOf } from "../model/keeper-errors.ts";
import { expiryOf } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { InstanceLoss } from "./instance-loss.ts";

interface RestartParts {
  admission: Admission;
  launcher: Launcher;
  loss: InstanceLoss;
}

const REQUESTED: Cause = { code: "restart_ordered", message: "A client requested a restart." };

/**
 * Restarts sandboxes that hang or have failed, on request and on their existing files. A restart loses the memory, so
 * only a request or the restart policy starts one. A failed sandbox has given up its place on the host, so it is
 * admitted like a new one.
 */
export class Restarts {
  readonly #context: EngineContext;
  readonly #parts: RestartParts;

  constructor(context: EngineContext, parts: RestartParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Records the restart and starts it. Does nothing if the sandbox is being launched. */
  async requestRestart(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { phase } = live.record;
    if (phase.name === "queued" || phase.name === "launching") return;
    if (phase.name === "failed") await this.#restartFailed(live, signal);
    else {
      refuseIfFilesAreGone(live);
      if ((await this.#decide(live)) === null) throw refusalOf(live);
    }
    void this.#parts.loss.handle(live, REQUESTED, { mayRun: true });
  }

  async #decide(live: LiveSandbox) {
    return live.decide({ type: "restart", cause: REQUESTED }).catch((error: unknown) => {
      const message = "The restart could not be recorded, so nothing was done.";
      throw new HoldfastError("internal", { sandboxId: live.id, message, cause: error });
    });
  }

  async #restartFailed(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#context;
    const { admission, launcher } = this.#parts;
    if ((expiryOf(live.record) ?? Number.POSITIVE_INFINITY) <= clock.now()) {
      const message = "The sandbox has reached the end of its TTL. Extend lifecycle.ttlMs first.";
      throw new HoldfastError("wrong_state", { sandboxId: live.id, message });
    }
    const limit = { ms: numbers.stopAttemptMs, what: "ending the last instance", signal };
    const isOver = () => live.record.lease.state === "none" || live.record.phase.name !== "failed";
    await within(clock, limit, (inner) => live.until(isOver, inner)).catch(() => signal.throwIfAborted());
    const { owner } = live.record;
    await admission.admit(owner);
    signal.throwIfAborted();
    launcher.admit();
    admission.checkCaps(owner);
    await live.whileRestarting(async () => {
      if ((await this.#decide(live)) === null) throw refusalOf(live);
    });
  }
}

/**
 * Throws if files that the sandbox needs are missing on the host. Without them the next instance could not start, and
 * ending the present one would lose the data that its processes still hold.
 */
function refuseIfFilesAreGone(live: LiveSandbox): void {
  const { cause } = live.judge();
  if (!areFilesGone(cause)) return;
  const message = `The sandbox can't be restarted: ${cause.message}`;
  throw new HoldfastError("wrong_state", { sandboxId: live.id, message, cause: errorOf(cause) });
}

function refusalOf(live: LiveSandbox): HoldfastError {
  const { id: sandboxId, record } = live;
  const { phase, nameHeld, lease } = record;
  if (phase.name === "deleting" || phase.name === "gone")
    return live.refusal() ?? new HoldfastError("sandbox_gone", { sandboxId });
  const wasNeverReady = phase.name === "failed" && !nameHeld;
  if (phase.name === "failed" && !wasNeverReady && lease.state !== "none") {
    const message =
      "The last instance of the sandbox is still being removed. Restart the sandbox once it is absent.";
    return new HoldfastError("sandbox_degraded", { sandboxId, message });
  }
  const message = wasNeverReady
    ? "The sandbox was never ready, so there are no files to restart it on. Create a new one."
    : `A sandbox that is ${live.judge().status} can't be restarted${FIRST[phase.name] ?? "."}`;
  return new HoldfastError("wrong_state", { sandboxId, message });
}

const FIRST: Partial<Record<LiveSandbox["record"]["phase"]["name"], string>> = {
  paused: ": resume it first.",
  standby: ": wake it first.",
  suspending: ": wake it first.",
  waking: " until it is awake.",
};
