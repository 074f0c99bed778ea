import type { Numbers } from "@holdfast/contract";
import type { EngineApi, Ids } from "@holdfast/engine";
import type { Faults } from "../schedule/armed-faults.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { SimulatedDatabase } from "./database.ts";
import type { Fact } from "./facts.ts";
import type { Host } from "./host.ts";
import type { Mirror } from "./mirror.ts";
import { Process } from "./process.ts";
import { engineOf } from "./server.ts";
import type { Durability } from "./server-store.ts";

/** One server: a process with an engine that runs in it. */
interface Server {
  readonly process: Process;
  readonly engine: EngineApi;
  /** Whether the server accepts calls. */
  isServing: boolean;
  /** Time at which the server last began to start or stop. */
  changingSince: number;
}

/** How long the simulated supervisor waits before it restarts a server that could not start. */
const RETRY_START_MS = 1_000;
/** Maximum duration of a server's start or stop. The recovery and the audit that follow a start take longest. */
const CHANGE_MS = 120_000;

/** Functions that receive facts, trace lines and violations. */
interface Reports {
  report(fact: Fact): void;
  note(line: () => string): void;
  broken(invariant: string, what: string): void;
}

interface Parts {
  time: VirtualTime;
  database: SimulatedDatabase;
  durability: Durability;
  mirror: Mirror;
  faults: Faults;
  host: Host;
  ids: Ids;
  numbers: Numbers;
  watch: Reports;
  blackout(downMs: number, options?: { powerCut: boolean }): void;
  /** Called when a server dies. The calls that it has not answered are never answered. */
  onDeath(process: Process): void;
}

/**
 * The servers of one state directory. One runs at a time, and each starts with the state that the one before it left.
 */
export class Servers {
  readonly #parts: Parts;
  #current: Server | null = null;
  #count = 0;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** The living server. */
  get living(): Server | null {
    return this.#current?.process.alive ? this.#current : null;
  }

  /** The running server, if it accepts calls. */
  get serving(): Server | null {
    return this.living?.isServing ? this.living : null;
  }

  /** Starts a server, unless another one holds the state directory. */
  boot(): void {
    if (this.living !== null) return;
    this.#count += 1;
    const { time, faults, watch } = this.#parts;
    const process = new Process({
      number: this.#count,
      time,
      faults,
      onDeath: (why, downMs) => this.#died(process, why, downMs),
      onSpin: () => watch.report({ type: "spun" }),
    });
    const engine = engineOf({ ...this.#parts, process, report: watch.report, note: watch.note });
    const server: Server = { process, engine, isServing: false, changingSince: time.elapsed };
    this.#current = server;
    watch.note(() => `server ${process.number} starts`);
    engine.start().then(
      () => {
        server.isServing = true;
        watch.note(() => `server ${process.number} serves`);
      },
      (error: unknown) => process.die(`it could not start: ${String(error)}`, RETRY_START_MS),
    );
  }

  /** Shuts a server down gracefully: the engine stops first, then the process ends. */
  stop(server: Server, downMs: number): void {
    server.isServing = false;
    server.changingSince = this.#parts.time.elapsed;
    const end = () => server.process.die("it was stopped", downMs);
    server.engine.stop().then(end, end);
  }

  #died(process: Process, why: string, downMs: number): void {
    const { watch, host, time, onDeath } = this.#parts;
    watch.note(() => `server ${process.number} dies: ${why}`);
    onDeath(process);
    for (const { links } of host.instances)
      for (const link of [...links]) if (link.server === process) link.drop("the server is gone");
    if (Number.isFinite(downMs)) time.after(downMs, () => this.boot());
  }

  /** Checks that a server starts or stops in bounded time. */
  look(): void {
    const { time, watch } = this.#parts;
    const server = this.living;
    if (server === null || server.isServing) return;
    const ms = time.elapsed - server.changingSince;
    if (ms > CHANGE_MS) watch.broken("starts-and-stops", `the server has not got further for ${ms} ms`);
  }
}
