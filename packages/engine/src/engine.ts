import { HoldfastError, type Numbers, type SandboxId, type Stats } from "@holdfast/contract";
import { Alerts } from "./alerts/alerts.ts";
import { Audit } from "./cleanup/audit.ts";
import { DiskGuard } from "./cleanup/disk-guard.ts";
import { Expiry } from "./cleanup/expiry.ts";
import { Orphans } from "./cleanup/orphans.ts";
import { Sweeps } from "./cleanup/sweeps.ts";
import { ClockJumpWatch } from "./diagnosis/clock-jump-watch.ts";
import { DiagnosisCollector } from "./diagnosis/collector.ts";
import { UsageMeter } from "./diagnosis/usage-meter.ts";
import { Drives } from "./drives/drives.ts";
import { Mounts } from "./drives/mounts.ts";
import { EngineStats } from "./engine-stats.ts";
import { AnnouncingStore } from "./events/announcing-store.ts";
import { Timeline } from "./events/timeline.ts";
import { ExecLedger } from "./execs/exec-ledger.ts";
import { Retention } from "./execs/exec-retention.ts";
import { Execs } from "./execs/execs.ts";
import { WakeHooks } from "./execs/wake-hooks.ts";
import { driveFileApi, fileApi } from "./files/file-api.ts";
import { Healer } from "./healing/healer.ts";
import { Observer } from "./healing/observer.ts";
import { OomAttribution } from "./healing/oom-attribution.ts";
import { Admission } from "./launch/admission.ts";
import { KeeperDeadline } from "./launch/keeper-deadline.ts";
import { Launcher } from "./launch/launcher.ts";
import { LinkOpener } from "./launch/link-opener.ts";
import { Prover } from "./launch/prover.ts";
import { Reaper } from "./launch/reaper.ts";
import { drivesOf, imagesOf, journalsOf } from "./lib/driver-parts.ts";
import { Adoption } from "./lifecycle/adoption.ts";
import { Checkpoints } from "./lifecycle/checkpoints.ts";
import { Creation } from "./lifecycle/create.ts";
import { Deletion } from "./lifecycle/delete.ts";
import { ForkHostnames } from "./lifecycle/forks.ts";
import { SandboxGate } from "./lifecycle/gate.ts";
import { HoldStill } from "./lifecycle/hold-still.ts";
import { InstanceAbsence } from "./lifecycle/instance-absence.ts";
import { InstanceLoss } from "./lifecycle/instance-loss.ts";
import { Pauses } from "./lifecycle/pause.ts";
import { Recovery } from "./lifecycle/recovery.ts";
import { Restarts } from "./lifecycle/restart.ts";
import { Standby } from "./lifecycle/suspend.ts";
import { Wakes } from "./lifecycle/wake.ts";
import { EngineEvents } from "./live/engine-events.ts";
import { renamedJournals } from "./live/fork-exec-ids.ts";
import { OrphanSightings } from "./live/orphan-sightings.ts";
import { SandboxRegistry } from "./live/sandbox-registry.ts";
import { Maintenance } from "./maintenance.ts";
import { SandboxPorts } from "./network/port-connections.ts";
import { Previews } from "./network/previews.ts";
import type { EngineApi } from "./ports/api.ts";
import type { EngineContext } from "./ports/context.ts";
import type { Ports } from "./ports/index.ts";
import type { DriveRecord, SandboxRecord } from "./ports/records.ts";
import { Processes } from "./processes/processes.ts";
import { Sandboxes } from "./sandbox-api.ts";
import { startUp } from "./startup.ts";

export const createEngine = (ports: Ports, numbers: Numbers): EngineApi => new Engine(ports, numbers);

/**
 * Constructs the parts of the engine, lowest first, and owns their loops. Each part gets only parts that exist already;
 * a lower part reaches a higher one through `EngineEvents`. When the engine stops, its loops end and its links are
 * closed, but instances keep running. The next engine's `start` finds them, because all durable state is in the store
 * and every instance belongs to a lease.
 */
