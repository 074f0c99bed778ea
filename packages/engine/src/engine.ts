import type { Numbers, SandboxId, Stats } from "@holdfast/contract";
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
import { EngineLifetime } from "./engine-lifetime.ts";
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
import { Adoption } from "./lifecycle/adoption.ts";
import { Checkpoints } from "./lifecycle/checkpoints.ts";
import { Creation } from "./lifecycle/create.ts";
import { Deletion } from "./lifecycle/delete.ts";
import { ForkHostnames } from "./lifecycle/forks.ts";
import { FrozenCopy } from "./lifecycle/frozen-copy.ts";
import { SandboxGate } from "./lifecycle/gate.ts";
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
import { drivesOf, imagesOf, journalsOf } from "./ports/driver-parts.ts";
import type { Ports } from "./ports/index.ts";
import type { DriveRecord, SandboxRecord } from "./ports/records.ts";
import { Processes } from "./processes/processes.ts";
import { Sandboxes } from "./sandbox-api.ts";

export const createEngine = (ports: Ports, numbers: Numbers): EngineApi => new Engine(ports, numbers);

/**
 * The engine as its callers see it. It only constructs the parts and delegates to them; `EngineLifetime` starts and
 * stops them.
 */
class Engine implements EngineApi {
  readonly #context: EngineContext;
  readonly #parts: ReturnType<typeof wire>;
  readonly #lifetime: EngineLifetime;
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
    const stopping = new AbortController();
    const events = new EngineEvents();
    const sightings = new OrphanSightings(numbers.orphanGraceMs);
    const news = new AnnouncingStore(ports.store);
    const registry = new SandboxRegistry(news.store, sightings, events);
    const context: EngineContext = {
      ...ports,
      store: news.store,
      drives: drivesOf(ports.driver),
      images: imagesOf(ports.driver),
      journals: renamedJournals(journalsOf(ports.driver), registry),
      numbers,
      stopping: stopping.signal,
    };
    const parts = wire(context, { events, news, registry, sightings });
    this.#context = context;
    this.#parts = parts;
    this.#lifetime = new EngineLifetime(context, stopping, parts);
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

  start(): Promise<void> {
    return this.#lifetime.start();
  }

  stop(): Promise<void> {
    return this.#lifetime.stop();
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
    const why = this.#lifetime.unreadiness();
    return why === null ? this.#parts.stats.unreadiness() : [why];
  }

  audit() {
    return this.#parts.audit.run("request");
  }

  lastAudit() {
    return this.#parts.audit.last;
  }

  copyWhileFrozen<Result>(
    ids: readonly SandboxId[],
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    return this.#parts.frozenCopy.run(ids, copy, AbortSignal.any([signal, this.#context.stopping]));
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
  events: EngineEvents;
  news: AnnouncingStore;
  registry: SandboxRegistry;
  sightings: OrphanSightings;
}

/**
 * Constructs every part, lowest first. Each part gets only parts that exist already; a lower part reaches a higher one
 * through `EngineEvents`, which notifies the parts in the order of their construction.
 */
function wire(context: EngineContext, { events, news, registry, sightings }: Foundation) {
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
  const frozenCopy = new FrozenCopy(context, { standby, registry });
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
  const expiry = new Expiry(context, { events, registry, sweeps });
  const diskGuard = new DiskGuard(context, { registry, admission, sweeps });
  const healer = new Healer(context, { registry, prover, loss, observer, diskGuard });
  const diagnostician = new DiagnosisCollector(context, { meter, clockWatch, healer, admission, launcher });
  const alerts = new Alerts(context, { events, registry, sweeps, audit, admission, orphans, observer });

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
    ...{ retention, frozenCopy, adoption },
    loops: [observer, orphans, retention, sweeps, expiry, diskGuard, healer, maintenance, alerts],
  };
}
