import {
  type CreateSandbox,
  type Diagnosis,
  HoldfastError,
  isSandboxId,
  type Proof,
  type ResourceReport,
  type Sandbox,
  type SandboxId,
  type SandboxList,
  type Status,
  type UpdateSandbox,
  type UsageList,
} from "@holdfast/contract";
import type { Expiry } from "./cleanup/expiry.ts";
import type { DiagnosisCollector } from "./diagnosis/collector.ts";
import type { UsageMeter } from "./diagnosis/usage-meter.ts";
import { summaryOf } from "./diagnosis/usage-view.ts";
import type { Healer } from "./healing/healer.ts";
import type { KeeperDeadline } from "./launch/keeper-deadline.ts";
import type { Prover } from "./launch/prover.ts";
import { invalidCursor } from "./lib/cursor.ts";
import { raced, within } from "./lib/deadline.ts";
import { iso } from "./lib/format.ts";
import type { Creation } from "./lifecycle/create.ts";
import type { Deletion } from "./lifecycle/delete.ts";
import type { SandboxGate } from "./lifecycle/gate.ts";
import type { Pauses } from "./lifecycle/pause.ts";
import type { Restarts } from "./lifecycle/restart.ts";
import type { Standby } from "./lifecycle/suspend.ts";
import { LiveSandbox } from "./live/live-sandbox.ts";
import type { SandboxRegistry } from "./live/sandbox-registry.ts";
import { translate } from "./model/keeper-errors.ts";
import { changedSpec, withFixedEnd } from "./model/spec-patch.ts";
import type { CreateOptions, SandboxApi } from "./ports/api.ts";
import type { EngineContext } from "./ports/context.ts";
import { type SandboxFilter, standbySupport } from "./ports/index.ts";
import type { SandboxRecord } from "./ports/records.ts";
import { viewSandbox } from "./sandbox-view.ts";

interface SandboxParts {
  registry: SandboxRegistry;
  creation: Creation;
  deletion: Deletion;
  gate: SandboxGate;
  prover: Prover;
  pauses: Pauses;
  standby: Standby;
  restarts: Restarts;
  healer: Healer;
  meter: UsageMeter;
  diagnostician: DiagnosisCollector;
  keeperDeadline: KeeperDeadline;
  expiry: Expiry;
}

const PAGE = 500;

/**
 * The operations that callers can perform on sandboxes. Each method finds the sandbox, calls the part that does the
 * work, and returns a view.
 */
export class Sandboxes implements SandboxApi {
  readonly #context: EngineContext;
  readonly #parts: SandboxParts;

  constructor(context: EngineContext, parts: SandboxParts) {
    this.#context = context;
    this.#parts = parts;
  }

