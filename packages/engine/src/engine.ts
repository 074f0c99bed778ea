import {
  type Cause,
  causeOf,
  type DriveId,
  HoldfastError,
  isDriveId,
  type Numbers,
  type SandboxId,
  STATUSES,
  type Stats,
} from "@holdfast/contract";
import { Admission } from "./admission.ts";
import { AfterWake } from "./after-wake.ts";
import { Alerts } from "./alerts.ts";
import type { EngineApi } from "./api.ts";
import { Audit } from "./audit.ts";
import type { Cell } from "./cell.ts";
import { Checkpoints } from "./checkpoints.ts";
import { within } from "./clock.ts";
import { ClockWatch } from "./clock-watch.ts";
import { Diagnostician } from "./diagnostician.ts";
import { DiskGuard } from "./disk-guard.ts";
import { Drives } from "./drives.ts";
import { EventFeed } from "./event-feed.ts";
import { SANDBOX_DELETED } from "./exec.ts";
import { type ExecNames, execNames, renamedJournals } from "./exec-names.ts";
import { Execs } from "./execs.ts";
import { driveFileApi, fileApi } from "./files.ts";
import { renameHost } from "./forks.ts";
import { Gate } from "./gate.ts";
import { Healer } from "./healer.ts";
import { Launcher } from "./launcher.ts";
import { Ledger } from "./ledger.ts";
import { LinkHolder } from "./link-holder.ts";
import { forkSource } from "./machine.ts";
import { Meter } from "./meter.ts";
import { Mounts } from "./mounts.ts";
import { Observer } from "./observer.ts";
import { isAwaited } from "./open-exec.ts";
import { Orphans } from "./orphans.ts";
import { Pauses } from "./pauses.ts";
import type { Change, Ports } from "./ports.ts";
import { Previews } from "./previews.ts";
import { Processes } from "./processes.ts";
import { Prover } from "./prover.ts";
import { Reaper } from "./reaper.ts";
import type { ExecRecord } from "./records.ts";
import { Recovery } from "./recovery.ts";
import { Restarts } from "./restarts.ts";
import { Retention } from "./retention.ts";
import { SandboxPorts } from "./sandbox-ports.ts";
import { Sandboxes } from "./sandboxes.ts";
import { Standby } from "./standby.ts";
import { Sweeps } from "./sweeps.ts";
import { Wakes } from "./wakes.ts";
import type { World } from "./world.ts";

export const createEngine = (ports: Ports, numbers: Numbers): EngineApi => new Engine(ports, numbers);

/**
 * Wires the parts and owns their loops. Everything durable is in the store and everything physical belongs to a lease,
 * so stopping means letting go: links are closed, loops end, instances run on, and the next engine's `start` finds them.
 */
class Engine implements EngineApi {
  readonly #world: World;
  readonly #stopping = new AbortController();
  readonly #feed: EventFeed;
  readonly #retention: Retention;
  readonly #ledger: Ledger;
  readonly #observer: Observer;
  readonly #orphans: Orphans;
  readonly #launcher: Launcher;
  readonly #reaper: Reaper;
  readonly #prover: Prover;
  readonly #recovery: Recovery;
  readonly #admission: Admission;
  readonly #audit: Audit;
  readonly #sweeps: Sweeps;
  readonly #diskGuard: DiskGuard;
  readonly #healer: Healer;
  readonly #pauses: Pauses;
  readonly #standby: Standby;
  readonly #wakes: Wakes;
  #state: "new" | "recovering" | "serving" | "stopped" = "new";
  #loops: Promise<unknown>[] = [];
  #linksLost = 0;
  readonly #afterWake: AfterWake;
  readonly sandboxes: Sandboxes;
  readonly checkpoints: Checkpoints;
  readonly execs: Execs;
  readonly processes: Processes;
  readonly files: EngineApi["files"];
  readonly mounts: Mounts;
  readonly drives: Drives;
  readonly driveFiles: EngineApi["driveFiles"];
  readonly images: EngineApi["images"];
  readonly ports: SandboxPorts;
  readonly previews: Previews;
  readonly alerts: Alerts;

