import { causeOf, HoldfastError } from "@holdfast/contract";
import type { PortApi, PortConnection } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, soonest } from "./clock.ts";
import { type Gate, translate } from "./gate.ts";
import { KeeperRefusal, type Link, LinkLost, type PortStream } from "./ports.ts";
import type { World } from "./world.ts";

/** Ways to a port that a sandbox fell asleep on, or a link broke on, before anything was said. */
const TRIES = 5;
const PAUSE_MS = 50;

/**
 * The way to what listens inside. It is that of every call: who sleeps is woken, who does not serve says why. A connection holds
 * its sandbox awake until its caller says that it was answered; from then on only traffic counts, because a page leaves a
 * connection open for as long as its tab is, and nobody would ever sleep. What is cut by the sleep is connected anew.
 */
export class SandboxPorts implements PortApi {
  readonly #world: World;
  readonly #gate: Gate;
  readonly #find: (ref: string) => Promise<Cell>;
  #open = 0;

  constructor(world: World, gate: Gate, find: (ref: string) => Promise<Cell>) {
    this.#world = world;
    this.#gate = gate;
    this.#find = find;
  }

  /** Connections that are open now. */
  get open(): number {
    return this.#open;
  }

  async connect(ref: string, port: number, signal: AbortSignal): Promise<PortConnection> {
    const cell = await this.#find(ref);
    const { clock, numbers } = this.#world;
    const deadline = clock.now() + numbers.portConnectMs + numbers.wakeDeadlineMs;
    for (let tries = 1; ; tries += 1) {
      const link = await this.#gate.pass(cell, signal);
      const leave = cell.enter();
      try {
        return this.#follow(cell, await this.#dial(cell, link, port, signal), leave);
      } catch (error) {
        leave();
        signal.throwIfAborted();
        const mayTryAgain = error instanceof LinkLost && tries < TRIES && clock.now() < deadline;
        if (!mayTryAgain) throw told(error, cell, port);
        this.#world.log.debug({ sandbox: cell.id, port, cause: causeOf(error) }, "a port is dialled again");
        await soonest(clock, PAUSE_MS * tries, signal);
      }
    }
  }

  /** Nothing was said to whoever is there when this fails. */
  async #dial(cell: Cell, link: Link, port: number, signal: AbortSignal): Promise<PortStream> {
    const { clock, driver, numbers } = this.#world;
    const { instance } = cell.record;
    if (instance === null) throw new LinkLost("the sandbox has no instance", "no");
    const late = clock.deadline(numbers.portConnectMs, "connecting to the port");
    // The stream lives on under this signal: the deadline is for the connecting alone.
    const lasting = AbortSignal.any([signal, late.signal]);
    const dialling = driver.dial(instance, port, lasting);
    try {
      const stream = await raced(dialling, lasting);
      if (stream.bootId === link.keeper.bootId) return stream;
      stream.bytes.destroy();
      throw new HoldfastError("link_lost", {
        sandboxId: cell.id,
        dispatched: "no",
        message: "Another process answers in the keeper's place.",
      });
    } catch (error) {
      dialling.then(({ bytes }) => bytes.destroy()).catch(() => undefined);
      throw error;
    } finally {
      late.clear();
    }
  }

  #follow(cell: Cell, { bytes }: PortStream, leave: () => void): PortConnection {
    const { clock, numbers } = this.#world;
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
      cell.touch();
    };
    return { sandboxId: cell.id, bytes, settled, used };
  }
}

/** What was in the way, in the words of the registry. */
function told(error: unknown, { id: sandboxId }: Cell, port: number): unknown {
  if (!(error instanceof KeeperRefusal)) return translate(error, { sandboxId });
  const about = { sandboxId, dispatched: "no", cause: error } as const;
  if (error.reason === "limit") return new HoldfastError("too_many_streams", about);
  if (error.reason === "unknown_type")
    return new HoldfastError("not_supported", {
      ...about,
      message: "The sandbox's keeper is of a version of Holdfast that has no ports; restart the sandbox.",
    });
  if (error.errno === "ECONNREFUSED")
    return new HoldfastError("port_closed", {
      ...about,
      message: `Nothing listens at port ${port} of the sandbox.`,
    });
  if (error.errno === "ETIMEDOUT")
    return new HoldfastError("port_silent", {
      ...about,
      message: `What listens at port ${port} of the sandbox takes no connections.`,
    });
  return translate(error, { sandboxId });
}