  #view(record: SandboxRecord): Sandbox {
    const live = this.#parts.registry.live(record.id);
    const { clock, numbers, driver } = this.#context;
    const standbyKind = standbySupport(driver).kind;
    const recovery = live === undefined ? null : this.#parts.healer.recovery(live);
    const about = { numbers, standbyKind, recovery };
    return viewSandbox(live?.record ?? record, live?.evidence ?? null, clock.now(), about);
  }

  async get(ref: string): Promise<Sandbox> {
    const { registry } = this.#parts;
    return this.#view(registry.live(ref)?.record ?? (await registry.stored(ref)));
  }

  async environment(ref: string): Promise<Readonly<Record<string, string>>> {
    const { registry } = this.#parts;
    return (registry.live(ref)?.record ?? (await registry.stored(ref))).spec.env;
  }

  async list(filter: Parameters<SandboxApi["list"]>[0]): Promise<SandboxList> {
    const { store } = this.#context;
    const wanted = filter.status?.length ? new Set<Status>(filter.status) : null;
    const includeGone = wanted?.has("terminated") ?? false;
    const items: Sandbox[] = [];
    let after = filter.cursor as SandboxId | undefined;
    if (after !== undefined && !isSandboxId(after)) throw invalidCursor();
    for (;;) {
      const page: SandboxFilter = { includeGone, labels: filter.labels, after, limit: PAGE };
      const records = await store.sandboxes(page);
      for (const record of records) {
        const view = this.#view(record);
        if (wanted !== null && !wanted.has(view.status)) continue;
        if (items.length === filter.limit) return { items, nextCursor: items.at(-1)?.id ?? null };
        items.push(view);
      }
      if (records.length < PAGE) return { items, nextCursor: null };
      after = records.at(-1)?.id;
    }
  }

  async create(
    input: CreateSandbox,
    options: CreateOptions,
  ): Promise<{ sandbox: Sandbox; existed: boolean }> {
    const { live, existed } = await this.#parts.creation.create(input, options);
    return { sandbox: this.#view(live.record), existed };
  }

  /**
   * Applies the changes to the current spec. If another caller changes the spec in the meantime, tries again with the
   * new spec.
   */
  async update(ref: string, changes: UpdateSandbox): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    if (live.isExpired) throw live.refusal();
    for (let tries = 1; tries <= this.#context.numbers.updateTriesMax; tries += 1) {
      const before = live.record.spec;
      const { createdAt } = live.record;
      const change = changedSpec(
        before,
        withFixedEnd(changes, { createdAt, now: this.#context.clock.now() }),
      );
      if (change === null) return this.#view(live.record);
      const isSame = () => live.record.spec === before;
      // A changed idle time is counted from the update.
      if (change.spec.lifecycle.idleTtlMs !== before.lifecycle.idleTtlMs) live.touch();
      if ((await live.decide({ type: "update", ...change }, [], isSame)) !== null) {
        this.#parts.expiry.watch(live);
        void this.#parts.keeperDeadline.refresh(live);
        return this.#view(live.record);
      }
      const { phase } = live.record;
      if (phase.name === "deleting" || phase.name === "gone") throw live.refusal();
    }
    throw new HoldfastError("update_conflict", { sandboxId: live.id });
  }

  async remove(ref: string, options: Parameters<SandboxApi["remove"]>[1]): Promise<Sandbox> {
    return this.#view(await this.#parts.deletion.delete(ref, options));
  }

  async pause(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    await this.#parts.pauses.pause(live, signal);
    return this.#view(live.record);
  }

  async resume(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    await this.#parts.pauses.resume(live, signal);
    return this.#view(live.record);
  }

  /**
   * Suspends a sandbox that is awake; a sandbox in standby stays as it is. If the sandbox is waking, first waits until
   * the wake has ended.
   */
  async standby(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    await this.#parts.gate.settled(live, signal);
    await live.until(() => live.record.phase.name !== "waking", signal);
    if (live.record.phase.name !== "standby" || live.suspension !== null)
      await raced(this.#parts.standby.suspend(live, "Standby was requested."), signal);
    return this.#view(live.record);
  }

  async wake(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    await this.#parts.gate.pass(live, signal);
    return this.#view(live.record);
  }

  async restart(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const live = await this.#parts.registry.find(ref);
    await this.#parts.restarts.requestRestart(live, signal);
    await this.#parts.gate.pass(live, signal);
    return this.#view(live.record);
  }

  async verify(ref: string, signal: AbortSignal): Promise<Proof> {
    const live = await this.#parts.registry.find(ref);
    if (live.isAsleep) await this.#parts.gate.pass(live, signal);
    const refusal = live.refusal();
    if (refusal !== null) throw refusal;
    signal.throwIfAborted();
    return this.#parts.prover.prove(live);
  }

  async processes(ref: string, signal: AbortSignal) {
    const { clock, numbers } = this.#context;
    const live = await this.#parts.registry.find(ref);
    const link = await this.#parts.gate.pass(live, signal);
    const limit = { ms: numbers.keeperCallMs, what: "listing processes", signal };
    const leave = live.enter();
    return within(clock, limit, (inner) => link.processes(inner))
      .catch((error: unknown) => {
        throw translate(error, { sandboxId: live.id });
      })
      .finally(leave);
  }

  usage(): UsageList {
    const { meter, registry } = this.#parts;
    const items = [...registry.allLive()].map((live) => summaryOf(live, meter));
    return { at: iso(this.#context.clock.now()), items };
  }

  async resources(ref: string, signal: AbortSignal): Promise<ResourceReport> {
    return this.#parts.meter.report(await this.#findOrGone(ref), signal);
  }

  async diagnosis(
    ref: string,
    options: { windowMs?: number | undefined },
    signal: AbortSignal,
  ): Promise<Diagnosis> {
    return this.#parts.diagnostician.diagnose(await this.#findOrGone(ref), options, signal);
  }

  /** Finds a live sandbox. For a sandbox that is gone, builds the object from the stored record. */
  async #findOrGone(ref: string): Promise<LiveSandbox> {
    const { registry } = this.#parts;
    const known = registry.live(ref);
    if (known !== undefined) return known;
    const record = await registry.stored(ref);
    return registry.live(record.id) ?? new LiveSandbox(this.#context, record);
  }
}
