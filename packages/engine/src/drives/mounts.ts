import {
  causeOf,
  type DriveId,
  HoldfastError,
  isHoldfastError,
  type Mount,
  type MountDrive,
  type MountList,
  normalisePath,
} from "@holdfast/contract";
import type { MountApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import type { Drives } from "./drives.ts";
import { type Gate, translate } from "./gate.ts";
import { hasServed } from "./machine.ts";
import { conflictOf, isSameMount, mountsOf, normaliseSubpath, refusedTarget } from "./mount-step.ts";
import { type MountPoint, MountRefused } from "./ports.ts";
import type { Prover } from "./prover.ts";
import type { MountRecord, SandboxRecord } from "./records.ts";
import { type Health, isMountTrouble } from "./status.ts";
import type { World } from "./world.ts";

export interface MountParts {
  drives: Drives;
  gate: Gate;
  prover: Prover;
  find(ref: string): Promise<Cell>;
}

/** A mount as it was asked for, and the drive kept in place until it stands in a record. */
export interface AskedMount {
  point: Omit<MountRecord, "state">;
  release(): void;
}

/**
 * Drives in sandboxes. A mount is stored before it is made and forgotten only when it is seen to be gone, so that whatever
 * ends a server in between, the next one knows what a sandbox is to have, and has it. A mount counts when the same directory
 * was seen from inside and outside. Mounts of one sandbox are changed one at a time; nothing of it sleeps meanwhile.
 */
export class Mounts implements MountApi {
  readonly #world: World;
  readonly #parts: MountParts;
  readonly #turns = new WeakMap<Cell, Promise<unknown>>();
  readonly #mending = new WeakSet<Cell>();

  constructor(world: World, parts: MountParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async list(ref: string): Promise<MountList> {
    const cell = await this.#parts.find(ref);
    return { items: viewMounts(cell.record, cell.evidence) };
  }

  /** What a caller asks for, checked as far as that is possible without the sandbox. */
  ask(input: MountDrive): AskedMount {
    const path = checkedTarget(input.path);
    const subpath = normaliseSubpath(input.subpath);
    if (subpath === null)
      throw new HoldfastError("invalid_path", {
        message: "subpath must be a path in the drive without '..'.",
      });
    const { record, release } = this.#parts.drives.hold(input.drive);
    const { id: driveId, name: drive } = record;
    return { point: { driveId, drive, path, subpath, readOnly: input.readOnly ?? false }, release };
  }

  /** All that a new sandbox is to have. Refuses what can't be together. */
  askAll(inputs: readonly MountDrive[]): { mounts: MountRecord[]; release(): void } {
    const { mountsPerSandbox } = this.#world.numbers;
    const asked: AskedMount[] = [];
    const release = () => {
      for (const each of asked) each.release();
    };
    try {
      if (inputs.length > mountsPerSandbox) throw tooMany(mountsPerSandbox);
      const mounts: MountRecord[] = [];
      for (const input of inputs) {
        const one = this.ask(input);
        asked.push(one);
        const taken = mounts.find(({ path }) => path === one.point.path) ?? conflictOf(mounts, one.point);
        if (taken) throw conflict(one.point, taken);
        mounts.push({ ...one.point, state: "wanted" });
      }
      return { mounts, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  async mount(
    ref: string,
    input: MountDrive,
    signal: AbortSignal,
  ): Promise<{ mount: Mount; existed: boolean }> {
    const { point, release } = this.ask(input);
    try {
      const cell = await this.#parts.find(ref);
      await this.#parts.drives.usable(point.driveId, signal);
      const existed = await this.#inTurn(cell, signal, () => this.#mountNow(cell, point));
      return { mount: this.#view(cell, point.path), existed };
    } finally {
      release();
    }
  }

  /** What a sandbox that is there already is to have as well: it is not returned without. */
  async ensure(cell: Cell, inputs: readonly MountDrive[], signal: AbortSignal): Promise<void> {
    for (const input of inputs) await this.mount(cell.id, input, signal);
  }

  #view(cell: Cell, path: string): Mount {
    const mount = viewMounts(cell.record, cell.evidence).find((each) => each.path === path);
    if (mount !== undefined) return mount;
    throw new HoldfastError("mount_not_found", {
      sandboxId: cell.id,
      message: `${path} was unmounted again.`,
    });
  }

  /** Whether it was there already. It is mounted again all the same, which heals one that is not what it was. */
  async #mountNow(cell: Cell, point: AskedMount["point"]): Promise<boolean> {
    const { mounts, generation } = cell.record;
    const existed = mounts.some((mount) => isSameMount(mount, point));
    const taken = conflictOf(mounts, point);
    if (taken !== null) throw conflict(point, taken);
    // Until it is there, or off the record again, nobody misses it.
    if (!existed) cell.mounting.add(point.path);
    try {
      if (!existed) await this.#want(cell, point);
      await this.#establish(cell, point, { make: true }).catch(async (error: unknown) => {
        if (existed) await this.#doubt(cell, point.path);
        else await this.#retract(cell, point.path, generation, error);
        throw told(cell, point, error);
      });
    } finally {
      cell.mounting.delete(point.path);
      cell.changed();
    }
    if (!existed) await this.#tellMounted(cell, point.path);
    await this.#reprove(cell);
    return existed;
  }

  /** The mount is there, and on record: that it could not be told of changes nothing. */
  async #tellMounted(cell: Cell, path: string): Promise<void> {
    await cell.decide({ type: "mounted", path }).catch((error: unknown) => {
      this.#world.log.error(
        { sandbox: cell.id, path, cause: causeOf(error) },
        "a mount could not be told of",
      );
    });
  }

  /** What was wrong with a mount is no longer wrong with its sandbox, or is now. */
  async #reprove(cell: Cell): Promise<void> {
    if (cell.judge().status === "degraded") await this.#parts.prover.prove(cell);
  }

  async #want(cell: Cell, point: AskedMount["point"]): Promise<void> {
    const { mountsPerSandbox } = this.#world.numbers;
    if (cell.record.mounts.length >= mountsPerSandbox) throw tooMany(mountsPerSandbox);
    // What was there before was another.
    forgetProof(cell, point.path);
    const wanted = await cell.decide({ type: "mount", mount: point }).catch((error: unknown) => {
      const message = "The mount could not be recorded, so it was not made.";
      throw new HoldfastError("internal", { sandboxId: cell.id, message, cause: error });
    });
    if (wanted !== null) return;
    throw cell.refusal() ?? new HoldfastError("mount_conflict", { sandboxId: cell.id });
  }

  /** Mounted, and the same seen from both sides. */
  async #establish(cell: Cell, point: MountPoint, how: { make: boolean }): Promise<void> {
    await this.#driverMount(cell, point, how, this.#lifetime(cell));
    await this.#parts.prover.proveMount(cell, point);
  }

  /** What is begun is finished whoever leaves; only the end of the sandbox, or of the server, ends it. */
  #lifetime = (cell: Cell): AbortSignal => AbortSignal.any([cell.fence.signal, this.#world.stopping]);

  #driverMount(cell: Cell, point: MountPoint, how: { make: boolean }, signal: AbortSignal) {
    const { clock, driver, numbers } = this.#world;
    const { driveId, path, subpath, readOnly } = point;
    const order = { sandboxId: cell.id, driveId, path, subpath, readOnly, ...how };
    const limit = { ms: numbers.driveCallMs, what: "mounting", signal };
    return within(clock, limit, (inner) => driver.mount(order, inner));
  }

  /** One that was there, and of which nobody knows what it is now. */
  async #doubt(cell: Cell, path: string): Promise<void> {
    cell.mounting.delete(path);
    forgetProof(cell, path);
    await this.#parts.prover.prove(cell);
  }

  /**
   * Nothing is left of a mount that failed; where that can't be had now, it is owed, and seen to later. So it is where
   * another instance has taken the place of the one that it was made in, which may be given the mount at this very moment.
   */
  async #retract(cell: Cell, path: string, generation: number, error: unknown): Promise<void> {
    const isSame = () => cell.record.generation === generation && cell.record.phase.name === "running";
    try {
      if (isSame()) await this.#driverUnmount(cell, path, { keepClosed: false }, this.#lifetime(cell));
      const failed = { type: "mount_failed", path, cause: causeOf(error) } as const;
      if ((await cell.decide(failed, [], isSame)) !== null) return;
    } catch (failure) {
      this.#world.log.warn(
        { sandbox: cell.id, path, cause: causeOf(failure) },
        "a mount that failed is taken off later",
      );
    }
    await cell.decideSurely({ type: "unmount", path });
  }

  #driverUnmount(cell: Cell, path: string, options: { keepClosed: boolean }, signal: AbortSignal) {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.driveCallMs, what: "unmounting", signal };
    return within(clock, limit, (inner) => driver.unmount(cell.id, path, options, inner));
  }

  async unmount(ref: string, raw: string, signal: AbortSignal): Promise<void> {
    const cell = await this.#parts.find(ref);
    const path = checkedTarget(raw);
    this.#required(cell, path);
    await this.#inTurn(cell, signal, async () => {
      if (this.#required(cell, path).state === "wanted") await this.#unwant(cell, path);
      await this.#takeOff(cell, path, this.#lifetime(cell)).catch((error: unknown) => {
        throw told(cell, { path }, error);
      });
      await this.#reprove(cell);
    });
  }

  async #unwant(cell: Cell, path: string): Promise<void> {
    await cell.decide({ type: "unmount", path }).catch((error: unknown) => {
      const message = "The unmount could not be recorded, so it was not begun.";
      throw new HoldfastError("internal", { sandboxId: cell.id, message, cause: error });
    });
  }

  #required(cell: Cell, path: string): MountRecord {
    const mount = cell.record.mounts.find((each) => each.path === path);
    if (mount !== undefined) return mount;
    const message = `Nothing is mounted at ${path}.`;
    throw new HoldfastError("mount_not_found", { sandboxId: cell.id, message });
  }

  async #takeOff(cell: Cell, path: string, signal: AbortSignal): Promise<void> {
    await this.#driverUnmount(cell, path, { keepClosed: false }, signal);
    // Where that can't be stored it stays owed, and is done again.
    await cell.decide({ type: "unmounted", path });
  }

  /**
   * One change at a time, on a sandbox that is awake. That one of its mounts is broken keeps no other from being made, nor
   * from being given up.
   */
  async #inTurn<Result>(cell: Cell, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    for (;;) {
      await this.#passed(cell, signal);
      const leave = cell.enter();
      const before = this.#turns.get(cell) ?? Promise.resolve();
      const turn = raced(before, signal).then(async () =>
        cell.record.phase.name === "running" ? { result: await work() } : null,
      );
      this.#turns.set(
        cell,
        Promise.allSettled([before, turn]).then(() => undefined),
      );
      const done = await turn.finally(leave);
      // It was on its way to sleep: that is turned back, or slept through.
      if (done !== null) return done.result;
    }
  }

  async #passed(cell: Cell, signal: AbortSignal): Promise<void> {
    try {
      await this.#parts.gate.pass(cell, signal);
    } catch (error) {
      const isOnlyThat =
        isHoldfastError(error) && error.code === "sandbox_degraded" && isMountTrouble(cell.judge());
      if (!isOnlyThat) throw error;
    }
  }

  /**
   * What a new instance is to have, and what it is not to have any more, before it is proven or runs on. A sandbox that has
   * served before is not ended for a drive that is not there: it is degraded, and says why.
   */
  async establish(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, log, numbers } = this.#world;
    if (cell.record.mounts.length === 0) return;
    const mayLack = hasServed(cell.record) || cell.record.phase.name !== "launching";
    if (!mayLack) return this.#establishAll(cell, { mayLack }, signal);
    // Nor for one that does not answer: the rest of a wake needs its time.
    const limit = { ms: numbers.wakeDeadlineMs / WAKE_SHARE, what: "mounting", signal };
    await within(clock, limit, (inner) => this.#establishAll(cell, { mayLack }, inner)).catch(
      (error: unknown) => {
        if (signal.aborted) throw error;
        log.warn({ sandbox: cell.id, cause: causeOf(error) }, "mounts are not what they were");
      },
    );
  }

  async #establishAll(cell: Cell, { mayLack }: { mayLack: boolean }, signal: AbortSignal): Promise<void> {
    const { log } = this.#world;
    for (const mount of cell.record.mounts) {
      try {
        if (mount.state === "wanted") await this.#driverMount(cell, mount, { make: !mayLack }, signal);
        else await this.#takeOff(cell, mount.path, signal);
        // The first time it has them; from then on they are what it has.
        if (!mayLack) await cell.decide({ type: "mounted", path: mount.path });
      } catch (error) {
        if (signal.aborted || !mayLack) throw told(cell, mount, error);
        log.warn({ sandbox: cell.id, path: mount.path, cause: causeOf(error) }, "a mount is not what it was");
        await this.#close(cell, mount, error, signal);
      }
    }
  }

  /** What came back with memory may be a drive that was deleted meanwhile: it is held by nobody who has no right to it. */
  async #close(cell: Cell, { path }: MountRecord, error: unknown, signal: AbortSignal): Promise<void> {
    if (!(error instanceof MountRefused) || error.code !== "drive_gone") return;
    await this.#driverUnmount(cell, path, { keepClosed: true }, signal).catch((failure: unknown) => {
      this.#world.log.warn({ sandbox: cell.id, path, cause: causeOf(failure) }, "a path could not be closed");
    });
  }

  /** What was given up and could not be taken off yet, and what is to be there and isn't, though its drive is. */
  tend(cells: Iterable<Cell>): void {
    const { log } = this.#world;
    for (const cell of cells) {
      if (cell.record.phase.name !== "running" || this.#mending.has(cell)) continue;
      const owed = cell.record.mounts.filter((mount) => this.#isOwed(cell, mount));
      if (owed.length === 0) continue;
      this.#mending.add(cell);
      const mended = owed.map(({ path }) =>
        this.#mended(cell, path).catch((error: unknown) => {
          log.warn({ sandbox: cell.id, path, cause: causeOf(error) }, "a mount could not be mended");
        }),
      );
      void Promise.all(mended).finally(() => this.#mending.delete(cell));
    }
  }

  #isOwed(cell: Cell, { state, path, driveId }: MountRecord): boolean {
    if (state === "removing") return true;
    const { observation, provenMounts } = cell.evidence;
    if (observation?.seen !== "present" || !this.#parts.drives.isWell(driveId)) return false;
    if (observation.mounts.find((seen) => seen.path === path)?.problem !== null) return true;
    // Only from inside it is not what it should be.
    return isMountTrouble(cell.judge()) && !provenMounts.includes(path);
  }

  #mended(cell: Cell, path: string): Promise<void> {
    return this.#inTurn(cell, this.#world.stopping, async () => {
      const mount = cell.record.mounts.find((each) => each.path === path);
      if (mount === undefined || !this.#isOwed(cell, mount)) return;
      if (mount.state === "wanted") await this.#establish(cell, mount, { make: false });
      else await this.#takeOff(cell, path, this.#lifetime(cell));
      await this.#reprove(cell);
    });
  }

  /** A drive is taken away; the paths stay closed, because the sandbox still expects it there. */
  async takeFrom(cell: Cell, drive: DriveId, signal: AbortSignal): Promise<void> {
    // What sleeps finds an empty directory in its place when it wakes.
    if (cell.record.instance === null) return;
    for (const { path } of mountsOf(cell.record, drive))
      await this.#driverUnmount(cell, path, { keepClosed: true }, signal);
    // It is said at once, and not at the next look.
    if (cell.record.phase.name === "running") await this.#parts.prover.prove(cell);
  }
}

