import { createHash } from "node:crypto";
import type { SandboxRecord } from "@holdfast/engine";
import { Clients } from "./clients.ts";
import { Damage } from "./damage.ts";
import type { SimulatedDatabase } from "./database.ts";
import { type FaultName, type FaultParams, faultKind } from "./fault-table.ts";
import { Faults } from "./faults.ts";
import { History } from "./history.ts";
import { Host } from "./host.ts";
import type { Scene } from "./invariants.ts";
import { Mirror } from "./mirror.ts";
import { numbersOf } from "./numbers.ts";
import { Random } from "./random.ts";
import { type Act, NAMES, type Schedule, type Step } from "./schedule.ts";
import { SimulatedIds } from "./server.ts";
import { Servers } from "./servers.ts";
import { remains, sleepers, unsettled } from "./settled.ts";
import { Durability } from "./store-gate.ts";
import { VirtualTime } from "./virtual-time.ts";
import { type Violation, Watch } from "./watch.ts";

export interface Outcome {
  readonly violation: Violation | null;
  readonly fired: ReadonlyMap<FaultName, number>;
  /** What happened, line by line; empty unless it was asked for. */
  readonly trace: readonly string[];
  /** Of the trace. */
  readonly hash: string;
  readonly virtualMs: number;
}

/** How long everything may take to settle once nothing goes wrong any more, and to vanish once it is deleted. */
const SETTLE_MS = 180_000;
const VANISH_MS = 180_000;
const LOOK_EVERY_MS = 5_000;
const DELETE_MS = 4_000;
/** How long a few launches take when nothing is slow. */
const LAUNCHES_MS = 1_000;

/** What fails with these is Holdfast's own. */
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

/** One under every name that schedules use. */
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

/** The same for drives. */
const LAST_DRIVES = LAST_CREATES.map(
  ({ box, name }): Extract<Act, { do: "drive" }> => ({
    do: "drive",
    drive: box,
    name,
    sized: false,
    ifExists: "fail",
  }),
);

