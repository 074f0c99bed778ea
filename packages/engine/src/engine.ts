import {
  type Cause,
  causeOf,
  type Event,
  HoldfastError,
  type Numbers,
  type SandboxId,
  STATUSES,
  type Stats,
} from "@holdfast/contract";
import type { EngineApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { SANDBOX_DELETED } from "./exec.ts";
import { Execs } from "./execs.ts";
import { fileApi } from "./files.ts";
import { Gate } from "./gate.ts";
import { Launcher } from "./launcher.ts";
import { Ledger } from "./ledger.ts";
import { LinkHolder } from "./link-holder.ts";
import { Observer } from "./observer.ts";
import { Orphans } from "./orphans.ts";
import type { Change, Ports, StoredEvent } from "./ports.ts";
import { Prover } from "./prover.ts";
import { Reaper } from "./reaper.ts";
import { Recovery } from "./recovery.ts";
import { Sandboxes } from "./sandboxes.ts";
import type { World } from "./world.ts";

export const createEngine = (ports: Ports, numbers: Numbers): EngineApi => new Engine(ports, numbers);

/**
 * Wires the parts and owns their loops. Everything durable is in the store and everything physical belongs to a lease,
 * so stopping means letting go: links are closed, loops end, instances run on, and the next engine's `start` finds them.
 */
class Engine implements EngineApi {
  readonly #world: World;
  readonly #stopping = new AbortController();
  readonly #ledger: Ledger;
  readonly #observer: Observer;
  readonly #orphans: Orphans;
  readonly #launcher: Launcher;
  readonly #reaper: Reaper;
  readonly #prover: Prover;
  readonly #recovery: Recovery;
  #state: "new" | "recovering" | "serving" | "stopped" = "new";
  #loops: Promise<unknown>[] = [];
  readonly sandboxes: Sandboxes;
  readonly execs: Execs;
  readonly files: EngineApi["files"];
  readonly images: EngineApi["images"];

  constructor(ports: Ports, numbers: Numbers) {
    const world: World = { ...ports, numbers, stopping: this.#stopping.signal };
    this.#world = world;
    const sandboxes = new Sandboxes(world);
    const prover = new Prover(world);
    const gate = new Gate(world, prover);
    this.#observer = new Observer(
      world,
      () => sandboxes.cells(),
      (cell, generation, cause) => this.#died(cell, generation, cause),
    );
    this.#ledger = new Ledger(world, (cell) => this.#whyKilled(cell));
    this.#reaper = new Reaper(world, (cell) => this.#released(cell));
    this.#launcher = new Launcher(
      world,
      prover,
      (cell) => this.#openLink(cell),
      (cell) => this.#reaper.tend(cell),
    );
    this.#orphans = new Orphans(
      world,
      async (id) => sandboxes.cell(id) !== undefined || (await this.#isRecorded(id)),
    );
    this.#prover = prover;
    this.#recovery = new Recovery(world, {
      launcher: this.#launcher,
      reaper: this.#reaper,
      prover,
      openLink: (cell) => this.#openLink(cell),
      died: (cell, generation, cause) => this.#died(cell, generation, cause),
    });
    sandboxes.join({ launcher: this.#launcher, reaper: this.#reaper, prover, gate });
    this.sandboxes = sandboxes;
    this.execs = new Execs(world, gate, this.#ledger, sandboxes);
    this.files = fileApi(world, gate, (ref) => sandboxes.find(ref));
    this.images = ports.images;
  }

  async start(): Promise<void> {
    this.#state = "recovering";
    const { log, clock, store } = this.#world;
    const records = await store.liveSandboxes();
    const cells = records.map((record) => this.sandboxes.adopt(record));
    for (const record of await store.openExecs()) await this.#adoptExec(record);
    await this.#recovery.recover(cells);
    await store.commit({
      changes: [],
      events: [
        {
          at: clock.now(),
          type: "server.started",
          message: `The server started with ${cells.length} sandboxes.`,
        },
      ],
    });
    this.#loops = [this.#observer.run(), this.#orphans.run(), this.#maintain()];
    this.#state = "serving";
    log.info({ sandboxes: cells.length }, "recovered");
  }

  async #adoptExec(record: Parameters<Ledger["adopt"]>[1]): Promise<void> {
    const cell = this.sandboxes.cell(record.sandboxId);
    if (cell !== undefined) this.#ledger.adopt(cell, record);
    else await this.#ledger.abandon(record);
  }

  #openLink(cell: Cell): void {
    const { instance } = cell.record;
    if (instance === null || cell.links !== null) return;
    const { numbers } = this.#world;
    let wasUp = false;
    cell.links = new LinkHolder(this.#world, instance, {
      onUp: async (link) => {
        link.onExecEnd((exec) => this.#ledger.exited(exec));
        await this.#ledger.reconcile(cell, link, AbortSignal.timeout(numbers.keeperCallMs));
        if (wasUp) this.#sayLink(cell, "link.restored", "The link to the keeper is back.");
        wasUp = true;
        cell.learn({ linkDown: null, heardAt: link.lastHeardAt });
      },
      onDown: (why) => {
        if (cell.health.linkDown === null && wasUp) this.#sayLink(cell, "link.lost", why);
        cell.learn({ linkDown: why });
        // A lost link is a hint: look at once instead of at the next pass.
        void this.#observer.look([cell]).catch(() => undefined);
      },
    });
    cell.links.open();
  }

  #sayLink(cell: Cell, type: "link.lost" | "link.restored", message: string): void {
    if (cell.record.phase.name !== "running") return;
    const { store, clock, log } = this.#world;
    const { id: sandboxId, generation } = cell.record;
    store
      .commit({ changes: [], events: [{ at: clock.now(), type, sandboxId, generation, message }] })
      .catch((error: unknown) => {
        log.error({ sandbox: sandboxId, cause: causeOf(error) }, "a link event could not be stored");
      });
  }

  /** The instance is gone though nobody ended it. Files stay; what ran in it is lost, and says so. */
  async #died(cell: Cell, generation: number, cause: Cause): Promise<void> {
    const decision = await cell.decide({ type: "died", generation, cause });
    if (decision === null) return;
    cell.links?.close();
    await this.#ledger.endAll(cell, "lost", cause);
    this.#reaper.tend(cell);
  }

  /** The instance's absence was observed: nothing in it can report an outcome any more. */
  async #released(cell: Cell): Promise<void> {
    const { phase } = cell.record;
    if (phase.name === "failed") await this.#ledger.endAll(cell, "lost", phase.cause);
    else await this.#ledger.endAll(cell, "cancelled", SANDBOX_DELETED);
    // Dropped once the decision that follows makes it gone.
    void cell
      .until(() => cell.record.phase.name === "gone", this.#world.stopping)
      .then(
        () => this.sandboxes.drop(cell),
        () => undefined,
      );
  }

  async #whyKilled(cell: Cell): Promise<Cause | null> {
    const { clock, driver } = this.#world;
    const seen = await within(clock, { ms: 2_000, what: "looking for the killer" }, (signal) =>
      driver.observe([cell.id], signal),
    );
    const observation = seen.get(cell.id);
    if (observation?.seen === "present") await this.#observer.noteOom(cell, observation.oomKills);
    if (clock.now() - cell.oomSeenAt > OOM_RECENT_MS) return null;
    const { memoryMb } = cell.record.spec.resources;
    return {
      code: "oom_killed",
      message: `The kernel killed it: the sandbox's memory limit of ${memoryMb} MB was reached.`,
    };
  }

  /** A record that can't be read still owns what carries its id. */
  async #isRecorded(id: SandboxId): Promise<boolean> {
    try {
      const record = await this.#world.store.sandbox(id);
      return record !== null && record.phase.name !== "gone";
    } catch (error) {
      this.#world.log.error(
        { sandbox: id, cause: causeOf(error) },
        "a record could not be read; what it owns is left alone",
      );
      return true;
    }
  }

  /** Slow duties: retention, a new look at what is degraded, and execs whose keeper did not enforce their timeout. */
  async #maintain(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      await clock.sleep(numbers.observeEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      await this.sandboxes.expire();
      this.#reproveDegraded();
      await this.#recovery.retry();
      await this.#storeActivity();
      for (const { record, cell } of this.#ledger.overdue(clock.now())) {
        const link = cell.links?.current;
        if (!link) continue;
        log.warn(
          { sandbox: cell.id, exec: record.id },
          "an exec outlived its timeout; cancelling it from outside",
        );
        link.cancelExec(record.id, AbortSignal.timeout(numbers.keeperCallMs)).catch(() => undefined);
      }
    }
  }

  /** When sandboxes were last used, in one commit for all: an exec's own commits have enough to carry. */
  async #storeActivity(): Promise<void> {
    const changes: Change[] = [];
    for (const cell of this.sandboxes.cells()) {
      const at = cell.unstoredActivity();
      if (at !== null) changes.push({ kind: "sandbox.touch", id: cell.id, at });
    }
    if (changes.length === 0) return;
    await this.#world.store.commit({ changes }).catch((error: unknown) => {
      this.#world.log.warn({ cause: causeOf(error) }, "activity could not be stored");
    });
  }

  /** A sandbox that failed a proof gets another by itself, so that what healed is not called broken for ever. */
  #reproveDegraded(): void {
    for (const cell of this.sandboxes.cells()) {
      const worthIt = cell.links?.current != null && cell.judge().status === "degraded";
      if (worthIt) void this.#prover.prove(cell);
    }
  }

  async events(filter: Parameters<EngineApi["events"]>[0]) {
    const { store } = this.#world;
    const after = filter.cursor === undefined ? undefined : Number(filter.cursor);
    if (after !== undefined && !Number.isSafeInteger(after))
      throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
    const sandboxId =
      filter.ref === undefined ? undefined : ((await this.sandboxes.get(filter.ref)).id as SandboxId);
    const { execId, types, limit } = filter;
    const found = await store.events({ sandboxId, execId, types, after, limit: limit + 1 });
    const items = found.slice(0, limit).map(viewEvent);
    return { items, nextCursor: found.length > limit ? String(items.at(-1)?.seq) : null };
  }

  async stats(): Promise<Stats> {
    const { clock, store } = this.#world;
    const totals = await store.counters();
    const counts = Object.fromEntries(STATUSES.map((status) => [status, 0])) as Stats["sandboxes"];
    const links = { up: 0, down: 0 };
    for (const cell of this.sandboxes.cells()) {
      counts[cell.judge().status] += 1;
      if (cell.record.phase.name === "running") links[cell.links?.current ? "up" : "down"] += 1;
    }
    counts.terminated = totals.terminated;
    const { lastPassAt } = this.#observer;
    return {
      at: new Date(clock.now()).toISOString(),
      sandboxes: counts,
      totals,
      execsRunning: this.#ledger.openCount,
      links,
      orphans: this.#orphans.count,
      lastObservationAt: lastPassAt === null ? null : new Date(lastPassAt).toISOString(),
    };
  }

  unreadiness(): string[] {
    const { clock, numbers } = this.#world;
    if (this.#state !== "serving") return [`the engine is ${this.#state}`];
    const { lastPassAt } = this.#observer;
    const late = lastPassAt !== null && clock.now() - lastPassAt > numbers.observeEveryMs * 6;
    return late ? ["the observation pass is overdue"] : [];
  }

  async stop(): Promise<void> {
    if (this.#state === "stopped") return;
    this.#state = "stopped";
    this.#stopping.abort(new HoldfastError("shutting_down"));
    for (const cell of this.sandboxes.cells()) cell.links?.close();
    await Promise.allSettled(this.#loops);
    const { store, clock } = this.#world;
    await store.commit({
      changes: [],
      events: [{ at: clock.now(), type: "server.stopped", message: "The server stopped; sandboxes go on." }],
    });
  }
}

/** A process killed this soon after an out-of-memory kill was seen is taken for its victim. */
const OOM_RECENT_MS = 2_000;

function viewEvent(event: StoredEvent): Event {
  return { ...event, at: new Date(event.at).toISOString() };
}
