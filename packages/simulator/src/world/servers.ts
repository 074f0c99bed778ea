import type { Numbers } from "@holdfast/contract";
import type { EngineApi, Ids } from "@holdfast/engine";
import type { SimulatedDatabase } from "./database.ts";
import type { Faults } from "./faults.ts";
import type { Host } from "./host.ts";
import type { Mirror } from "./mirror.ts";
import { Process } from "./process.ts";
import { engineOf } from "./server.ts";
import type { Durability } from "./store-gate.ts";
import type { VirtualTime } from "./virtual-time.ts";
import type { Watch } from "./watch.ts";

/** One server: a process with an engine in it. */
export interface Server {
  readonly process: Process;
  readonly engine: EngineApi;
  /** Whether it takes calls. */
  isServing: boolean;
  /** Since when it starts, or stops. */
  changingSince: number;
}

/** What a supervisor waits before it starts a server again that could not start. */
const RETRY_START_MS = 1_000;
/** Recovery and the audit behind it are what takes longest, with everything slow. */
const CHANGE_MS = 120_000;

interface Parts {
  time: VirtualTime;
  database: SimulatedDatabase;
  durability: Durability;
  mirror: Mirror;
  faults: Faults;
  host: Host;
  ids: Ids;
  numbers: Numbers;
  watch: Watch;
  blackout(downMs: number, options?: { powerCut: boolean }): void;
  /** What was asked of it is answered by nobody. */
  onDeath(process: Process): void;
}

/** The servers of one state directory: one at a time, each on what the one before has left. */
export class Servers {
  readonly #parts: Parts;
  #current: Server | null = null;
  #count = 0;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** The one that lives. */
  get living(): Server | null {
    return this.#current?.process.alive ? this.#current : null;
  }

  /** The one that lives and takes calls. */
  get serving(): Server | null {
    return this.living?.isServing ? this.living : null;
  }

  /** Starts one, unless another holds the state directory. */
  boot(): void {
    if (this.living !== null) return;
    this.#count += 1;
    const { time, faults, watch } = this.#parts;
    const process = new Process({
      number: this.#count,
      time,
      faults,
      onDeath: (why, downMs) => this.#died(process, why, downMs),
      onSpin: () => watch.tell({ type: "spun" }),
    });
    const engine = engineOf({ ...this.#parts, process, tell: watch.tell, note: watch.note });
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

  /** In an orderly way: the engine lets go, then the process ends. */
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

  /** A server starts and stops in bounded time, whatever it finds. */
  look(): void {
    const { time, watch } = this.#parts;
    const server = this.living;
    if (server === null || server.isServing) return;
    const ms = time.elapsed - server.changingSince;
    if (ms > CHANGE_MS) watch.broken("starts-and-stops", `the server has not got further for ${ms} ms`);
  }
}