/** One run of one schedule: the steps, then peace until everything has settled, then the end of everything. */
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
    const { tell, note } = watch;
    const numbers = numbersOf(schedule);
    const mirror = new Mirror();
    const { recordOf } = mirror;
    const keepsMemory = schedule.limits.standby !== "files";
    const host = new Host({ time, random: new Random(schedule.seed, 2), faults, tell, keepsMemory });
    const clients = new Clients({
      time,
      numbers,
      serving: () => this.#servers.serving,
      tell,
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
    // When the write has been answered, and with it all that shared its transaction.
    const blackout = (downMs: number, { powerCut } = { powerCut: true }) => {
      time.after(0, () => void this.#damage.reboot({ powerCut, downMs }));
    };
    this.#servers = new Servers({ ...world, onDeath, blackout });
    this.#damage = new Damage({ ...world, history, clients, servers: this.#servers });
    this.#scene = { time, host, mirror, history, database, numbers, openCalls: clients.open };
    watch.begin(this.#scene);
  }

  async run(): Promise<Outcome> {
    const unhandled = (error: unknown) => this.#watch.tell({ type: "unhandled", error });
    process.on("unhandledRejection", unhandled);
    try {
      this.#scene.database.reset();
      this.#servers.boot();
      for (const step of this.#schedule.steps) {
        await this.#take(step);
        if (this.#watch.violation !== null) break;
        this.#watch.step += 1;
      }
      for (const part of [this.#settle, this.#rouse, this.#vanish, this.#beginAgain])
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

  /** Also at what the database says, and at every sandbox through the engine, as a caller would. */
  async #lookCloser(): Promise<void> {
    const { tell } = this.#watch;
    await this.#time.rest();
    if (!this.#look()) return;
    this.#watch.lookAtDatabase();
    const engine = this.#servers.serving?.engine;
    if (engine === undefined) return;
    for (const { id } of this.#scene.mirror.readable()) {
      engine.sandboxes.get(id).then(
        (sandbox) => tell({ type: "told-sandbox", sandbox }),
        (error: unknown) => tell({ type: "refused", call: `look at ${id}`, ref: id, error }),
      );
    }
    await this.#time.quiet();
  }

  /** Nothing goes wrong any more. What can be mended is mended; the engine has to do the rest. */
  readonly #settle = async (): Promise<void> => {
    this.#watch.note(() => "peace");
    this.#faults.stop();
    this.#damage.mend();
    // A measurement of the host that hangs is given up first: the creates that wait for it are still to come.
    await this.#pass(this.#scene.numbers.measureMs);
    await this.#until(SETTLE_MS, "settles", unsettled);
  };

  /** Whatever sleeps is asked for once more: it serves again, or it has failed with its files kept. */
  readonly #rouse = async (): Promise<void> => {
    this.#watch.note(() => "everybody is woken");
    const rouse = ({ id, phase }: SandboxRecord) =>
      this.#clients.rouse(id, phase.name === "paused" ? "resume" : "wake");
    for (const record of this.#scene.mirror.readable())
      if (record.phase.name === "standby" || record.phase.name === "paused") rouse(record);
    await this.#until(SETTLE_MS, "wakes", async (scene, engine) => {
      const asleep = sleepers(scene);
      // Again and again, because a standby whose caller left may have come after the first time.
      for (const record of asleep) rouse(record);
      const found = asleep.map(({ id, phase }) => `${id} was woken and is ${phase.name}`);
      return [...found, ...(await unsettled(scene, engine))];
    });
  };

  /** All that is left is deleted; then nothing may be left. */
  readonly #vanish = async (): Promise<void> => {
    this.#watch.note(() => "the end of everything");
    await this.#until(VANISH_MS + this.#time.setBackMs, "leaves-nothing", (scene, engine) => {
      // Again and again, because a create that was held may have come after the first time.
      for (const { id, phase } of scene.mirror.live())
        if (phase.name !== "deleting" || scene.mirror.unreadable.has(id)) this.#clients.delete(id, DELETE_MS);
      this.#removeDrives();
      return remains(scene, engine);
    });
  };

  /** Those that sandboxes have are refused until these are gone. */
  #removeDrives(): void {
    for (const { id } of this.#scene.mirror.drives.values()) this.#clients.removeDrive(id);
  }

  /** Every name is free and there is a place for each: nothing that was given out was lost. */
  readonly #beginAgain = async (): Promise<void> => {
    const { mirror } = this.#scene;
    this.#watch.note(() => "once more from the beginning");
    const before = new Set(mirror.sandboxes.keys());
    const [first, ...rest] = LAST_CREATES;
    const isDriving = this.#schedule.steps.some(({ act }) => act.do === "drive");
    if (isDriving) for (const act of LAST_DRIVES) this.#clients.act(act);
    await this.#pass(isDriving ? LAUNCHES_MS : 0);
    // After launches that failed, one has to succeed before others are tried.
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
      this.#watch.broken("begins-again", `of ${LAST_DRIVES.length} drives ${drives} are made`);
    this.#removeDrives();
    await this.#pass(isDriving ? LAUNCHES_MS : 0);
    if (mirror.drives.size > 0)
      this.#watch.broken("begins-again", `${mirror.drives.size} drives are not deleted`);
  };

  /** Lets time pass until nothing is missing any more; too much of it breaks a promise. */
  async #until(ms: number, promise: string, missing: typeof unsettled): Promise<void> {
    const end = this.#time.elapsed + ms;
    for (;;) {
      const what = await this.#ask(missing);
      if (what.length === 0 || this.#watch.violation !== null) return;
      if (this.#time.elapsed >= end) return this.#watch.broken(promise, what.join("; "));
      await this.#pass(LOOK_EVERY_MS);
      await this.#lookCloser();
    }
  }

  /** The engine's answers come within this very moment. */
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