function forgetProof(cell: Cell, path: string): void {
  cell.learn({ provenMounts: cell.health.provenMounts.filter((each) => each !== path) });
}

/** The part of the time for a wake that its mounts may take. */
const WAKE_SHARE = 3;

function checkedTarget(raw: string): string {
  const path = normalisePath(raw);
  if (path === null)
    throw new HoldfastError("invalid_path", {
      message: `${JSON.stringify(raw.slice(0, 200))} is no absolute path.`,
    });
  const refused = refusedTarget(path);
  if (refused !== null) throw new HoldfastError("mount_refused", { message: refused });
  return path;
}

const tooMany = (limit: number): HoldfastError =>
  new HoldfastError("too_many_mounts", { message: `A sandbox can have ${limit} drives at a time.` });

function conflict(asked: MountPoint, taken: MountRecord): HoldfastError {
  const part = taken.subpath === "/" ? "" : ` (${taken.subpath})`;
  const how = taken.state === "removing" ? "is still being taken off" : "is mounted at";
  const mixed = taken.path === asked.path ? "" : `, and mounts don't lie within each other`;
  const message = `Drive ${taken.drive}${part} ${how} ${taken.path}${taken.readOnly ? ", read-only" : ""}${mixed}.`;
  return new HoldfastError("mount_conflict", { message });
}