  constructor(ports: Ports, numbers: Numbers) {
    const journals = renamedJournals(ports.journals, (id) => this.#execNames(id));
    const stopping = this.#stopping.signal;
    this.#feed = new EventFeed(ports.store, {
      ...{ clock: ports.clock, numbers, stopping },
      sandboxId: (ref) => this.sandboxes.idOf(ref),
      driveId: (ref) => this.#driveId(ref),
    });
    const world: World = { ...ports, store: this.#feed.store, journals, numbers, stopping };
    this.#world = world;
    const sandboxes = new Sandboxes(world);
    const prover = new Prover(world);
    const gate = new Gate(world, prover, () => this.#wakes);
    const meter = new Meter(world);
    const clockWatch = new ClockWatch(world);
    this.#observer = new Observer(world, {
      cells: () => sandboxes.cells(),
      died: (cell, generation, cause) => this.#died(cell, generation, cause),
      lookAtDrives: () => this.drives.look(),
      measure: (seen) => meter.take(seen),
      slept: (askedMs, byClockMs) => clockWatch.slept(askedMs, byClockMs),
    });
    this.#retention = new Retention(world, (id) => sandboxes.cell(id));
    this.#ledger = new Ledger(world, this.#retention, (cell) => this.#whyKilled(cell));
    this.#reaper = new Reaper(world, (cell) => this.#released(cell));
    const cells = () => sandboxes.cells();
    const find = (ref: string) => sandboxes.find(ref);
    this.#admission = new Admission(world, cells, () => this.#sweeps.conservative());
    const drives = new Drives(world, {
      cells,
      room: () => this.#admission.admitDisk(),
      takeFrom: (cell, drive, signal) => mounts.takeFrom(cell, drive, signal),
    });
    const mounts = new Mounts(world, { drives, gate, prover, find });
    const establish = (cell: Cell, signal: AbortSignal) => mounts.establish(cell, signal);
    this.drives = drives;
    this.mounts = mounts;
    this.#launcher = new Launcher(world, {
      prover,
      establish,
      admission: this.#admission,
      openLink: (cell) => this.#openLink(cell),
      onFailed: (cell) => this.#reaper.tend(cell),
      onServing: (cell) => this.#forked(cell),
      onProven: (cell) => this.processes.look(cell),
    });
    this.#orphans = new Orphans(world, {
      owned: async (id) => sandboxes.cell(id) !== undefined || (await this.#isRecorded(id)),
      released: (id, signal) => this.#abandonAll(id, signal),
    });
    this.#prover = prover;
    const openLink = (cell: Cell) => this.#openLink(cell);
    const pauses = new Pauses(world, { gate, prover, openLink });
    this.#pauses = pauses;
    this.#standby = new Standby(world, { prover, reaper: this.#reaper, openLink });
    this.#wakes = new Wakes(world, {
      prover,
      reaper: this.#reaper,
      launcher: this.#launcher,
      openLink,
      establish,
      lost: (cell, cause) => this.#lost(cell, cause, { mayRun: cell.record.instance !== null }),
      woke: (cell) => this.#woke(cell),
    });
    this.#recovery = new Recovery(world, {
      launcher: this.#launcher,
      reaper: this.#reaper,
      prover,
      openLink: (cell) => this.#openLink(cell),
      establish,
      died: (cell, generation, cause) => this.#died(cell, generation, cause),
      restart: (cell) => this.#restart(cell),
      pauses,
      standby: this.#standby,
      wakes: this.#wakes,
    });
    const { observer, orphans, reaper, launcher, admission, retention } = {
      observer: this.#observer,
      orphans: this.#orphans,
      reaper: this.#reaper,
      launcher: this.#launcher,
      admission: this.#admission,
      retention: this.#retention,
    };
    this.#audit = new Audit(world, { cells, observer, orphans, reaper, drives });
    this.#sweeps = new Sweeps(world, {
      cells,
      remove: (cell, holds) => sandboxes.removed(cell, holds),
      rest: (cell, why, holds) => this.#standby.rest(cell, why, holds),
      audit: () => this.#audit.run("hourly"),
      retention,
      admission,
    });
    this.#diskGuard = new DiskGuard(world, { cells, admission, clean: () => this.#sweeps.conservative() });
    this.#healer = new Healer(world, {
      cells,
      prover,
      giveUp: (cell, generation, cause) => this.#givenUp(cell, generation, cause),
      look: (cell) => this.#observer.look([cell]),
      isDiskLow: () => this.#diskGuard.isLow,
    });
    const recovery = (cell: Cell) => this.#healer.recovery(cell);
    const diagnostician = new Diagnostician(world, {
      meter,
      clockWatch,
      recovery,
      launches: () => ({ suspended: admission.launches.name !== "open", waiting: launcher.waiting }),
    });
    const { sweeps, audit } = { sweeps: this.#sweeps, audit: this.#audit };
    this.alerts = new Alerts(world, { cells, sweeps, audit, admission, orphans, observer });
    this.#ledger.onEnd = (record) => this.alerts.ended(record);
    const restarts = new Restarts(world, {
      admission,
      launcher,
      begin: (cell, cause) => void this.#lost(cell, cause, { mayRun: true }),
    });
    this.checkpoints = new Checkpoints(world, {
      gate,
      standby: this.#standby,
      find: (ref) => sandboxes.find(ref),
      cell: (id) => sandboxes.cell(id),
    });
    sandboxes.join({
      admission,
      launcher,
      orphans,
      reaper,
      prover,
      gate,
      pauses,
      standby: this.#standby,
      mounts,
      drives,
      meter,
      diagnostician,
      recovery,
      restarts,
      source: (id) => this.checkpoints.source(id),
      adoptExec: (cell, record) => this.#ledger.adopt(cell, record),
      adoptProcess: (cell, record) => this.processes.adopt(cell, record),
    });
    this.sandboxes = sandboxes;
    this.execs = new Execs(world, gate, this.#ledger, sandboxes);
    const { ledger, execs } = { ledger: this.#ledger, execs: this.execs };
    this.processes = new Processes(world, { ledger, gate, execs, finder: sandboxes });
    this.#ledger.runs = this.processes;
    this.#retention.isHeld = (sandboxId, id) => this.processes.isHeld(sandboxId, id);
    this.#afterWake = new AfterWake(world, this.#ledger);
    this.files = fileApi(world, gate, find);
    this.driveFiles = driveFileApi(world, (ref, signal) => drives.files(ref, signal));
    this.images = ports.images;
    this.ports = new SandboxPorts(world, gate, find);
    this.previews = new Previews(world, { find, cell: (id) => sandboxes.cell(id) });
  }

  async start(): Promise<void> {
    this.#state = "recovering";
    const { log, clock, store } = this.#world;
    await this.alerts.load();
    await this.previews.load();
    const records = await store.liveSandboxes();
    const cells = records.map((record) => this.sandboxes.adopt(record));
    await this.drives.start();
    for (const cell of cells) await this.#retention.adopt(cell);
    await this.processes.load();
    await this.#adoptExecs();
    for (const cell of cells) if (cell.isAsleep) await this.#ledger.lookAsleep(cell);
    await this.#recovery.recover(cells);
    for (const cell of cells) void this.checkpoints.tidy(cell);
    const message = `The server started with ${cells.length} sandboxes.`;
    await store
      .commit({ changes: [], events: [{ at: clock.now(), type: "server.started", message }] })
      .catch((error: unknown) => log.error({ cause: causeOf(error) }, "the start could not be told of"));
    await this.#audit.run("start");
    this.#loops = [
      this.#observer.run(),
      this.#orphans.run(),
      this.#retention.run(),
      this.#sweeps.run(),
      this.#diskGuard.run(),
      this.#healer.run(),
      this.#maintain(),
      this.alerts.run(),
    ];
    this.#state = "serving";
    log.info({ sandboxes: cells.length }, "recovered");
  }

  async #adoptExecs(): Promise<void> {
    const { store } = this.#world;
    const ownerless: ExecRecord[] = [];
    for (const record of await store.openExecs()) {
      const cell = this.sandboxes.cell(record.sandboxId);
      if (cell === undefined) ownerless.push(record);
      else this.#ledger.adopt(cell, record);
    }
    // Where the record can't be read, the sandbox may well run: nothing is known of its execs until it is deleted.
    const unreadable = new Set(ownerless.length > 0 ? await store.unreadable() : []);
    for (const record of ownerless) if (!unreadable.has(record.sandboxId)) await this.#ledger.abandon(record);
  }

  /** Of a sandbox without a readable record: nothing in it can report an outcome any more. */
  async #abandonAll(id: SandboxId, signal: AbortSignal): Promise<void> {
    const { store, journals, log } = this.#world;
    for (const record of await store.openExecs())
      if (record.sandboxId === id) await this.#ledger.abandon(record);
    if ((await store.execs(id, { limit: 1 })).length === 0) return;
    await journals.keep(id, signal).catch((error: unknown) => {
      log.error({ sandbox: id, cause: causeOf(error) }, "journals could not be kept");
    });
  }

  #openLink(cell: Cell): void {
    const { instance } = cell.record;
    if (instance === null || cell.links !== null) return;
    const { clock, numbers } = this.#world;
    let wasUp = false;
    cell.links = new LinkHolder(
      this.#world,
      instance,
      {
        onUp: async (link) => {
          link.onExecEnd((exec) => {
            this.#ledger.exited(cell, exec);
            if (this.processes.isUnrecorded(cell, exec.id)) this.processes.look(cell);
          });
          link.onExecStart(() => this.processes.look(cell));
          const limit = { ms: numbers.keeperCallMs, what: "comparing execs" };
          await within(clock, limit, (signal) => this.#ledger.reconcile(cell, link, signal));
          if (wasUp) this.#sayLink(cell, "link.restored", "The link to the keeper is back.");
          wasUp = true;
          cell.learn({ linkDown: null, heardAt: link.lastHeardAt });
          if (cell.hasLiveProcess) this.#lookOnceLinked(cell);
        },
        onDown: (why) => {
          if (cell.health.linkDown === null && wasUp) {
            this.#linksLost += 1;
            cell.noteLinkLoss();
            this.#sayLink(cell, "link.lost", why);
          }
          cell.learn({ linkDown: why });
          // A lost link is a hint: look at once instead of at the next pass.
          void this.#observer.look([cell]).catch(() => undefined);
        },
      },
      execNames(cell.record),
    );
    cell.links.open();
  }

  /** A link is anybody's only when all that must come first is done. */
  #lookOnceLinked(cell: Cell): void {
    const { numbers, stopping } = this.#world;
    cell.links?.get(numbers.linkDeadMs, stopping).then(
      () => this.processes.look(cell),
      () => undefined,
    );
  }

  /** Also of a sandbox that is gone: its execs can be asked for as long as its record is there. */
  async #execNames(id: SandboxId): Promise<ExecNames | null> {
    const record = this.sandboxes.cell(id)?.record ?? (await this.#world.store.sandbox(id).catch(() => null));
    return record === null ? null : execNames(record);
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
    if (decision !== null) await this.#lost(cell, cause, { mayRun: false });
  }

  /** It does not serve and nothing helped. Its processes, where they are there, are ended before anything else is done. */
  async #givenUp(cell: Cell, generation: number, cause: Cause): Promise<void> {
    // What serves again at the last moment is not ended.
    const holds = () => cell.judge().status === "degraded";
    const decision = await cell.decide({ type: "given_up", generation, cause }, [], holds);
    if (decision !== null) await this.#lost(cell, cause, { mayRun: true });
  }

  /** Its memory is gone, as its record says by now: what ran in it is lost, and its policy is carried out. */
  async #lost(cell: Cell, cause: Cause, { mayRun }: { mayRun: boolean }): Promise<void> {
    cell.links?.close();
    // What may still run may still end by itself: its outcome is known when it is seen to be gone.
    if (!mayRun) await this.#ledger.endAll(cell, "lost", cause);
    if (cell.record.phase.name === "queued") void this.#restart(cell);
    else this.#reaper.tend(cell);
  }

  /** Awake and proven: its checkpoint is of no more use, and whoever asked for it learns that it was woken. */
  #woke(cell: Cell): void {
    void this.#standby.discard(cell);
    void this.#afterWake.tell(cell);
    this.processes.look(cell);
  }

  /** A fork serves for the first time: it is called by its own name, and what came with its memory learns that it was woken. */
  async #forked(cell: Cell): Promise<void> {
    const origin = forkSource(cell.record);
    const link = cell.links?.current;
    if (origin === null || !link) return;
    const { clock, numbers, log } = this.#world;
    const names = { from: origin.sandboxName, to: cell.record.name };
    const limit = { ms: numbers.keeperCallMs, what: "naming the host", signal: cell.fence.signal };
    await within(clock, limit, (signal) => renameHost(link, names, signal)).catch((error: unknown) => {
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "the files of a fork keep the old host's name");
    });
    void this.#afterWake.tell(cell);
  }

  /** Launches again what lost its memory, once nothing of the old instance is left. */
  async #restart(cell: Cell): Promise<void> {
    const { stopping } = this.#world;
    const isReady = () => cell.record.lease.state === "none" || cell.record.phase.name !== "queued";
    this.#reaper.tend(cell);
    await cell.until(isReady, stopping).catch(() => undefined);
    if (stopping.aborted || cell.record.phase.name !== "queued") return;
    cell.links = null;
    await this.#launcher.launch(cell);
    // Memory that was given up is of no more use when it serves without.
    await this.#standby.discard(cell);
  }

  /** The instance's absence was observed: nothing in it can report an outcome any more. */
  async #released(cell: Cell): Promise<void> {
    const { phase } = cell.record;
    if (phase.name === "failed") await this.#ledger.endAll(cell, "lost", phase.cause);
    else if (phase.name === "queued")
      return phase.restart && this.#ledger.endAll(cell, "lost", phase.restart);
    else if (phase.name === "standby") return this.#slept(cell, phase.checkpoint === null);
    else await this.#ledger.endAll(cell, "cancelled", SANDBOX_DELETED);
    // Dropped once the decision that follows makes it gone.
    void cell
      .until(() => cell.record.phase.name === "gone", this.#world.stopping)
      .then(
        () => {
          this.sandboxes.drop(cell);
          this.#retention.leave(cell.id);
        },
        () => undefined,
      );
  }

  /** In memory standby execs sleep too. Where only files are kept they end; a start that is on its way wakes it again. */
  async #slept(cell: Cell, filesOnly: boolean): Promise<void> {
    if (filesOnly) await this.#ledger.endAll(cell, "lost", FILES_STANDBY);
    this.#rouseAwaited(cell);
  }

  /** What was accepted is not left lying: a sandbox that sleeps wakes for execs that have not reached it. */
  #rouseAwaited(cell: Cell): void {
    if (![...cell.openExecs].some(isAwaited)) return;
    this.#wakes.rouse(cell).catch((error: unknown) => {
      this.#world.log.warn({ sandbox: cell.id, cause: causeOf(error) }, "a sandbox with work sleeps on");
    });
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
      await clock.sleep(numbers.maintainEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      this.#reproveDegraded();
      this.#pauses.tend(this.sandboxes.cells());
      this.previews.tend();
      this.drives.tend();
      this.mounts.tend(this.sandboxes.cells());
      for (const cell of this.sandboxes.cells())
        if (cell.record.phase.name === "standby") this.#rouseAwaited(cell);
      this.#standby.idle(this.sandboxes.cells());
      // The layers are what can be relied on; this only makes them prompt.
      void this.#sweeps.conservative();
      await this.#recovery.retry();
      this.checkpoints.tidyAgain();
      await this.#storeActivity();
      this.#ledger.expireQueued(clock.now());
      this.#compareExecs();
      for (const exec of this.#ledger.overdue()) {
        const { record, cell } = exec;
        const link = cell.links?.current;
        if (!link) continue;
        exec.overdue = true;
        log.warn(
          { sandbox: cell.id, exec: record.id },
          "an exec outlived its timeout; cancelling it from outside",
        );
        const limit = { ms: numbers.keeperCallMs, what: "cancelling" };
        within(clock, limit, (signal) => link.cancelExec(record.id, signal)).catch(() => undefined);
      }
    }
  }

  #compareExecs(): void {
    const { clock, numbers } = this.#world;
    const limit = { ms: numbers.keeperCallMs, what: "comparing execs" };
    for (const cell of this.sandboxes.cells()) {
      // Which asks for the execs as well.
      this.processes.look(cell);
      const link = cell.links?.current;
      if (!link || cell.openExecs.size === 0 || cell.hasLiveProcess) continue;
      within(clock, limit, (signal) => this.#ledger.compare(cell, link, signal)).catch(() => undefined);
    }
  }

  /** When sandboxes were last used, in one commit for all: an exec's own commits have enough to carry. */
  async #storeActivity(): Promise<void> {
    const changes: Change[] = [];
    for (const cell of this.sandboxes.cells()) {
      const at = cell.unstoredActivity();
      if (at !== null) {
        const { execsStarted } = cell.record;
        changes.push({ kind: "sandbox.touch", id: cell.id, at, execsStarted });
      }
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

  events(filter: Parameters<EngineApi["events"]>[0]) {
    return this.#feed.list(filter);
  }

  followEvents(filter: Parameters<EngineApi["followEvents"]>[0], signal: AbortSignal) {
    return this.#feed.follow(filter, signal);
  }

  /** What is told of a drive outlives it, under its id. */
  #driveId = (ref: string): DriveId => (isDriveId(ref) ? ref : this.drives.find(ref).id);

  async stats(): Promise<Stats> {
    const { clock, store } = this.#world;
    const totals = await store.counters();
    const counts = Object.fromEntries(STATUSES.map((status) => [status, 0])) as Stats["sandboxes"];
    const links = { up: 0, down: 0, lost: this.#linksLost };
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
      execsRunning: this.#ledger.runningCount,
      execsQueued: this.#ledger.queuedCount,
      links,
      readers: this.execs.readers.count,
      readersCut: this.execs.readers.cut,
      orphans: this.#orphans.count,
      lastObservationAt: lastPassAt === null ? null : new Date(lastPassAt).toISOString(),
      lastAuditAt: this.#audit.last?.at ?? null,
      sweeps: this.#sweeps.health(),
      launches: {
        state: this.#admission.launches.name,
        waiting: this.#launcher.waiting,
        failuresInARow: this.#admission.launches.failures,
      },
      capacity: this.#admission.capacity,
    };
  }

  audit() {
    return this.#audit.run("request");
  }

  lastAudit() {
    return this.#audit.last;
  }

  cleanup(options: { dryRun: boolean; emergency: boolean }) {
    return this.#sweeps.now(options);
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
const FILES_STANDBY: Cause = {
  code: "files_standby",
  message: "The sandbox went to standby, which on this host keeps files only.",
};

const OOM_RECENT_MS = 2_000;
