import { causeOf, HoldfastError } from "@holdfast/contract";
import { raced, soonest } from "../lib/deadline.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { translate } from "../model/keeper-errors.ts";
import type { PortApi, PortConnection } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { KeeperRefusal, type Link, LinkLost, type PortStream, requireCapability } from "../ports/index.ts";

/**
 * Maximum number of attempts to connect to a port. Another attempt is made if the sandbox was suspended or the link was
 * lost before any byte was sent.
 */
const TRIES = 5;
const PAUSE_MS = 50;

/**
 * Connects to ports inside sandboxes. As with every call, a sandbox in standby is woken; if the sandbox does not serve,
 * the call rejects with the cause. A connection keeps its sandbox awake until `settled` reports that the request was
 * answered. From then on only traffic is regarded as use: a browser keeps a connection open as long as the tab is open,
 * so the sandbox would never become idle. A suspension cuts the connection, and the client connects again.
 */
export class SandboxPorts implements PortApi {
  readonly #context: EngineContext;
  readonly #gate: SandboxGate;
  readonly #registry: SandboxRegistry;
  #open = 0;

  constructor(context: EngineContext, gate: SandboxGate, registry: SandboxRegistry) {
    this.#context = context;
    this.#gate = gate;
    this.#registry = registry;
  }

  /** Number of open connections. */
  get open(): number {
    return this.#open;
  }

  async connect(ref: string, port: number, signal: AbortSignal): Promise<PortConnection> {
    const live = await this.#registry.find(ref);
    const { clock, numbers } = this.#context;
    const deadline = clock.now() + numbers.portConnectMs + numbers.wakeDeadlineMs;
    for (let tries = 1; ; tries += 1) {
      const link = await this.#gate.pass(live, signal);
      const leave = live.enter();
      try {
        return this.#follow(live, await this.#dial(live, link, port, signal), leave);
      } catch (error) {
        leave();
        signal.throwIfAborted();
        const mayTryAgain = error instanceof LinkLost && tries < TRIES && clock.now() < deadline;
        if (!mayTryAgain) throw toPortError(error, live, port);
        this.#context.log.debug(
          { sandbox: live.id, port, cause: causeOf(error) },
          "connection to a port failed, retrying",
        );
        await soonest(clock, PAUSE_MS * tries, signal);
      }
    }
  }

  /** Opens a stream to the port. If this fails, no byte was sent to the listener. */
  async #dial(live: LiveSandbox, link: Link, port: number, signal: AbortSignal): Promise<PortStream> {
    const { clock, driver, numbers } = this.#context;
    const { instance } = live.record;
    if (instance === null) throw new LinkLost("the sandbox has no instance", "no");
    const ports = requireCapability(driver, "ports");
    const late = clock.deadline(numbers.portConnectMs, "connecting to the port");
    // The deadline applies only to connecting. The stream may stay open for longer.
    const lasting = AbortSignal.any([signal, late.signal]);
    const dialling = ports.dial(instance, port, lasting);
    try {
      const stream = await raced(dialling, lasting);
      if (stream.bootId === link.keeper.bootId) return stream;
      stream.bytes.destroy();
      throw new HoldfastError("link_lost", {
        sandboxId: live.id,
        dispatched: "no",
        message: "A process other than the keeper answered.",
      });
    } catch (error) {
      dialling.then(({ bytes }) => bytes.destroy()).catch(() => undefined);
      throw error;
    } finally {
      late.clear();
    }
  }

  #follow(live: LiveSandbox, { bytes }: PortStream, leave: () => void): PortConnection {
    const { clock, numbers } = this.#context;
    this.#open += 1;
    let isHeld = true;
    let touchedAt = clock.now();
    const settled = () => {
      if (isHeld) leave();
      isHeld = false;
    };
    bytes.once("close", () => {
      settled();
      this.#open -= 1;
    });
    const used = () => {
      const now = clock.now();
      if (Math.abs(now - touchedAt) < numbers.portTouchEveryMs) return;
      touchedAt = now;
      live.touch();
    };
    return { sandboxId: live.id, bytes, settled, used };
  }
}

/** Converts a connection failure to an error of the registry. */
function toPortError(error: unknown, { id: sandboxId }: LiveSandbox, port: number): unknown {
  if (!(error instanceof KeeperRefusal)) return translate(error, { sandboxId });
  const about = { sandboxId, dispatched: "no", cause: error } as const;
  if (error.reason === "limit") return new HoldfastError("too_many_streams", about);
  if (error.reason === "unknown_type")
    return new HoldfastError("not_supported", {
      ...about,
      message: "The sandbox's keeper is of an older version without support for ports; restart the sandbox.",
    });
  if (error.errno === "ECONNREFUSED")
    return new HoldfastError("port_closed", {
      ...about,
      message: `Nothing listens on port ${port} of the sandbox.`,
    });
  if (error.errno === "ETIMEDOUT")
    return new HoldfastError("port_silent", {
      ...about,
      message: `Port ${port} of the sandbox is open but not accepting connections.`,
    });
  return translate(error, { sandboxId });
}
