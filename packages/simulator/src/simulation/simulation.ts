import { createHash } from "node:crypto";
import type { SandboxRecord } from "@holdfast/engine";
import { Clients } from "../clients/clients.ts";
import { History } from "../invariants/history.ts";
import type { Scene } from "../invariants/invariant.ts";
import { remains, sleepers, unsettled } from "../invariants/settled.ts";
import { type Violation, Watch } from "../invariants/watch.ts";
import { Faults } from "../schedule/armed-faults.ts";
import { type FaultName, type FaultParams, faultKind } from "../schedule/fault-table.ts";
import { Random } from "../schedule/random.ts";
import { type Act, NAMES, type Schedule, type Step } from "../schedule/schedule.ts";
import { VirtualTime } from "../time/virtual-time.ts";
import type { SimulatedDatabase } from "../world/database.ts";
import { Host } from "../world/host.ts";
import { Mirror } from "../world/mirror.ts";
import { SimulatedIds } from "../world/server.ts";
import { Durability } from "../world/server-store.ts";
import { Servers } from "../world/servers.ts";
import { Damage } from "./damage.ts";
import { numbersOf } from "./numbers.ts";

export interface Outcome {
  readonly violation: Violation | null;
  readonly fired: ReadonlyMap<FaultName, number>;
  /** The lines of the trace; empty unless a trace was requested. */
  readonly trace: readonly string[];
  /** Hash of the trace. */
  readonly hash: string;
  readonly virtualMs: number;
}

/** Maximum time from the last fault until everything has settled. */
const SETTLE_MS = 180_000;
/** Maximum time from the deletion of everything until nothing is left. */
const VANISH_MS = 180_000;
const LOOK_EVERY_MS = 5_000;
const DELETE_MS = 4_000;
/** Time in which a few sandboxes are launched if no operation is slow. */
const LAUNCHES_MS = 1_000;

/** Faults that are failures of Holdfast itself, not of a sandbox. */
const OURS: ReadonlySet<FaultName> = new Set([
  "store-refuses",
  "disk-full",
  "journal-unreadable",
  "make-fails",
  "make-half",
  "make-hangs",
  "make-answer-lost",
  "undrive-fails",
  "undrive-half",
  "undrive-hangs",
]);

/** The last requests of a simulation: they create one sandbox under every name that schedules use. */
const LAST_CREATES = Array.from(
  { length: NAMES },
  (_, name): Extract<Act, { do: "create" }> => ({
    do: "create",
    box: -1 - name,
    name,
    key: null,
    ifExists: "fail",
    wait: true,
    image: "host",
    owner: null,
    coldStart: false,
    ttlMs: null,
    disposable: false,
    idleStandbyMs: null,
    from: null,
    mounts: [{ drive: -1 - name, path: 0 }],
  }),
);

/** The last requests of a simulation that used drives: they create one drive under every name that schedules use. */
const LAST_DRIVES = LAST_CREATES.map(
  ({ box, name }): Extract<Act, { do: "drive" }> => ({
    do: "drive",
    drive: box,
    name,
    sized: false,
    ifExists: "fail",
  }),
);

/**
 * One run of one schedule: its steps, then time without faults until everything has settled, then the deletion of
 * everything.
 */
export class Simulation {
  readonly #schedule: Schedule;
  readonly #time = new VirtualTime();
  readonly #watch: Watch;
  readonly #faults: Faults;
  readonly #clients: Clients;
  readonly #servers: Servers;
  readonly #damage: Damage;
  readonly #scene: Scene;