/** Why a mount could not be made or taken off, in the registry's words. */
function told(cell: Cell, { path, drive }: { path: string; drive?: string }, error: unknown): unknown {
  const sandboxId = cell.id;
  if (isHoldfastError(error)) return error;
  const refusal = cell.refusal();
  if (refusal !== null) return refusal;
  if (error instanceof MountRefused) {
    const code = error.code === "drive_gone" ? "drive_degraded" : error.code;
    return new HoldfastError(code, { sandboxId, message: `${path}: ${error.message}`, cause: error });
  }
  const translated = translate(error, { sandboxId });
  if (isHoldfastError(translated)) return translated;
  const what = drive === undefined ? `What is mounted at ${path}` : `Drive ${drive}`;
  const message = `${what} could not be changed: ${causeOf(error).message}`;
  return new HoldfastError("mount_failed", { sandboxId, message, cause: error });
}

/** The mounts of a sandbox as callers see them: a mount counts as proven by the last proof of this very instance. */
export function viewMounts(record: SandboxRecord, health: Health): Mount[] {
  const proven = new Set(health.provenMounts);
  const seen = health.observation?.seen === "present" ? health.observation.mounts : [];
  return record.mounts.map(({ drive, driveId, path, subpath, readOnly, state }) => {
    const cause =
      record.phase.name === "running" ? (seen.find((each) => each.path === path)?.problem ?? null) : null;
    const isProven = state === "wanted" && proven.has(path);
    return {
      drive,
      driveId,
      path,
      subpath,
      readOnly,
      state: cause !== null ? "broken" : isProven ? "proven" : "unproven",
      cause,
    };
  });
}
