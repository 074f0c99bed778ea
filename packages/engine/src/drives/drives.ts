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
import type { DriveApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import type { OpenedDrive } from "./drive-files.ts";
import { mountsOf } from "./mount-step.ts";
import { type DriveObservation, type NewEvent, StoreConflict } from "./ports.ts";
import type { DriveRecord } from "./records.ts";
import { changedKeys, merged, requireFew, told } from "./updated-spec.ts";
import type { World } from "./world.ts";

/** One drive in memory: its record as stored, and what was last seen of it. */
interface Known {
  record: DriveRecord;
  observation: DriveObservation | null;
  usage: { usedBytes: number; freeBytes: number; at: number } | null;
  /** Mounts, and sandboxes with mounts, that are on their way into a record. */
  holds: number;
  /** Making it, for whoever asks for it meanwhile. */
  making: Promise<void> | null;
  /** Why it could not be made, as long as that is not on record. */
  unmade: string | null;
  isOpening: boolean;
  /** Aborted when it is being deleted: whoever reads its files would hold that up. */
  going: AbortController;
  /** The order to delete it, until the store has it. */
  ordered: Promise<void> | null;
  /** Changes of its labels that the store does not have yet; never rejects. */
  changing: Promise<unknown> | null;
  removal: { attempts: number; nextAt: number; underWay: Promise<void> | null; error: Cause | null };
}

export interface DriveParts {
  cells(): Iterable<Cell>;
  /** Refuses where the disk has no room to give away. */
  room(): Promise<void>;
  /** Takes a drive that is being deleted from a sandbox that has it; the sandbox goes on expecting it. */
  takeFrom(cell: Cell, drive: DriveId, signal: AbortSignal): Promise<void>;
}

/**
 * Drives and what becomes of them. Like a sandbox, a drive is stored before anything of it is made, and forgotten only when
 * nothing of it was seen to be left. Its status is what was last seen: a directory that was taken away behind our back is
 * told, and never made anew, because an empty drive in place of a lost one would be a lie.
 */
export class Drives implements DriveApi {
  readonly #world: World;
  readonly #parts: DriveParts;
  readonly #drives = new Map<DriveId, Known>();

  constructor(world: World, parts: DriveParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** Takes up what an earlier server left: what was being made is made, what was being removed is removed. */
  async start(): Promise<void> {
    const { store, log } = this.#world;
    for (const record of await store.drives()) this.#adopt(record);
    for (const known of this.#drives.values()) {
      const { id, phase } = known.record;
      if (phase === "making") {
        known.making = this.#make(known);
        // Nobody has to wait for it: one that can't be made is removed by its record.
        known.making.catch(() => undefined);
      }
      if (phase !== "ready") continue;
      await this.#open(id).catch((error: unknown) => {
        log.error({ drive: id, cause: causeOf(error) }, "a drive could not be opened");
      });
    }
    await this.look();
    this.tend();
  }

  #adopt(record: DriveRecord): Known {
    const removal = { attempts: 0, nextAt: 0, underWay: null, error: null };
    const making = {
      making: null,
      unmade: null,
      isOpening: false,
      going: new AbortController(),
      ordered: null,
      changing: null,
    };
    const known = { record, observation: null, usage: null, holds: 0, ...making, removal };
    this.#drives.set(record.id, known);
    return known;
  }

  /** The live drive that a reference means. */
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
   * Keeps a drive from being deleted until its mount stands in a sandbox's record. Taken and checked at one moment, as the
   * delete looks at holds and records at one moment: of the two one comes first.
   */
  hold(ref: string): { record: DriveRecord; release(): void } {
    const known = this.#known(ref);
    if (isGoing(known)) throw new HoldfastError("drive_deleting");
    known.holds += 1;
    let isHeld = true;
    const release = () => {
      if (isHeld) known.holds -= 1;
      isHeld = false;
    };
    return { record: known.record, release };
  }

  /** Resolves when it can be mounted, or refuses with why it can't. */
  async usable(id: DriveId, signal: AbortSignal): Promise<void> {
    const known = this.#known(id);
    if (known.making) await raced(known.making, signal);
    if (isGoing(known)) throw new HoldfastError("drive_deleting");
    await this.#open(id).catch((error: unknown) => {
      throw new HoldfastError("drive_degraded", {
        cause: error,
        message: degradedMessage(known.record, error),
      });
    });
    const { status, cause } = await this.#look(known);
    if (status !== "degraded" || cause === null) return;
    throw new HoldfastError("drive_degraded", { message: `Drive ${known.record.name}: ${cause.message}` });
  }

  /** Whether it is where it belongs, as far as is known, and stays there. */
  isWell(id: DriveId): boolean {
    const known = this.#drives.get(id);
    return known !== undefined && !isGoing(known) && judgeDrive(known).status === "ready";
  }

  #open(id: DriveId): Promise<void> {
    const { clock, drives, numbers, stopping } = this.#world;
    const limit = { ms: numbers.driveCallMs, what: "opening the drive", signal: stopping };
    return within(clock, limit, (signal) => drives.open(id, signal));
  }

  async create(
    input: CreateDrive,
    { owner = null, signal }: Parameters<DriveApi["create"]>[1],
  ): Promise<{ drive: Drive; existed: boolean }> {
    const { ids } = this.#world;
    if (input.name !== undefined && !isName(input.name))
      throw new HoldfastError("invalid_request", { message: "The name must be a DNS label." });
    const name = input.name ?? ids.name();
    const before = this.#byName(name);
    if (before !== undefined) return this.#existing(before, input, signal);
    this.#checkCap();
    await this.#parts.room();
    // Others may have come while the disk was measured.
    const rival = this.#byName(name);
    if (rival !== undefined) return this.#existing(rival, input, signal);
    this.#checkCap();
    const known = this.#adopt(newDrive(this.#world, { ...input, name }, owner));
    known.making = this.#inserted(known);
    await raced(known.making, signal);
    return { drive: this.#view(known), existed: false };
  }

  #checkCap(): void {
    const { maxDrives } = this.#world.numbers;
    if (this.#drives.size < maxDrives) return;
    const message = `There are ${this.#drives.size} drives; the limit is ${maxDrives}.`;
    throw new HoldfastError("capacity", { message });
  }

  async #existing(known: Known, { ifExists, sizeMb }: CreateDrive, signal: AbortSignal) {
    const { name } = known.record;
    if (isGoing(known)) throw new HoldfastError("drive_deleting");
    if (ifExists !== "return")
      throw new HoldfastError("drive_exists", { message: `There is a drive named ${name}.` });
    if (sizeMb !== undefined && sizeMb !== known.record.sizeMb)
      throw new HoldfastError("drive_exists", {
        message: `There is a drive named ${name}, of another size: ${known.record.sizeMb ?? "no limit"}.`,
      });
    if (known.making) await raced(known.making, signal);
    return { drive: this.#view(known), existed: true };
  }

  async #inserted(known: Known): Promise<void> {
    const { store } = this.#world;
    const { record } = known;
    try {
      await store.commit({ changes: [{ kind: "drive.insert", record }] });
    } catch (error) {
      this.#drives.delete(record.id);
      if (error instanceof StoreConflict) throw new HoldfastError("drive_exists", { cause: error });
      const message = "The drive could not be recorded, so it was not made.";
      throw new HoldfastError("internal", { message, cause: error });
    }
    await this.#make(known);
  }

  /** One that can't be made is removed again, by its record, whatever was made of it. */
  async #make(known: Known): Promise<void> {
    const { clock, drives, numbers, stopping, log } = this.#world;
    const { id, name, sizeMb } = known.record;
    const limit = { ms: numbers.driveCallMs, what: "making the drive", signal: stopping };
    try {
      await within(clock, limit, (signal) => drives.make({ id, sizeMb }, signal));
      await this.#look(known);
      const event = said(known.record, clock.now(), "drive.created", `Drive ${name} was made.`);
      known.record = await this.#stored(known.record, "ready", { ...event, data: { name, sizeMb } });
    } catch (error) {
      if (stopping.aborted) throw error;
      const cause = causeOf(error);
      log.warn({ drive: id, cause }, "a drive could not be made");
      await this.#giveUp(known, `Drive ${name} could not be made: ${cause.message}`);
      throw isHoldfastError(error)
        ? error
        : new HoldfastError("internal", { message: "The drive could not be made.", cause: error });
    } finally {
      known.making = null;
    }
  }

  async #giveUp(known: Known, message: string): Promise<void> {
    const { clock, log } = this.#world;
    const event = said(known.record, clock.now(), "drive.deleting", message);
    known.unmade = message;
    try {
      known.record = await this.#stored(known.record, "deleting", event);
    } catch (error) {
      // It is tried again; the next start would find it as it is, and make it.
      log.error(
        { drive: known.record.id, cause: causeOf(error) },
        "a drive that failed could not be given up",
      );
      return;
    }
    known.unmade = null;
    void this.#tend(known);
  }

  /** One writer at a time for each drive: what is being made is not deleted before it is made, or given up. */
  async #stored(record: DriveRecord, phase: DriveRecord["phase"], event: NewEvent): Promise<DriveRecord> {
    const next = { ...record, phase, revision: record.revision + 1 };
    const update = { kind: "drive.update", record: next, expectedRevision: record.revision } as const;
    await this.#world.store.commit({ changes: [update], events: [event] });
    return next;
  }

  async get(ref: string, signal: AbortSignal): Promise<Drive> {
    const known = this.#known(ref);
    if (known.record.phase === "ready") {
      await this.#look(known);
      await this.#measure(known, signal);
    }
    return this.#view(known);
  }

  /** A drive too large to be measured while its caller waits is told with the last figure. */
  async #measure(known: Known, signal: AbortSignal): Promise<void> {
    const { clock, drives, numbers, log } = this.#world;
    const { id } = known.record;
    const limit = { ms: numbers.driveUsageMs, what: "measuring the drive", signal };
    try {
      const usage = await within(clock, limit, (inner) => drives.usage(id, inner));
      known.usage = { ...usage, at: clock.now() };
    } catch (error) {
      signal.throwIfAborted();
      log.debug({ drive: id, cause: causeOf(error) }, "a drive could not be measured");
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

  /** One change after the other, each made of what the last one left, and none beside a delete. */
  async update(ref: string, { labels }: UpdateDrive, signal: AbortSignal): Promise<Drive> {
    const known = this.#known(ref);
    if (known.making) await raced(known.making, signal);
    while (known.changing) await raced(known.changing, signal);
    const change = this.#relabel(known, labels);
    known.changing = change
      .catch(() => undefined)
      .finally(() => {
        known.changing = null;
      });
    await raced(change, signal);
    return this.#view(known);
  }

  async #relabel(known: Known, changes: UpdateDrive["labels"]): Promise<void> {
    const { record } = known;
    if (isGoing(known)) throw new HoldfastError("drive_deleting");
    const labels = merged(record.labels, changes);
    requireFew("The drive", "labels", labels, LABELS_MAX);
    const keys = changedKeys(record.labels, labels);
    if (keys.length === 0) return;
    const message = `Changed: labels (${told(keys)}).`;
    const event = said(record, this.#world.clock.now(), "drive.updated", message);
    known.record = await this.#stored({ ...record, labels }, record.phase, event);
  }

  async remove(ref: string, { force, signal }: Parameters<DriveApi["remove"]>[1]): Promise<Drive | null> {
    if (isDriveId(ref) && !this.#drives.has(ref)) return this.#scrap(ref, force);
    const known = this.#known(ref);
    if (known.making)
      await raced(
        known.making.catch(() => undefined),
        signal,
      );
    while (known.changing) await raced(known.changing, signal);
    const { id, phase } = known.record;
    if (!this.#drives.has(id)) return null;
    if (phase === "ready")
      known.ordered = this.#order(known, force).finally(() => {
        known.ordered = null;
      });
    await known.ordered;
    known.removal.nextAt = 0;
    await raced(this.#tend(known), signal);
    return this.#drives.has(id) ? this.#view(known) : null;
  }

  /** Someone asks for the end of what has no readable record: that is the evidence it takes to remove it. */
  async #scrap(id: DriveId, force: boolean): Promise<null> {
    const { clock, drives, numbers, store, stopping } = this.#world;
    const limit = { ms: numbers.driveCallMs, what: "removing the drive", signal: stopping };
    const there = await within(clock, limit, (signal) => drives.list(signal)).catch((error: unknown) => {
      const message = `It could not be seen whether the drive is there: ${causeOf(error).message}`;
      throw new HoldfastError("drive_degraded", { message, cause: error });
    });
    if (!there.includes(id) && !(await store.unreadableDrives()).includes(id)) throw notFound(id);
    if (!force && this.holders(id).length > 0) throw new HoldfastError("drive_mounted");
    try {
      await this.#takeFromAll(id);
      await within(clock, limit, (signal) => drives.destroy(id, signal));
      await this.#takeFromAll(id);
      const message = "Nothing of the drive is left. It had no record that could be read.";
      const event = { at: clock.now(), type: "drive.deleted", driveId: id, message } as const;
      await store.commit({ changes: [{ kind: "drive.remove", id }], events: [event] });
    } catch (error) {
      const message = `What is left of the drive could not be removed: ${causeOf(error).message}. It has no record that can be read; delete it again.`;
      throw new HoldfastError("pending_cleanup", { message, cause: error });
    }
    return null;
  }

  /** No mount is taken on from the first moment of it, whether or not the store has it yet. */
  async #order(known: Known, force: boolean): Promise<void> {
    if (!force) this.#requireUnmounted(known);
    const before = known.record;
    const { name } = before;
    const message = force ? `Drive ${name} is taken from all that have it.` : "The delete was accepted.";
    const event = said(before, this.#world.clock.now(), "drive.deleting", message);
    known.record = { ...before, phase: "deleting" };
    try {
      known.record = await this.#stored(before, "deleting", { ...event, data: { name, force } });
    } catch (error) {
      known.record = before;
      const problem = "The delete could not be recorded, so it was not begun.";
      throw new HoldfastError("internal", { message: problem, cause: error });
    }
  }

  #requireUnmounted({ record, holds }: Known): void {
    const holders = this.holders(record.id).map(({ record: { name } }) => name);
    if (holders.length === 0 && holds === 0) return;
    const where = holders.length === 0 ? "is being mounted" : `is mounted in ${listed(holders)}`;
    throw new HoldfastError("drive_mounted", { message: `Drive ${record.name} ${where}.` });
  }

  /** Sandboxes that have it, or are on their way to have it, asleep or not. What has failed will never use it again. */
  holders(id: DriveId): Cell[] {
    return [...this.#parts.cells()].filter(
      ({ record }) => !ENDED.has(record.phase.name) && mountsOf(record, id).length > 0,
    );
  }

  /** Sees to what is being deleted, where its time has come, and to what is not where it belongs. */
  tend(): void {
    const now = this.#world.clock.now();
    for (const known of this.#drives.values()) {
      const { record, removal, unmade, making } = known;
      if (unmade !== null && making === null) void this.#giveUp(known, unmade);
      if (record.phase === "deleting" && known.ordered === null && removal.nextAt <= now)
        void this.#tend(known);
      if (judgeDrive(known).status === "degraded") void this.#openAgain(known);
    }
  }

  async #openAgain(known: Known): Promise<void> {
    if (known.isOpening) return;
    known.isOpening = true;
    const { id } = known.record;
    await this.#open(id).catch((error: unknown) => {
      this.#world.log.warn({ drive: id, cause: causeOf(error) }, "a drive could not be opened");
    });
    known.isOpening = false;
  }

  #tend(known: Known): Promise<void> {
    const { removal } = known;
    removal.underWay ??= this.#destroy(known).finally(() => {
      removal.underWay = null;
    });
    return removal.underWay;
  }

  /** Never rejects: what went wrong is told, and tried again later. */
  async #destroy(known: Known): Promise<void> {
    const { clock, drives, numbers, store, stopping, log } = this.#world;
    const { id, name } = known.record;
    const limit = { ms: numbers.driveCallMs, what: "removing the drive", signal: stopping };
    try {
      known.going.abort(new HoldfastError("drive_deleting"));
      await this.#takeFromAll(id);
      await within(clock, limit, (signal) => drives.destroy(id, signal));
      // By force it is also taken from those that were on their way to have it: from here on nobody can get it.
      await this.#takeFromAll(id);
      const seen = (await within(clock, limit, (signal) => drives.observe([id], signal))).get(id);
      if (seen?.seen !== "absent") throw new Error("it is still there after its removal");
      const event = said(known.record, clock.now(), "drive.deleted", `Nothing of drive ${name} is left.`);
      await store.commit({ changes: [{ kind: "drive.remove", id }], events: [event] });
      this.#drives.delete(id);
    } catch (error) {
      if (stopping.aborted) return;
      await this.#destroyLater(known, causeOf(error)).catch((failure: unknown) => {
        log.error({ drive: id, cause: causeOf(failure) }, "a drive event could not be stored");
      });
    }
  }

  async #takeFromAll(id: DriveId): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const limit = { ms: numbers.driveCallMs, what: "taking the drive away", signal: stopping };
    for (const cell of this.holders(id))
      await within(clock, limit, (signal) => this.#parts.takeFrom(cell, id, signal));
  }

  async #destroyLater(known: Known, cause: Cause): Promise<void> {
    const { clock, numbers, store, log } = this.#world;
    const { record, removal } = known;
    const waits = numbers.driveBackoffMs;
    const wait = waits[Math.min(removal.attempts, waits.length - 1)] ?? 0;
    removal.attempts += 1;
    removal.nextAt = clock.now() + wait;
    const isNews = removal.error?.message !== cause.message;
    removal.error = cause;
    log.warn({ drive: record.id, attempts: removal.attempts, cause }, "a drive could not be removed");
    if (!isNews) return;
    const event = said(record, clock.now(), "drive.delete_failed", cause.message);
    const data = { nextAttemptAt: removal.nextAt, cause };
    await store.commit({ changes: [], events: [{ ...event, data }] });
  }

  /** One look at all drives. Not being able to look is no news of any: none is worse for it, and none better. */
  async look(): Promise<void> {
    const { clock, drives, numbers, stopping } = this.#world;
    const ready = [...this.#drives.values()].filter(({ record }) => record.phase === "ready");
    if (ready.length === 0) return;
    const ids = ready.map(({ record }) => record.id);
    const limit = { ms: numbers.observeEveryMs * 2, what: "looking at drives", signal: stopping };
    const seen = await within(clock, limit, (signal) => drives.observe(ids, signal)).catch(() => null);
    for (const known of ready) this.#learn(known, seen?.get(known.record.id) ?? null);
  }

  async #look(known: Known): Promise<Pick<Drive, "status" | "cause">> {
    const { clock, drives, numbers, stopping } = this.#world;
    const { id } = known.record;
    const limit = { ms: numbers.observeEveryMs * 2, what: "looking at the drive", signal: stopping };
    const seen = await within(clock, limit, (signal) => drives.observe([id], signal)).catch(() => null);
    this.#learn(known, seen?.get(id) ?? null);
    return judgeDrive(known);
  }

  /** A drive that is no longer what it was says so once, and once more when it is again. */
  #learn(known: Known, observation: DriveObservation | null): void {
    const { clock, store, log } = this.#world;
    if (observation === null || observation.seen === "unknown") return;
    const before = judgeDrive(known);
    known.observation = observation;
    const after = judgeDrive(known);
    if (before.status === after.status || known.record.phase !== "ready") return;
    const isWorse = after.status === "degraded";
    const message = isWorse
      ? `Drive ${known.record.name}: ${after.cause?.message}`
      : `Drive ${known.record.name} is where it belongs again.`;
    log.warn({ drive: known.record.id, cause: after.cause }, message);
    const type = isWorse ? "drive.degraded" : "drive.recovered";
    const event = said(known.record, clock.now(), type, message);
    const data = after.cause === null ? {} : { cause: after.cause };
    store.commit({ changes: [], events: [{ ...event, data }] }).catch((error: unknown) => {
      log.error({ drive: known.record.id, cause: causeOf(error) }, "a drive event could not be stored");
    });
  }

  /** Its files, for the drive's own file API. */
  async files(ref: string, signal: AbortSignal): Promise<OpenedDrive> {
    const { clock, drives, numbers } = this.#world;
    const { record, going } = this.#known(ref);
    const { id } = record;
    await this.usable(id, signal);
    const limit = { ms: numbers.driveCallMs, what: "opening the drive's files", signal };
    const opened = await within(clock, limit, (inner) => drives.files(id, inner)).catch((error: unknown) => {
      if (isHoldfastError(error)) throw error;
      signal.throwIfAborted();
      throw new HoldfastError("drive_degraded", { cause: error });
    });
    return { driveId: id, gone: going.signal, ...opened };
  }

  get count(): number {
    return this.#drives.size;
  }

  /** Records and directories of drives, both ways. Nothing is removed: what is in a drive is somebody's. */
  async audit(signal: AbortSignal): Promise<{ things: number; findings: AuditFinding[] }> {
    const { drives, store } = this.#world;
    await this.look();
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
        measuredAt: new Date(usage.at).toISOString(),
      },
      mounts,
      createdAt: new Date(record.createdAt).toISOString(),
      labels,
    };
  }
}