  constructor(database: SimulatedDatabase, schedule: Schedule, options: { trace: boolean }) {
    this.#schedule = schedule;
    const time = this.#time;
    const watch = new Watch(time, options);
    const history = new History({ isThrifty: schedule.limits.thrifty });
    const faults = new Faults((kind) => {
      watch.note(() => `! ${kind}`);
      if (OURS.has(kind)) history.oursHasFailed = true;
    });
    const { report, note } = watch;
    const numbers = numbersOf(schedule);
    const mirror = new Mirror();
    const { recordOf } = mirror;
    const keepsMemory = schedule.limits.standby !== "files";
    const host = new Host({ time, random: new Random(schedule.seed, 2), faults, report, keepsMemory });
    const clients = new Clients({
      time,
      numbers,
      serving: () => this.#servers.serving,
      report,
      note,
      recordOf,
    });
    const matters = schedule.steps.some(({ act }) => act.do === "fault" && act.fault.startsWith("power-cut"));
    const durability = new Durability({ database, time, mirror, matters });
    const ids = new SimulatedIds(new Random(schedule.seed, 3));
    const onDeath = clients.forgetCallsTo;
    const world = { time, database, durability, mirror, faults, host, ids, numbers, watch };
    this.#watch = watch;
    this.#faults = faults;
    this.#clients = clients;
    // A fault can cause a power cut or reboot during a write. The timer delays the power cut or reboot until the
    // callers of all writes in the same transaction were answered.
    const blackout = (downMs: number, { powerCut } = { powerCut: true }) => {
      time.after(0, () => void this.#damage.reboot({ powerCut, downMs }));
    };
    this.#servers = new Servers({ ...world, onDeath, blackout });
    this.#damage = new Damage({ ...world, history, clients, servers: this.#servers });
    this.#scene = { time, host, mirror, history, database, numbers, openCalls: clients.open };
    watch.begin(this.#scene);
  }

  async run(): Promise<Outcome> {
    const unhandled = (error: unknown) => this.#watch.report({ type: "unhandled", error });
    process.on("unhandledRejection", unhandled);
    try {
      this.#scene.database.reset();
      this.#servers.boot();
      for (const step of this.#schedule.steps) {
        await this.#take(step);
        if (this.#watch.violation !== null) break;
        this.#watch.step += 1;
      }
      for (const part of [this.#settle, this.#wakeAll, this.#deleteAll, this.#recreateAll])
        if (this.#watch.violation === null) await part();
    } finally {
      this.#servers.living?.process.die("the simulation is over", Number.POSITIVE_INFINITY);
      process.off("unhandledRejection", unhandled);
    }
    const { violation, trace } = this.#watch;
    const hash = createHash("sha256").update(trace.join("\n")).digest("hex");
    return { violation, fired: this.#faults.fired, trace, hash, virtualMs: this.#time.elapsed };
  }

  async #take({ after, act }: Step): Promise<void> {
    await this.#pass(after);
    if (this.#watch.violation !== null) return;
    if (act.do === "fault") await this.#strike(act.fault, act.params);
    else this.#clients.act(act);
    await this.#lookCloser();
  }

  async #strike(name: FaultName, params: FaultParams): Promise<void> {
    const { point, strike } = faultKind(name);
    if (point !== undefined) {
      const { ms, n: skip, flag, on } = params;
      this.#faults.arm(point, { kind: name, ms, skip, flag, on });
      return;
    }
    this.#watch.note(() => `! ${name} ${JSON.stringify(params)}`);
    if (await strike?.(this.#damage, params)) this.#faults.count(name);
  }

  async #pass(ms: number): Promise<void> {
    await this.#time.quiet();
    await this.#time.pass(ms, this.#look);
  }

  readonly #look = (): boolean => {
    this.#servers.look();
    return this.#watch.look();
  };

  /** Checks the promises and the database, and reads every sandbox through the engine, as a caller would. */
  async #lookCloser(): Promise<void> {
    const { report } = this.#watch;
    await this.#time.rest();
    if (!this.#look()) return;
    this.#watch.lookAtDatabase();
    const engine = this.#servers.serving?.engine;
    if (engine === undefined) return;
    for (const { id } of this.#scene.mirror.readable()) {
      engine.sandboxes.get(id).then(
        (sandbox) => report({ type: "reported-sandbox", sandbox }),
        (error: unknown) => report({ type: "refused", call: `look at ${id}`, ref: id, error }),
      );
    }
    await this.#time.quiet();
  }

  /** Ends all faults and repairs what can be repaired. The engine has to recover the rest. */
  readonly #settle = async (): Promise<void> => {
    this.#watch.note(() => "faults end");
    this.#faults.stop();
    this.#damage.mend();
    // Waits until measurements of the host that hang have timed out. A create that waits for such a measurement has
    // stored nothing yet, so the check that follows would not notice it.
    await this.#pass(this.#scene.numbers.measureMs);
    await this.#until(SETTLE_MS, "settles", unsettled);
  };

  /** Wakes every sleeping sandbox. Each must then serve again, or have failed with its files kept. */
  readonly #wakeAll = async (): Promise<void> => {
    this.#watch.note(() => "waking all sandboxes");
    const resumeOrWake = ({ id, phase }: SandboxRecord) =>
      this.#clients.resumeOrWake(id, phase.name === "paused" ? "resume" : "wake");
    for (const record of this.#scene.mirror.readable())
      if (record.phase.name === "standby" || record.phase.name === "paused") resumeOrWake(record);
    await this.#until(SETTLE_MS, "wakes", async (scene, engine) => {
      const asleep = sleepers(scene);
      // Wakes sandboxes in several rounds, because a standby whose caller disconnected may complete after the first
      // round.
      for (const record of asleep) resumeOrWake(record);
      const found = asleep.map(({ id, phase }) => `${id} was woken and is ${phase.name}`);
      return [...found, ...(await unsettled(scene, engine))];
    });
  };

  /** Deletes everything, and checks that nothing is left. */
  readonly #deleteAll = async (): Promise<void> => {
    this.#watch.note(() => "deleting everything");
    await this.#until(VANISH_MS + this.#time.setBackMs, "leaves-nothing", (scene, engine) => {
      // Deletes sandboxes in several rounds, because a delayed create may complete after the first round.
      for (const { id, phase } of scene.mirror.live())
        if (phase.name !== "deleting" || scene.mirror.unreadable.has(id)) this.#clients.delete(id, DELETE_MS);
      this.#removeDrives();
      return remains(scene, engine);
    });
  };

