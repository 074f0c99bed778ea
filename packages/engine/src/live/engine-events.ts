import type { Cause, DriveId } from "@holdfast/contract";
import type { KeeperExec, Link } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";
import type { OpenExec } from "./open-exec.ts";

/**
 * A list of listeners. `emit` calls them one after the other, in the order of their subscription, before it returns.
 */
class Signal<Args extends readonly unknown[]> {
  readonly #listeners: ((...args: Args) => void)[] = [];

  subscribe(listener: (...args: Args) => void): void {
    this.#listeners.push(listener);
  }

  emit(...args: Args): void {
    for (const listener of this.#listeners) listener(...args);
  }
}

/**
 * A list of listeners that the emitter awaits one after the other, in the order of their subscription. If a listener
 * rejects, the emitter rejects.
 */
class Hook<Args extends readonly unknown[]> {
  readonly #listeners: ((...args: Args) => Promise<void>)[] = [];

  subscribe(listener: (...args: Args) => Promise<void>): void {
    this.#listeners.push(listener);
  }

  async run(...args: Args): Promise<void> {
    for (const listener of this.#listeners) await listener(...args);
  }
}

/** Why the processes of an instance ended together. The reason becomes the outcome of the instance's execs. */
interface InstanceEnd {
  status: "lost" | "cancelled";
  cause: Cause;
}

/**
 * In-process events of the engine. A lower part emits an event without knowing its listeners; a higher part subscribes
 * in its constructor. The dependencies between parts therefore have no cycles, and the compiler checks that every part
 * exists. Parts that are constructed earlier are notified earlier.
 */
export class EngineEvents {
  // The link to a keeper.

  /** A new link is up, but no caller can use it yet. If a listener rejects, the link is closed. */
  readonly linkUp = new Hook<[live: LiveSandbox, link: Link, signal: AbortSignal]>();
  /** Callers can use the new link. Emitted only for sandboxes with a named process that has not ended. */
  readonly linkUsable = new Signal<[live: LiveSandbox]>();
  /** The link was lost, or an attempt to connect failed. */
  readonly linkDown = new Signal<[live: LiveSandbox]>();
  /**
   * A keeper returned the list of its execs, which has not been compared with the open execs yet. Listeners must not
   * reject.
   */
  readonly execsListed = new Hook<
    [live: LiveSandbox, listed: readonly KeeperExec[], link: Link, signal: AbortSignal]
  >();
  /** The keeper reported that it started an exec by itself. */
  readonly keeperStartedExec = new Signal<[live: LiveSandbox]>();
  /** The keeper reported that an exec exited. */
  readonly keeperEndedExec = new Signal<[live: LiveSandbox, exec: KeeperExec]>();

  // The end of an exec.

  /** The outcome of an exec was stored. */
  readonly execEnded = new Signal<[record: ExecRecord]>();
  /** An exec is no longer open. Emitted after `execEnded`. */
  readonly execClosed = new Signal<[exec: OpenExec]>();

  // The life of a sandbox and its instance.

  /** The sandbox was added to the registry. */
  readonly sandboxAdded = new Signal<[live: LiveSandbox]>();

  /**
   * An instance exists and is about to be linked and proven. Listeners mount its drives. If a listener rejects, the
   * launch or wake fails.
   */
  readonly instanceReady = new Hook<[live: LiveSandbox, signal: AbortSignal]>();
  /** A launched instance is proven, but the proof is not recorded yet. */
  readonly proven = new Hook<[live: LiveSandbox]>();
  /** The record says that the sandbox serves, after a launch or a wake. */
  readonly inService = new Signal<[live: LiveSandbox]>();
  /** A sandbox serves again after standby. Emitted before `inService`. */
  readonly woke = new Signal<[live: LiveSandbox]>();
  /** No process of the instance can report an outcome any more. The instance's execs end with the given outcome. */
  readonly processesEnded = new Hook<[live: LiveSandbox, end: InstanceEnd]>();
  /**
   * The instance was observed to be absent, and its files still exist. If a listener rejects, the stop attempt fails.
   */
  readonly instanceAbsent = new Hook<[live: LiveSandbox]>();
  /** The sandbox was removed from the registry: it is gone, or it could not be created. */
  readonly sandboxRemoved = new Signal<[live: LiveSandbox]>();
  /** The sandbox is gone. Emitted after `sandboxRemoved`. */
  readonly gone = new Signal<[live: LiveSandbox]>();

  // The host and its drives.

  /** The host is short of room. Listeners remove stale sandboxes. */
  readonly roomNeeded = new Hook<[]>();
  /** A drive is being deleted. Listeners unmount it from this sandbox, which still has the mount in its record. */
  readonly driveRevoked = new Hook<[live: LiveSandbox, drive: DriveId, signal: AbortSignal]>();
}
