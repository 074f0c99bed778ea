import type { Numbers } from "@holdfast/contract";
import type { OpenCall } from "../clients/clients.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { SimulatedDatabase } from "../world/database.ts";
import type { Fact } from "../world/facts.ts";
import type { Host } from "../world/host.ts";
import type { Mirror } from "../world/mirror.ts";
import type { History } from "./history.ts";

/** The parts of a simulation that invariants can examine. */
export interface Scene {
  readonly time: VirtualTime;
  readonly host: Host;
  readonly mirror: Mirror;
  readonly database: SimulatedDatabase;
  readonly history: History;
  readonly numbers: Numbers;
  readonly openCalls: ReadonlySet<OpenCall>;
}

/**
 * A promise of Holdfast, with its checks. A check returns a description of how the promise is broken, or null if the
 * promise holds.
 */
export interface Invariant {
  readonly name: string;
  readonly promise: string;
  /** Checked at every moment of virtual time, after everything that can happen at that moment has happened. */
  readonly standing?: (scene: Scene) => string | null;
  /** Checked on each fact. */
  readonly witnessed?: (scene: Scene, fact: Fact) => string | null;
  /**
   * Checked after each step of the schedule and while the simulation waits for a final state. Not checked at every
   * moment like `standing`, because it queries the database, which takes longer than the other checks.
   */
  readonly stored?: (scene: Scene) => string | null;
}