  /** Asks the engine to delete all drives. It refuses to delete a drive that a sandbox still uses. */
  #removeDrives(): void {
    for (const { id } of this.#scene.mirror.drives.values()) this.#clients.removeDrive(id);
  }

  /** Creates sandboxes under every name again, to check that every name is free and no quota slot was lost. */
  readonly #recreateAll = async (): Promise<void> => {
    const { mirror } = this.#scene;
    this.#watch.note(() => "creating everything again");
    const before = new Set(mirror.sandboxes.keys());
    const [first, ...rest] = LAST_CREATES;
    const isDriving = this.#schedule.steps.some(({ act }) => act.do === "drive");
    if (isDriving) for (const act of LAST_DRIVES) this.#clients.act(act);
    await this.#pass(isDriving ? LAUNCHES_MS : 0);
    // After failed launches, the engine launches one sandbox as a probe before it launches others. So only one sandbox
    // is created at first.
    if (first !== undefined) this.#clients.act(first);
    await this.#pass(LAUNCHES_MS);
    for (const act of rest) this.#clients.act(act);
    await this.#pass(LAUNCHES_MS);
    const made = [...mirror.sandboxes.values()].filter(({ id }) => !before.has(id));
    const running = made.filter(({ phase }) => phase.name === "running").length;
    if (running < LAST_CREATES.length)
      this.#watch.broken("begins-again", `of ${LAST_CREATES.length} sandboxes ${running} run`);
    for (const { id } of made) this.#clients.delete(id, DELETE_MS);
    await this.#pass(DELETE_MS);
    const left = mirror.live().length;
    if (left > 0) this.#watch.broken("begins-again", `${left} sandboxes are not deleted`);
    const drives = mirror.drives.size;
    if (isDriving && drives < LAST_DRIVES.length)
      this.#watch.broken("begins-again", `of ${LAST_DRIVES.length} drives ${drives} are created`);
    this.#removeDrives();
    await this.#pass(isDriving ? LAUNCHES_MS : 0);
    if (mirror.drives.size > 0)
      this.#watch.broken("begins-again", `${mirror.drives.size} drives are not deleted`);
  };

  /** Lets time pass until `missing` returns an empty list. If that takes longer than `ms`, `invariant` is violated. */
  async #until(ms: number, invariant: string, missing: typeof unsettled): Promise<void> {
    const end = this.#time.elapsed + ms;
    for (;;) {
      const what = await this.#ask(missing);
      if (what.length === 0 || this.#watch.violation !== null) return;
      if (this.#time.elapsed >= end) return this.#watch.broken(invariant, what.join("; "));
      await this.#pass(LOOK_EVERY_MS);
      await this.#lookCloser();
    }
  }

  /** Returns the result of `missing`. An engine that answers only after virtual time advances counts as not answering. */
  async #ask(missing: typeof unsettled): Promise<string[]> {
    let what = ["the engine does not answer"];
    missing(this.#scene, this.#servers.serving?.engine ?? null).then(
      (found) => {
        what = found;
      },
      (error: unknown) => {
        what = [String(error)];
      },
    );
    await this.#time.quiet();
    return what;
  }
}
