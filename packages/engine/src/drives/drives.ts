import {
  type AuditFinding,
  type Cause,
  type CreateDrive,
  causeOf,
  type Drive,
  type DriveId,
  type DriveList,
  HoldfastError,
  isDriveId,
  isHoldfastError,
  isName,
  LABELS_MAX,
  type UpdateDrive,
} from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import type { OpenedDrive } from "../files/drive-files.ts";
import type { Admission } from "../launch/admission.ts";
import { invalidCursor } from "../lib/cursor.ts";
import { raced, within } from "../lib/deadline.ts";
import { iso, listNames } from "../lib/format.ts";
import { SerialQueue } from "../lib/serial-queue.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { mountsOf } from "../model/mount-machine.ts";
import { changedKeys, listKeys, merged, requireFew } from "../model/spec-patch.ts";
import type { DriveApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { type DriveObservation, type NewEvent, requireCapability, StoreConflict } from "../ports/index.ts";
import type { DriveRecord } from "../ports/records.ts";

/** A drive in memory: its stored record and its last observation. */
interface Known {
  record: DriveRecord;
  observation: DriveObservation | null;
  usage: { usedBytes: number; freeBytes: number; at: number } | null;
  /**
   * Number of mount requests and sandbox creations in progress that use the drive and have not stored their mounts yet.
   */
  pins: number;
  /** The creation in progress, which other callers await. */
  making: Promise<void> | null;
  /** Why the creation failed. Set until the failure is stored. */
  createError: string | null;
  isOpening: boolean;
  /** Aborted when the drive is being deleted, so that open files are closed and don't delay the delete. */
  deletion: AbortController;
  /** The delete request that is being stored; null otherwise. */
  deleteRequest: Promise<void> | null;
  /** Makes changes of the labels run one after the other. */
  readonly labelChanges: SerialQueue;
  removal: { attempts: number; nextAt: number; inProgress: Promise<void> | null; error: Cause | null };
}

interface DriveParts {
  events: EngineEvents;
  registry: SandboxRegistry;
  admission: Admission;
}

/**
 * Manages the lifecycle of drives. Like a sandbox, a drive is recorded before its directory is created, and its record
 * is deleted only after the directory was observed to be gone. The status comes from the last observation: if a
 * directory has disappeared, that is reported. The directory is never created again, because an empty drive in place of
 * the lost one would hide the loss.
 */
export class Drives implements DriveApi {
  readonly #context: EngineContext;
  readonly #parts: DriveParts;
  readonly #drives = new Map<DriveId, Known>();

  constructor(context: EngineContext, parts: DriveParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Resumes the work of an earlier server: unfinished creations and deletes. */
  async start(): Promise<void> {
    const { store, log } = this.#context;
    for (const record of await store.drives()) this.#adopt(record);
    for (const known of this.#drives.values()) {
      const { id, phase } = known.record;
      if (phase === "making") {
        known.making = this.#make(known);
        // No caller waits for this creation. If it fails, the failure is recorded and the drive's record is removed.
        known.making.catch(() => undefined);
      }
      if (phase !== "ready") continue;
      await this.#open(id).catch((error: unknown) => {
        log.error({ drive: id, cause: causeOf(error) }, "failed to open a drive");
      });
    }
    await this.observe();
    this.maintain();
  }

  #adopt(record: DriveRecord): Known {
    const removal = { attempts: 0, nextAt: 0, inProgress: null, error: null };
    const making = {
      making: null,
      createError: null,
      isOpening: false,
      deletion: new AbortController(),
      deleteRequest: null,
      labelChanges: new SerialQueue(),
    };
    const known = { record, observation: null, usage: null, pins: 0, ...making, removal };
    this.#drives.set(record.id, known);
    return known;
  }

  /** Finds a drive by id or name. */
  find(ref: string): DriveRecord {
    return this.#known(ref).record;
  }

  #known(ref: string): Known {
    const known = isDriveId(ref) ? this.#drives.get(ref) : this.#byName(ref);
    if (known !== undefined) return known;
    throw notFound(ref);
  }

  #byName(name: string): Known | undefined {
    for (const known of this.#drives.values()) if (known.record.name === name) return known;
    return undefined;
  }

  /**
   * Pins a drive: it can't be deleted until its mount is stored in a sandbox's record. No `await` separates the check
   * below from the pin, and none separates a delete's check of pins and records from the start of the delete. So a pin
   * and the start of a delete can't interleave.
   */
  pin(ref: string): { record: DriveRecord; release(): void } {
    const known = this.#known(ref);
    if (isBeingDeleted(known)) throw new HoldfastError("drive_deleting");
    known.pins += 1;
    let isPinned = true;
    const release = () => {
      if (isPinned) known.pins -= 1;
      isPinned = false;
    };
    return { record: known.record, release };
  }

  /** Resolves when the drive can be mounted; rejects with the reason if it can't. */
  async usable(id: DriveId, signal: AbortSignal): Promise<void> {
    const known = this.#known(id);
    if (known.making) await raced(known.making, signal);
    if (isBeingDeleted(known)) throw new HoldfastError("drive_deleting");
    await this.#open(id).catch((error: unknown) => {
      throw new HoldfastError("drive_degraded", {
        cause: error,
        message: degradedMessage(known.record, error),
      });
    });
    const { status, cause } = await this.#observe(known);
    if (status !== "degraded" || cause === null) return;
    throw new HoldfastError("drive_degraded", { message: `Drive ${known.record.name}: ${cause.message}` });
  }

  /** Whether the drive was ready in its last observation and is not being deleted. */
  isWell(id: DriveId): boolean {
    const known = this.#drives.get(id);
    return known !== undefined && !isBeingDeleted(known) && judgeDrive(known).status === "ready";
  }

  #open(id: DriveId): Promise<void> {
    const { clock, drives, numbers, stopping } = this.#context;
    const limit = { ms: numbers.driveCallMs, what: "opening the drive", signal: stopping };
    return within(clock, limit, (signal) => drives.open(id, signal));
  }

  async create(
    input: CreateDrive,
    { owner = null, signal }: Parameters<DriveApi["create"]>[1],
  ): Promise<{ drive: Drive; existed: boolean }> {
    const { driver, ids } = this.#context;
    requireCapability(driver, "drives");
    if (input.name !== undefined && !isName(input.name))
      throw new HoldfastError("invalid_request", { message: "The name must be a DNS label." });
    const name = input.name ?? ids.name();
    const before = this.#byName(name);
    if (before !== undefined) return this.#existing(before, input, signal);
    this.#checkCap();
    await this.#parts.admission.admitDisk();
    // Another client may have created a drive of this name while the disk was measured.
    const rival = this.#byName(name);
    if (rival !== undefined) return this.#existing(rival, input, signal);
    this.#checkCap();
    const known = this.#adopt(newDrive(this.#context, { ...input, name }, owner));
    known.making = this.#inserted(known);
    await raced(known.making, signal);
    return { drive: this.#view(known), existed: false };
  }

  /** Stores a drive whose directory exists already, and opens it. */
  async adopt(record: DriveRecord): Promise<void> {
    this.#checkCap();
    if (this.#byName(record.name) !== undefined)
      throw new HoldfastError("drive_exists", { message: `A drive named ${record.name} already exists.` });
    const known = this.#adopt({ ...record, phase: "making" });
    known.making = this.#inserted(known);
    await known.making;
  }

  #checkCap(): void {
    const { maxDrives } = this.#context.numbers;
    if (this.#drives.size < maxDrives) return;
    const message = `The server has ${this.#drives.size} drives; the limit is ${maxDrives}.`;
    throw new HoldfastError("too_many_drives", { message });
  }

  async #existing(known: Known, { ifExists, sizeMb }: CreateDrive, signal: AbortSignal) {
    const { name } = known.record;
    if (isBeingDeleted(known)) throw new HoldfastError("drive_deleting");
    if (ifExists !== "return")
      throw new HoldfastError("drive_exists", { message: `A drive named ${name} already exists.` });
    if (sizeMb !== undefined && sizeMb !== known.record.sizeMb)
      throw new HoldfastError("drive_exists", {
        message: `A drive named ${name} already exists with another size: ${known.record.sizeMb ?? "no limit"}.`,
      });
    if (known.making) await raced(known.making, signal);
    return { drive: this.#view(known), existed: true };
  }

  async #inserted(known: Known): Promise<void> {
    const { store } = this.#context;
    const { record } = known;
    try {
      await store.commit({ changes: [{ kind: "drive.insert", record }] });
    } catch (error) {
      this.#drives.delete(record.id);
      if (error instanceof StoreConflict) throw new HoldfastError("drive_exists", { cause: error });
      const message = "The drive could not be recorded, so it was not created.";
      throw new HoldfastError("internal", { message, cause: error });
    }
    await this.#make(known);
  }

  /** Creates the drive's directory. If that fails, the drive is deleted. */
  async #make(known: Known): Promise<void> {
    const { clock, drives, numbers, stopping, log } = this.#context;
    const { id, name, sizeMb } = known.record;
    const limit = { ms: numbers.driveCallMs, what: "creating the drive", signal: stopping };
    try {
      await within(clock, limit, (signal) => drives.make({ id, sizeMb }, signal));
      await this.#observe(known);
      const event = eventOf(known.record, clock.now(), "drive.created", `Drive ${name} was created.`);
      known.record = await this.#stored(known.record, "ready", { ...event, data: { name, sizeMb } });
    } catch (error) {
      if (stopping.aborted) throw error;
      const cause = causeOf(error);
      log.warn({ drive: id, cause }, "failed to create a drive");
      await this.#giveUp(known, `Drive ${name} could not be created: ${cause.message}`);
      throw isHoldfastError(error)
        ? error
        : new HoldfastError("internal", { message: "The drive could not be created.", cause: error });
    } finally {
      known.making = null;
    }
  }

  async #giveUp(known: Known, message: string): Promise<void> {
    const { clock, log } = this.#context;
    const event = eventOf(known.record, clock.now(), "drive.deleting", message);
    known.createError = message;
    try {
      known.record = await this.#stored(known.record, "deleting", event);
    } catch (error) {
      // `maintain` tries again to store the phase `deleting`. If the server restarts before that succeeds, the next
      // server finds the phase `making` and creates the drive.
      log.error(
        { drive: known.record.id, cause: causeOf(error) },
        "failed to store the removal of a drive that could not be created",
      );
      return;
    }
    known.createError = null;
    void this.#destroyOnce(known);
  }

  /** Stores the next phase. Each drive has one writer at a time: a delete waits until a creation has finished or failed. */
  async #stored(record: DriveRecord, phase: DriveRecord["phase"], event: NewEvent): Promise<DriveRecord> {
    const next = { ...record, phase, revision: record.revision + 1 };
    const update = { kind: "drive.update", record: next, expectedRevision: record.revision } as const;
    await this.#context.store.commit({ changes: [update], events: [event] });
    return next;
  }

  async get(ref: string, signal: AbortSignal): Promise<Drive> {
    const known = this.#known(ref);
    if (known.record.phase === "ready") {
      await this.#observe(known);
      await this.#measure(known, signal);
    }
    return this.#view(known);
  }

  /** Measures the usage. If that takes too long, the caller gets the last measured value. */
  async #measure(known: Known, signal: AbortSignal): Promise<void> {
    const { clock, drives, numbers, log } = this.#context;
    const { id } = known.record;
    const limit = { ms: numbers.driveUsageMs, what: "measuring the drive", signal };
    try {
      const usage = await within(clock, limit, (inner) => drives.usage(id, inner));
      known.usage = { ...usage, at: clock.now() };
    } catch (error) {
      signal.throwIfAborted();
      log.debug({ drive: id, cause: causeOf(error) }, "failed to measure a drive");
    }
  }

  async list({ labels, cursor, limit }: Parameters<DriveApi["list"]>[0]): Promise<DriveList> {
    const wanted = Object.entries(labels ?? {});
    const all = [...this.#drives.values()]
      .filter(({ record }) => wanted.every(([key, value]) => record.labels[key] === value))
      .sort((one, other) => order(one.record, other.record));
    const after = cursor === undefined ? null : readCursor(cursor);
    const rest = after === null ? all : all.filter(({ record }) => order(record, after) > 0);
    const page = rest.slice(0, limit);
    const last = page.at(-1)?.record;
    const nextCursor = rest.length > limit && last !== undefined ? cursorOf(last) : null;
    return { items: page.map((known) => this.#view(known)), nextCursor };
  }

  /** Changes the labels. Changes run one after the other, and never during a delete. */
  async update(ref: string, { labels }: UpdateDrive, signal: AbortSignal): Promise<Drive> {
    const known = this.#known(ref);
    if (known.making) await raced(known.making, signal);
    await raced(
      known.labelChanges.run(() => this.#relabel(known, labels), signal),
      signal,
    );
    return this.#view(known);
  }

  async #relabel(known: Known, changes: UpdateDrive["labels"]): Promise<void> {
    const { record } = known;
    if (isBeingDeleted(known)) throw new HoldfastError("drive_deleting");
    const labels = merged(record.labels, changes);
    requireFew("The drive", "labels", labels, LABELS_MAX);
    const keys = changedKeys(record.labels, labels);
    if (keys.length === 0) return;
    const message = `Changed: labels (${listKeys(keys)}).`;
    const event = eventOf(record, this.#context.clock.now(), "drive.updated", message);
    known.record = await this.#stored({ ...record, labels }, record.phase, event);
  }

  async remove(ref: string, { force, signal }: Parameters<DriveApi["remove"]>[1]): Promise<Drive | null> {
    if (isDriveId(ref) && !this.#drives.has(ref)) return this.#removeWithoutRecord(ref, force);
    const known = this.#known(ref);
    if (known.making)
      await raced(
        known.making.catch(() => undefined),
        signal,
      );
    if (known.labelChanges.length > 0) await known.labelChanges.idle(signal);
    const { id, phase } = known.record;
    if (!this.#drives.has(id)) return null;
    if (phase === "ready")
      known.deleteRequest = this.#requestDelete(known, force).finally(() => {
        known.deleteRequest = null;
      });
    await known.deleteRequest;
    known.removal.nextAt = 0;
    await raced(this.#destroyOnce(known), signal);
    return this.#drives.has(id) ? this.#view(known) : null;
  }

  /**
   * Removes a drive that has no readable record. The caller's explicit request is the evidence that the drive may be
   * removed.
   */
  async #removeWithoutRecord(id: DriveId, force: boolean): Promise<null> {
    const { clock, drives, numbers, store, stopping } = this.#context;
    const limit = { ms: numbers.driveCallMs, what: "removing the drive", signal: stopping };
    const there = await within(clock, limit, (signal) => drives.list(signal)).catch((error: unknown) => {
      const message = `Drives could not be listed: ${causeOf(error).message}`;
      throw new HoldfastError("drive_degraded", { message, cause: error });
    });
    if (!there.includes(id) && !(await store.unreadableDrives()).includes(id)) throw notFound(id);
    if (!force && this.holders(id).length > 0) throw new HoldfastError("drive_mounted");
    try {
      await this.#detachFromAll(id);
      await within(clock, limit, (signal) => drives.destroy(id, signal));
      await this.#detachFromAll(id);
      const message = "The drive was deleted. It had no readable record.";
      const event = { at: clock.now(), type: "drive.deleted", driveId: id, message } as const;
      await store.commit({ changes: [{ kind: "drive.remove", id }], events: [event] });
    } catch (error) {
      const message = `The drive could not be removed: ${causeOf(error).message}. It has no readable record; delete it again.`;
      throw new HoldfastError("pending_cleanup", { message, cause: error });
    }
    return null;
  }

  /** Stores the delete request. New mounts are rejected from now on, even before the request is stored. */
  async #requestDelete(known: Known, force: boolean): Promise<void> {
    if (!force) this.#requireUnmounted(known);
    const before = known.record;
    const { name } = before;
    const message = force
      ? `Drive ${name} is being unmounted from all sandboxes.`
      : "The delete was accepted.";
    const event = eventOf(before, this.#context.clock.now(), "drive.deleting", message);
    known.record = { ...before, phase: "deleting" };
    try {
      known.record = await this.#stored(before, "deleting", { ...event, data: { name, force } });
    } catch (error) {
      known.record = before;
      const problem = "The delete could not be recorded, so it did not begin.";
      throw new HoldfastError("internal", { message: problem, cause: error });
    }
  }

  #requireUnmounted({ record, pins }: Known): void {
    const holders = this.holders(record.id).map(({ record: { name } }) => name);
    if (holders.length === 0 && pins === 0) return;
    const where = holders.length === 0 ? "is being mounted" : `is mounted in ${listNames(holders)}`;
    throw new HoldfastError("drive_mounted", { message: `Drive ${record.name} ${where}.` });
  }

  /**
   * Returns the sandboxes that have mounts of the drive in their records, including sandboxes in standby. Failed
   * sandboxes are left out, because they never use the drive again.
   */
  holders(id: DriveId): LiveSandbox[] {
    return [...this.#parts.registry.allLive()].filter(
      ({ record }) => !ENDED.has(record.phase.name) && mountsOf(record, id).length > 0,
    );
  }

  /** Retries deletes that are due, and tries to open degraded drives again. */
  maintain(): void {
    const now = this.#context.clock.now();
    for (const known of this.#drives.values()) {
      const { record, removal, createError, making } = known;
      if (createError !== null && making === null) void this.#giveUp(known, createError);
      if (record.phase === "deleting" && known.deleteRequest === null && removal.nextAt <= now)
        void this.#destroyOnce(known);
      if (judgeDrive(known).status === "degraded") void this.#openAgain(known);
    }
  }

  async #openAgain(known: Known): Promise<void> {
    if (known.isOpening) return;
    known.isOpening = true;
    const { id } = known.record;
    await this.#open(id).catch((error: unknown) => {
      this.#context.log.warn({ drive: id, cause: causeOf(error) }, "failed to open a drive");
    });
    known.isOpening = false;
  }

  #destroyOnce(known: Known): Promise<void> {
    const { removal } = known;
    removal.inProgress ??= this.#destroy(known).finally(() => {
      removal.inProgress = null;
    });
    return removal.inProgress;
  }

  /** Deletes the drive. Never rejects: a failure is recorded, and the delete is retried later. */
  async #destroy(known: Known): Promise<void> {
    const { clock, drives, numbers, store, stopping, log } = this.#context;
    const { id, name } = known.record;
    const limit = { ms: numbers.driveCallMs, what: "removing the drive", signal: stopping };
    try {
      known.deletion.abort(new HoldfastError("drive_deleting"));
      await this.#detachFromAll(id);
      await within(clock, limit, (signal) => drives.destroy(id, signal));
      // A sandbox may have mounted the drive while its directory was being removed, so the drive is unmounted once
      // more. From here on no sandbox can mount it.
      await this.#detachFromAll(id);
      const seen = (await within(clock, limit, (signal) => drives.observe([id], signal))).get(id);
      if (seen?.seen !== "absent") throw new Error("the drive is still there after its removal");
      const event = eventOf(known.record, clock.now(), "drive.deleted", `Drive ${name} was deleted.`);
      await store.commit({ changes: [{ kind: "drive.remove", id }], events: [event] });
      this.#drives.delete(id);
    } catch (error) {
      if (stopping.aborted) return;
      await this.#destroyLater(known, causeOf(error)).catch((failure: unknown) => {
        log.error({ drive: id, cause: causeOf(failure) }, "failed to store a drive event");
      });
    }
  }

  async #detachFromAll(id: DriveId): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    const limit = { ms: numbers.driveCallMs, what: "unmounting the drive", signal: stopping };
    for (const live of this.holders(id))
      await within(clock, limit, (signal) => this.#parts.events.driveRevoked.run(live, id, signal));
  }

  async #destroyLater(known: Known, cause: Cause): Promise<void> {
    const { clock, numbers, log } = this.#context;
    const { record, removal } = known;
    const waits = numbers.driveBackoffMs;
    const wait = waits[Math.min(removal.attempts, waits.length - 1)] ?? 0;
    removal.attempts += 1;
    removal.nextAt = clock.now() + wait;
    const isNews = removal.error?.message !== cause.message;
    removal.error = cause;
    log.warn({ drive: record.id, attempts: removal.attempts, cause }, "failed to remove a drive");
    if (!isNews) return;
    const event = eventOf(record, clock.now(), "drive.delete_failed", cause.message);
    const data = { nextAttemptAt: removal.nextAt, cause };
    await recordEvent(this.#context, { ...event, data });
  }

  /** Observes all drives once. A failed observation changes no status. */
  async observe(): Promise<void> {
    const { clock, drives, numbers, stopping } = this.#context;
    const ready = [...this.#drives.values()].filter(({ record }) => record.phase === "ready");
    if (ready.length === 0) return;
    const ids = ready.map(({ record }) => record.id);
    const limit = { ms: numbers.observeEveryMs * 2, what: "observing drives", signal: stopping };
    const seen = await within(clock, limit, (signal) => drives.observe(ids, signal)).catch(() => null);
    for (const known of ready) this.#learn(known, seen?.get(known.record.id) ?? null);
  }

  async #observe(known: Known): Promise<Pick<Drive, "status" | "cause">> {
    const { clock, drives, numbers, stopping } = this.#context;
    const { id } = known.record;
    const limit = { ms: numbers.observeEveryMs * 2, what: "observing the drive", signal: stopping };
    const seen = await within(clock, limit, (signal) => drives.observe([id], signal)).catch(() => null);
    this.#learn(known, seen?.get(id) ?? null);
    return judgeDrive(known);
  }

  /** Stores an observation. Records one event when the drive becomes degraded, and one when it recovers. */
  #learn(known: Known, observation: DriveObservation | null): void {
    const { clock, log } = this.#context;
    if (observation === null || observation.seen === "unknown") return;
    const before = judgeDrive(known);
    known.observation = observation;
    const after = judgeDrive(known);
    if (before.status === after.status || known.record.phase !== "ready") return;
    const isWorse = after.status === "degraded";
    const message = isWorse
      ? `Drive ${known.record.name}: ${after.cause?.message}`
      : `Drive ${known.record.name} recovered.`;
    log.warn({ drive: known.record.id, cause: after.cause }, message);
    const type = isWorse ? "drive.degraded" : "drive.recovered";
    const event = eventOf(known.record, clock.now(), type, message);
    const data = after.cause === null ? {} : { cause: after.cause };
    void recordEvent(this.#context, { ...event, data });
  }

  /** Opens the drive's files for its file API. */
  async files(ref: string, signal: AbortSignal): Promise<OpenedDrive> {
    const { clock, drives, numbers } = this.#context;
    const { record, deletion } = this.#known(ref);
    const { id } = record;
    await this.usable(id, signal);
    const limit = { ms: numbers.driveCallMs, what: "opening the drive's files", signal };
    const opened = await within(clock, limit, (inner) => drives.files(id, inner)).catch((error: unknown) => {
      if (isHoldfastError(error)) throw error;
      signal.throwIfAborted();
      throw new HoldfastError("drive_degraded", { cause: error });
    });
    return { driveId: id, gone: deletion.signal, ...opened };
  }

  get count(): number {
    return this.#drives.size;
  }

  /**
   * Compares the records of drives with their directories, and the directories with the records. Removes nothing,
   * because the data may be needed.
   */
  async audit(signal: AbortSignal): Promise<{ things: number; findings: AuditFinding[] }> {
    const { drives, store } = this.#context;
    await this.observe();
    const before = [...this.#drives.keys()];
    const there = await drives.list(signal);
    const unreadable = await store.unreadableDrives();
    const known = new Set<DriveId>([...before, ...this.#drives.keys(), ...unreadable]);
    const findings = [
      ...there.filter((id) => !known.has(id)).map((id) => finding("orphan", id, STRAY)),
      ...unreadable.map((id) => finding("unreadable", id, UNREADABLE)),
      ...[...this.#drives.values()]
        .filter((each) => judgeDrive(each).status === "degraded")
        .map((each) => finding("absent", each.record.id, `${judgeDrive(each).cause?.message}.`)),
    ];
    return { things: there.length, findings };
  }

  #view(known: Known): Drive {
    const { record, usage } = known;
    const { id, name, sizeMb, labels } = record;
    const mounts = this.holders(id).flatMap(({ record: holder }) =>
      mountsOf(holder, id).map(({ path, subpath, readOnly }) => {
        return { sandboxId: holder.id, sandbox: holder.name, path, subpath, readOnly };
      }),
    );
    return {
      id,
      name,
      ...judgeDrive(known),
      sizeMb,
      usage: usage && {
        usedBytes: usage.usedBytes,
        freeBytes: usage.freeBytes,
        measuredAt: iso(usage.at),
      },
      mounts,
      createdAt: iso(record.createdAt),
      labels,
    };
  }
}

const STRAY = "No record owns the drive. It is left alone until it is deleted by its id.";
const UNREADABLE = "The record of the drive can't be read. It is left alone until it is deleted by its id.";

const finding = (kind: AuditFinding["kind"], driveId: DriveId, message: string): AuditFinding => ({
  kind,
  driveId,
  things: ["drive"],
  action: "left",
  message,
});

const ENDED = new Set<LiveSandbox["record"]["phase"]["name"]>(["gone", "failed"]);

/** Whether the drive is being deleted, or will be because its creation failed. */
const isBeingDeleted = ({ record, createError }: Known): boolean =>
  record.phase === "deleting" || createError !== null;

const notFound = (ref: string): HoldfastError =>
  new HoldfastError("drive_not_found", { message: `Drive not found: ${JSON.stringify(ref.slice(0, 80))}.` });

/** A position in the list. It stays valid when its drive is deleted: the next page begins after it. */
type Place = Pick<DriveRecord, "createdAt" | "id">;

const cursorOf = ({ createdAt, id }: Place): string => `${createdAt}.${id}`;

function readCursor(cursor: string): Place {
  const [createdAt, id = ""] = cursor.split(".");
  if (isDriveId(id) && /^\d+$/.test(createdAt ?? "")) return { createdAt: Number(createdAt), id };
  throw invalidCursor();
}

const order = (one: Place, other: Place): number =>
  one.createdAt - other.createdAt || (one.id < other.id ? -1 : one.id > other.id ? 1 : 0);

/** Computes a drive's status; no other code does. A drive that could not be observed is not reported as broken. */
function judgeDrive({ record, observation, removal }: Known): Pick<Drive, "status" | "cause"> {
  if (record.phase === "making") return { status: "creating", cause: null };
  if (record.phase === "deleting") return { status: "deleting", cause: removal.error };
  if (observation?.seen === "absent")
    return { status: "degraded", cause: { code: "drive_gone", message: "its files are missing" } };
  if (observation?.seen === "present" && observation.problem !== null)
    return { status: "degraded", cause: observation.problem };
  return { status: "ready", cause: null };
}

const degradedMessage = ({ name }: DriveRecord, error: unknown): string =>
  `Drive ${name} could not be opened: ${causeOf(error).message}`;

function newDrive(
  { ids, clock }: EngineContext,
  {
    name,
    sizeMb = null,
    labels = {},
  }: Omit<CreateDrive, "sizeMb"> & { name: string; sizeMb?: number | null },
  owner: string | null,
): DriveRecord {
  const createdAt = clock.now();
  return { id: ids.drive(), name, phase: "making", sizeMb, labels, owner, createdAt, revision: 0 };
}

const eventOf = (
  { id: driveId }: DriveRecord,
  at: number,
  type: NewEvent["type"],
  message: string,
): NewEvent => ({
  at,
  type,
  driveId,
  message,
});
