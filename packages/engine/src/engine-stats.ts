import { STATUSES, type Stats } from "@holdfast/contract";
import type { Audit } from "./cleanup/audit.ts";
import type { Orphans } from "./cleanup/orphans.ts";
import type { Sweeps } from "./cleanup/sweeps.ts";
import type { ExecLedger } from "./execs/exec-ledger.ts";
import type { Execs } from "./execs/execs.ts";
import type { Observer } from "./healing/observer.ts";
import type { Admission } from "./launch/admission.ts";
import { launchesState } from "./launch/launch-breaker.ts";
import type { Launcher } from "./launch/launcher.ts";
import type { LinkOpener } from "./launch/link-opener.ts";
import { iso } from "./lib/format.ts";
import type { SandboxRegistry } from "./live/sandbox-registry.ts";
import { capabilityNames } from "./ports/capabilities.ts";
import type { EngineContext } from "./ports/context.ts";

/** The observation pass is overdue after this many missed intervals. */
const PASSES_MISSED = 6;

interface StatsParts {
  registry: SandboxRegistry;
  links: LinkOpener;
  ledger: ExecLedger;
  execs: Execs;
  orphans: Orphans;
  observer: Observer;
  audit: Audit;
  sweeps: Sweeps;
  admission: Admission;
  launcher: Launcher;
}

/** The figures of the whole engine. */
export class EngineStats {
  readonly #context: EngineContext;
  readonly #parts: StatsParts;

  constructor(context: EngineContext, parts: StatsParts) {
    this.#context = context;
    this.#parts = parts;
  }

  async read(): Promise<Stats> {
    const { clock, driver, store } = this.#context;
    const { registry, links, ledger, execs, orphans, observer, audit, sweeps, admission, launcher } =
      this.#parts;
    const totals = await store.counters();
    const sandboxes = Object.fromEntries(STATUSES.map((status) => [status, 0])) as Stats["sandboxes"];
    const linkCounts = { up: 0, down: 0, lost: links.lostCount };
    for (const live of registry.allLive()) {
      sandboxes[live.judge().status] += 1;
      if (live.record.phase.name === "running") linkCounts[live.link ? "up" : "down"] += 1;
    }
    sandboxes.terminated = totals.terminated;
    const { lastPassAt } = observer;
    return {
      at: iso(clock.now()),
      sandboxes,
      totals,
      execsRunning: ledger.runningCount,
      execsQueued: ledger.queuedCount,
      links: linkCounts,
      readers: execs.readers.count,
      readersCut: execs.readers.cut,
      orphans: orphans.count,
      lastObservationAt: iso(lastPassAt),
      lastAuditAt: audit.last?.at ?? null,
      sweeps: sweeps.health(),
      launches: {
        state: launchesState(admission.launches),
        waiting: launcher.waiting,
        failuresInARow: admission.launches.failures,
      },
      capacity: admission.capacity,
      driver: { name: driver.name, capabilities: capabilityNames(driver) },
    };
  }

  /** Returns the reasons why a started engine is not ready for calls; empty if it is ready. */
  unreadiness(): string[] {
    const { clock, numbers } = this.#context;
    const { lastPassAt } = this.#parts.observer;
    const isLate = lastPassAt !== null && clock.now() - lastPassAt > numbers.observeEveryMs * PASSES_MISSED;
    return isLate ? ["the observation pass is overdue"] : [];
  }
}