const STRAY = "No record owns it. It is left as it is until it is deleted explicitly, by its id.";
const UNREADABLE = "Its record can't be read. It is left as it is until it is deleted explicitly, by its id.";

const finding = (kind: AuditFinding["kind"], driveId: DriveId, message: string): AuditFinding => ({
  kind,
  driveId,
  things: ["drive"],
  action: "left",
  message,
});

const ENDED = new Set<Cell["record"]["phase"]["name"]>(["gone", "failed"]);

/** Whether it is being deleted, or is about to be because it could not be made. */
const isGoing = ({ record, unmade }: Known): boolean => record.phase === "deleting" || unmade !== null;

const notFound = (ref: string): HoldfastError =>
  new HoldfastError("drive_not_found", { message: `There is no drive ${JSON.stringify(ref.slice(0, 80))}.` });

const NAMES_TOLD = 5;
const listed = (names: readonly string[]): string =>
  names.length <= NAMES_TOLD
    ? names.join(", ")
    : `${names.slice(0, NAMES_TOLD).join(", ")} and ${names.length - NAMES_TOLD} more`;

/** Where a drive stands in the list, also when it is gone: a page goes on behind it either way. */
type Place = Pick<DriveRecord, "createdAt" | "id">;

const cursorOf = ({ createdAt, id }: Place): string => `${createdAt}.${id}`;

function readCursor(cursor: string): Place {
  const [createdAt, id = ""] = cursor.split(".");
  if (isDriveId(id) && /^\d+$/.test(createdAt ?? "")) return { createdAt: Number(createdAt), id };
  throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
}

const order = (one: Place, other: Place): number =>
  one.createdAt - other.createdAt || (one.id < other.id ? -1 : one.id > other.id ? 1 : 0);

/** The one place where a drive's status is made. What could not be looked at is not called broken. */
function judgeDrive({ record, observation, removal }: Known): Pick<Drive, "status" | "cause"> {
  if (record.phase === "making") return { status: "creating", cause: null };
  if (record.phase === "deleting") return { status: "deleting", cause: removal.error };
  if (observation?.seen === "absent")
    return { status: "degraded", cause: { code: "drive_gone", message: "its files are not there" } };
  if (observation?.seen === "present" && observation.problem !== null)
    return { status: "degraded", cause: observation.problem };
  return { status: "ready", cause: null };
}

const degradedMessage = ({ name }: DriveRecord, error: unknown): string =>
  `Drive ${name} could not be opened: ${causeOf(error).message}`;

function newDrive(
  { ids, clock }: World,
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

const said = (
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