class Engine implements EngineApi {
  readonly #context: EngineContext;
  readonly #stopping = new AbortController();
  readonly #parts: ReturnType<typeof wire>;
  #state: "new" | "recovering" | "serving" | "stopped" = "new";
  #loops: Promise<unknown>[] = [];
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
    const sightings = new OrphanSightings(numbers.orphanGraceMs);
    const news = new AnnouncingStore(ports.store);
    const registry = new SandboxRegistry(news.store, sightings);
    const context: EngineContext = {
      ...ports,
      store: news.store,
      drives: drivesOf(ports.driver),
      images: imagesOf(ports.driver),
      journals: renamedJournals(journalsOf(ports.driver), registry),
      numbers,
      stopping: this.#stopping.signal,
    };
    const parts = wire(context, { news, registry, sightings });
    this.#context = context;
    this.#parts = parts;
    this.sandboxes = parts.sandboxes;
    this.checkpoints = parts.checkpoints;
    this.execs = parts.execs;
    this.processes = parts.processes;
    this.files = parts.files;
    this.mounts = parts.mounts;
    this.drives = parts.drives;
    this.driveFiles = parts.driveFiles;
    this.images = context.images;
    this.ports = parts.sandboxPorts;
    this.previews = parts.previews;
    this.alerts = parts.alerts;
  }

  async start(): Promise<void> {
    this.#state = "recovering";
    const { observer, orphans, retention, sweeps, expiry, diskGuard, healer, maintenance, alerts } =
      this.#parts;
    const sandboxes = await startUp(this.#context, this.#parts);
    // Each loop handles failures of the store, the driver and the keepers itself. If a loop rejects nevertheless, that
    // is a bug: the unhandled rejection ends the process, and the next server continues from the store.
    this.#loops = [
      ...[observer, orphans, retention, sweeps, expiry],
      ...[diskGuard, healer, maintenance, alerts],
    ].map((part) => part.run());
    this.#state = "serving";
    this.#context.log.info({ sandboxes }, "recovered");
  }

  async stop(): Promise<void> {
    if (this.#state === "stopped") return;
    this.#state = "stopped";
    this.#stopping.abort(new HoldfastError("shutting_down"));
    for (const live of this.#parts.registry.allLive()) live.closeLink();
    await Promise.allSettled(this.#loops);
    const { store, clock } = this.#context;
    await store.commit({
      changes: [],
      events: [
        { at: clock.now(), type: "server.stopped", message: "The server stopped; sandboxes keep running." },
      ],
    });
  }

  events(filter: Parameters<EngineApi["events"]>[0]) {
    return this.#parts.timeline.list(filter);
  }

  followEvents(filter: Parameters<EngineApi["followEvents"]>[0], signal: AbortSignal) {
    return this.#parts.timeline.follow(filter, signal);
  }

  stats(): Promise<Stats> {
    return this.#parts.stats.read();
  }

  unreadiness(): string[] {
    if (this.#state !== "serving") return [`the engine is ${this.#state}`];
    return this.#parts.stats.unreadiness();
  }

  audit() {
    return this.#parts.audit.run("request");
  }

  lastAudit() {
    return this.#parts.audit.last;
  }

  holdStill<Result>(
    ids: readonly SandboxId[],
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    return this.#parts.still.run(ids, copy, AbortSignal.any([signal, this.#context.stopping]));
  }

  adoptSandbox(record: SandboxRecord): Promise<void> {
    return this.#parts.adoption.adopt(record);
  }

  adoptDrive(record: DriveRecord): Promise<void> {
    return this.#parts.drives.adopt(record);
  }

  cleanup(options: { dryRun: boolean; emergency: boolean }) {
    return this.#parts.sweeps.now(options);
  }
}

interface Foundation {
  news: AnnouncingStore;
  registry: SandboxRegistry;
  sightings: OrphanSightings;
}

/**
 * Constructs every part with the parts that it depends on. Events are delivered to the parts in the order of their
 * construction.
 */
function wire(context: EngineContext, { news, registry, sightings }: Foundation) {
  const events = new EngineEvents();

  // Parts for the life of a sandbox, from its launch to its end.
  const prover = new Prover(context);
  const links = new LinkOpener(context, events);
  const keeperDeadline = new KeeperDeadline(context, events);
  const reaper = new Reaper(context, events);
  const admission = new Admission(context, registry, events);
  const launcher = new Launcher(context, { events, links, prover, admission, reaper });
  const standby = new Standby(context, { events, prover, reaper, links });
  const loss = new InstanceLoss(context, { events, launcher, reaper, standby });
  const wakes = new Wakes(context, { events, links, prover, reaper, launcher, loss });
  const gate = new SandboxGate(context, prover, wakes);
  const absence = new InstanceAbsence(context, { events, registry, wakes });
  const pauses = new Pauses(context, { gate, prover, links });
  const restarts = new Restarts(context, { admission, launcher, loss });
  const checkpoints = new Checkpoints(context, { gate, standby, registry });
  const adoption = new Adoption(context, registry);
  const still = new HoldStill(context, { standby, registry });
  const recovery = new Recovery(context, {
    ...{ events, launcher, loss, reaper, prover, links },
    ...{ pauses, standby, wakes },
  });
  new ForkHostnames(context, events);

  // Parts for the execs, processes, files, ports and drives of a sandbox.
  const oom = new OomAttribution(context);
  const retention = new Retention(context, events, registry);
  const ledger = new ExecLedger(context, events, retention, oom);
  const execs = new Execs(context, gate, ledger, registry);
  const processes = new Processes(context, { events, ledger, gate, execs, finder: registry });
  new WakeHooks(context, events, ledger);
  const drives = new Drives(context, { events, registry, admission });
  const mounts = new Mounts(context, { events, drives, gate, prover, registry });
  const files = fileApi(context, gate, registry);
  const driveFiles = driveFileApi(context, drives);
  const sandboxPorts = new SandboxPorts(context, gate, registry);
  const previews = new Previews(context, registry);

  // Parts that watch over all sandboxes: observation, healing, cleanup and alerts.
  const meter = new UsageMeter(context);
  const clockWatch = new ClockJumpWatch(context);
  const observer = new Observer(context, { events, registry, loss, oom, drives, meter, clockWatch });
  const orphans = new Orphans(context, { registry, sightings, ledger });
  const audit = new Audit(context, { registry, observer, orphans, reaper, drives });
  const deletion = new Deletion(context, { registry, reaper, orphans });
  const sweeps = new Sweeps(context, {
    ...{ registry, events, retention, admission },
    ...{ deletion, standby, audit },
  });
  const expiry = new Expiry(context, { registry, sweeps });
  const diskGuard = new DiskGuard(context, { registry, admission, sweeps });
  const healer = new Healer(context, { registry, prover, loss, observer, diskGuard });
  const diagnostician = new DiagnosisCollector(context, { meter, clockWatch, healer, admission, launcher });
  const alerts = new Alerts(context, { registry, ledger, sweeps, audit, admission, orphans, observer });

  // The parts that callers and the engine's loops use.
  const creation = new Creation(context, {
    ...{ registry, admission, launcher, gate, checkpoints, drives, mounts, processes },
    ...{ execs: ledger, deletion },
  });
  const sandboxes = new Sandboxes(context, {
    ...{ registry, creation, deletion, gate, prover, pauses, standby, restarts, healer },
    ...{ meter, diagnostician, keeperDeadline, expiry },
  });
  const { clock, numbers, stopping } = context;
  const timeline = new Timeline(news, { clock, numbers, stopping, registry, drives });
  const stats = new EngineStats(context, {
    ...{ registry, links, ledger, execs, orphans, observer, audit, sweeps, admission, launcher },
  });
  const maintenance = new Maintenance(context, {
    ...{ registry, prover, pauses, previews, drives, mounts, absence, standby, sweeps },
    ...{ recovery, checkpoints, ledger, processes },
  });
  return {
    ...{ registry, sandboxes, checkpoints, execs, processes, files, mounts, drives, driveFiles },
    ...{ sandboxPorts, previews, alerts, timeline, stats, audit, sweeps, ledger, recovery },
    ...{ observer, orphans, retention, diskGuard, healer, maintenance, expiry, still, adoption },
  };
}
