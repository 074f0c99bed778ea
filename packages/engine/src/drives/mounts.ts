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
import type { Prover } from "../launch/prover.ts";
import { within } from "../lib/deadline.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { translate } from "../model/keeper-errors.ts";
import {
  conflictOf,
  isSameMount,
  mountsOf,
  normaliseSubpath,
  refusedTarget,
  wantedMounts,
} from "../model/mount-machine.ts";
import { hasServed } from "../model/sandbox-facts.ts";
import { type Health, isMountTrouble } from "../model/status.ts";
import type { MountApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { type MountPoint, MountRefused, requireCapability } from "../ports/index.ts";
import type { MountRecord, SandboxRecord } from "../ports/records.ts";
import type { Drives } from "./drives.ts";

interface MountParts {
  events: EngineEvents;
  drives: Drives;
  gate: SandboxGate;
  prover: Prover;
  registry: SandboxRegistry;
}

/**
 * A requested mount. Its drive is pinned: it can't be deleted until `release` is called, after the mount was stored in
 * a record or the request has failed.
 */
interface RequestedMount {
  point: Omit<MountRecord, "state">;
  release(): void;
}

/**
 * Mounts drives in sandboxes. A mount is recorded before it is made, and its record is deleted only after the mount was
 * observed to be gone. After a crash the next server therefore knows which mounts a sandbox must have. A mount is
 * proven when the same directory was seen from inside and outside the sandbox. Mounts of one sandbox are changed one at
 * a time, and the sandbox is not suspended during a change.
 */
export class Mounts implements MountApi {
  readonly #context: EngineContext;
  readonly #parts: MountParts;
  readonly #changes: KeyedSerialQueue<LiveSandbox>;
  readonly #repairing = new WeakSet<LiveSandbox>();

  constructor(context: EngineContext, parts: MountParts) {
    this.#context = context;
    this.#changes = new KeyedSerialQueue({ limit: context.numbers.changesWaiting });
    this.#parts = parts;
    parts.events.instanceReady.subscribe((live, signal) => this.establish(live, signal));
    parts.events.driveRevoked.subscribe((live, drive, signal) => this.detach(live, drive, signal));
  }

  async list(ref: string): Promise<MountList> {
    const live = await this.#parts.registry.find(ref);
    return { items: viewMounts(live.record, live.evidence) };
  }

  /**
   * Checks what can be checked of a mount request without access to the sandbox: the path, the subpath, and that the
   * drive exists and is not being deleted. Also pins the drive: it can't be deleted until `release` is called.
   */
  ask(input: MountDrive): RequestedMount {
    const path = checkedTarget(input.path);
    const subpath = normaliseSubpath(input.subpath);
    if (subpath === null)
      throw new HoldfastError("invalid_path", {
        message: "subpath must be a path in the drive without '..'.",
      });
    const { record, release } = this.#parts.drives.pin(input.drive);
    const { id: driveId, name: drive } = record;
    return { point: { driveId, drive, path, subpath, readOnly: input.readOnly ?? false }, release };
  }

  /**
   * Checks all requested mounts of a new sandbox and pins their drives. Rejects mounts that conflict with each other.
   */
  askAll(inputs: readonly MountDrive[]): { mounts: MountRecord[]; release(): void } {
    const { mountsPerSandbox } = this.#context.numbers;
    const asked: RequestedMount[] = [];
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
      const live = await this.#parts.registry.find(ref);
      await this.#parts.drives.usable(point.driveId, signal);
      const existed = await this.#inTurn(live, signal, () => this.#mountNow(live, point));
      return { mount: this.#view(live, point.path), existed };
    } finally {
      release();
    }
  }

  /** Adds the mounts of a create request to a sandbox that already exists. */
  async ensure(live: LiveSandbox, inputs: readonly MountDrive[], signal: AbortSignal): Promise<void> {
    for (const input of inputs) await this.mount(live.id, input, signal);
  }

  #view(live: LiveSandbox, path: string): Mount {
    const mount = viewMounts(live.record, live.evidence).find((each) => each.path === path);
    if (mount !== undefined) return mount;
    throw new HoldfastError("mount_not_found", {
      sandboxId: live.id,
      message: `${path} was unmounted meanwhile.`,
    });
  }

  /**
   * Makes the mount and returns whether it existed before. An existing mount is made again, which repairs it if it is
   * broken.
   */
  async #mountNow(live: LiveSandbox, point: RequestedMount["point"]): Promise<boolean> {
    const { mounts, generation } = live.record;
    const existed = mounts.some((mount) => isSameMount(mount, point));
    const taken = conflictOf(mounts, point);
    if (taken !== null) throw conflict(point, taken);
    // The mount is announced as being made, so that a proof does not report it as missing meanwhile.
    if (!existed) live.beginMount(point.path);
    try {
      if (!existed) await this.#want(live, point);
      await this.#establish(live, point, { make: true }).catch(async (error: unknown) => {
        if (existed) await this.#doubt(live, point.path);
        else await this.#retract(live, point.path, generation, error);
        throw toMountError(live, point, error);
      });
    } finally {
      live.endMount(point.path);
      live.changed();
    }
    if (!existed) await this.#recordMounted(live, point.path);
    await this.#reprove(live);
    return existed;
  }

  /** Records the event. A failure to record it is only logged, because the mount itself is made and stored. */
  async #recordMounted(live: LiveSandbox, path: string): Promise<void> {
    await live.decide({ type: "mounted", path }).catch((error: unknown) => {
      this.#context.log.error(
        { sandbox: live.id, path, cause: causeOf(error) },
        "failed to store the mounted event",
      );
    });
  }

  /** Runs a new proof of a degraded sandbox, because the change of a mount may have repaired it. */
  async #reprove(live: LiveSandbox): Promise<void> {
    if (live.judge().status === "degraded") await this.#parts.prover.prove(live);
  }

  async #want(live: LiveSandbox, point: RequestedMount["point"]): Promise<void> {
    const { mountsPerSandbox } = this.#context.numbers;
    if (live.record.mounts.length >= mountsPerSandbox) throw tooMany(mountsPerSandbox);
    // A proof of an earlier mount at this path does not apply to the new mount.
    forgetProof(live, point.path);
    const wanted = await live.decide({ type: "mount", mount: point }).catch((error: unknown) => {
      const message = "The mount could not be recorded, so it was not created.";
      throw new HoldfastError("internal", { sandboxId: live.id, message, cause: error });
    });
    if (wanted !== null) return;
    throw live.refusal() ?? new HoldfastError("mount_conflict", { sandboxId: live.id });
  }

  /** Mounts the drive and proves that the same directory is seen from inside and outside. */
  async #establish(live: LiveSandbox, point: MountPoint, how: { make: boolean }): Promise<void> {
    await this.#driverMount(live, point, how, this.#lifetime(live));
    await this.#parts.prover.proveMount(live, point);
  }

  /**
   * Returns a signal that aborts only when the sandbox is deleted or the server stops. Work that has begun continues
   * even if its caller disconnects.
   */
  #lifetime = (live: LiveSandbox): AbortSignal =>
    AbortSignal.any([live.deletedSignal, this.#context.stopping]);

  async #driverMount(
    live: LiveSandbox,
    point: MountPoint,
    how: { make: boolean },
    signal: AbortSignal,
  ): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const { driveId, path, subpath, readOnly } = point;
    const order = { sandboxId: live.id, driveId, path, subpath, readOnly, ...how };
    const limit = { ms: numbers.driveCallMs, what: "mounting", signal };
    try {
      await within(clock, limit, (inner) => requireCapability(driver, "drives").mount(order, inner));
    } catch (error) {
      // If the drive is missing, the driver has sealed the path: writes to it fail.
      if (isDriveGone(error)) live.noteClosedMountPath(path);
      throw error;
    }
    live.noteClosedMountPath(path);
  }

  /** Runs a proof of an existing mount after a failed attempt left the mount in an unknown state. */
  async #doubt(live: LiveSandbox, path: string): Promise<void> {
    live.endMount(path);
    forgetProof(live, path);
    await this.#parts.prover.prove(live);
  }

  /**
   * Removes what is left of a failed mount. If the removal fails, the mount is recorded for removal by `maintain`. It
   * is also recorded for removal if a new instance has replaced the one in which the mount was attempted: the new
   * instance makes all recorded mounts, so this mount may exist there.
   */
  async #retract(live: LiveSandbox, path: string, generation: number, error: unknown): Promise<void> {
    const isSame = () => live.record.generation === generation && live.record.phase.name === "running";
    try {
      if (isSame()) await this.#driverUnmount(live, path, { keepClosed: false }, this.#lifetime(live));
      const failed = { type: "mount_failed", path, cause: causeOf(error) } as const;
      if ((await live.decide(failed, [], isSame)) !== null) return;
    } catch (failure) {
      this.#context.log.warn(
        { sandbox: live.id, path, cause: causeOf(failure) },
        "failed to remove a failed mount, retrying later",
      );
    }
    await live.decideSurely({ type: "unmount", path });
  }

  #driverUnmount(live: LiveSandbox, path: string, options: { keepClosed: boolean }, signal: AbortSignal) {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.driveCallMs, what: "unmounting", signal };
    return within(clock, limit, (inner) =>
      requireCapability(driver, "drives").unmount(live.id, path, options, inner),
    );
  }

  async unmount(ref: string, raw: string, signal: AbortSignal): Promise<void> {
    const live = await this.#parts.registry.find(ref);
    const path = checkedTarget(raw);
    this.#required(live, path);
    await this.#inTurn(live, signal, async () => {
      if (this.#required(live, path).state === "wanted") await this.#unwant(live, path);
      await this.#removeMount(live, path, this.#lifetime(live)).catch((error: unknown) => {
        throw toMountError(live, { path }, error);
      });
      await this.#reprove(live);
    });
  }

  async #unwant(live: LiveSandbox, path: string): Promise<void> {
    await live.decide({ type: "unmount", path }).catch((error: unknown) => {
      const message = "The unmount could not be recorded, so it did not begin.";
      throw new HoldfastError("internal", { sandboxId: live.id, message, cause: error });
    });
  }

  #required(live: LiveSandbox, path: string): MountRecord {
    const mount = live.record.mounts.find((each) => each.path === path);
    if (mount !== undefined) return mount;
    const message = `Nothing is mounted at ${path}.`;
    throw new HoldfastError("mount_not_found", { sandboxId: live.id, message });
  }

  async #removeMount(live: LiveSandbox, path: string, signal: AbortSignal): Promise<void> {
    await this.#driverUnmount(live, path, { keepClosed: false }, signal);
    // If this event can't be stored, the record still says `removing`, and `maintain` repeats the removal.
    await live.decide({ type: "unmounted", path });
  }

  /**
   * Runs one change of the sandbox's mounts at a time, with the sandbox awake. A broken mount does not prevent changes
   * of other mounts, or its own removal.
   */
  async #inTurn<Result>(
    live: LiveSandbox,
    signal: AbortSignal,
    work: () => Promise<Result>,
  ): Promise<Result> {
    for (let tries = 1; tries <= this.#context.numbers.callTriesMax; tries += 1) {
      await this.#passed(live, signal);
      const leave = live.enter();
      const change = async () => (live.record.phase.name === "running" ? { result: await work() } : null);
      const done = await this.#changes.run(live, change, signal).finally(leave);
      // Null means that the change was not made, because the sandbox was being suspended. In that case the loop wakes
      // the sandbox and tries again.
      if (done !== null) return done.result;
    }
    throw asleepAgain(live);
  }

  async #passed(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    try {
      await this.#parts.gate.pass(live, signal);
    } catch (error) {
      const isOnlyMountTrouble =
        isHoldfastError(error) && error.code === "sandbox_degraded" && isMountTrouble(live.judge());
      if (!isOnlyMountTrouble) throw error;
    }
  }

  /**
   * Makes the recorded mounts of a new or woken instance and removes mounts marked for removal, before the instance is
   * proven or resumed. If a drive is missing, a sandbox that has served before does not end: it becomes degraded, with
   * the missing drive as the cause.
   */
  async establish(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, log, numbers } = this.#context;
    if (live.record.mounts.length === 0) return;
    const mayLack = hasServed(live.record) || live.record.phase.name !== "launching";
    if (!mayLack) return this.#establishAll(live, { mayLack }, signal);
    // A mount path is open while processes may write to the sandbox's own disk there. Because a mount attempt may fail
    // or may never be made, each path is treated as open until the driver reports that the drive is mounted or that the
    // path is sealed against writes.
    for (const { path } of wantedMounts(live.record)) live.noteOpenMountPath(path);
    // The limit leaves enough time for the rest of the wake if a drive does not respond.
    const limit = { ms: numbers.wakeDeadlineMs / WAKE_SHARE, what: "mounting", signal };
    await within(clock, limit, (inner) => this.#establishAll(live, { mayLack }, inner)).catch(
      (error: unknown) => {
        if (signal.aborted) throw error;
        log.warn({ sandbox: live.id, cause: causeOf(error) }, "failed to restore the mounts of a sandbox");
      },
    );
  }

  async #establishAll(
    live: LiveSandbox,
    { mayLack }: { mayLack: boolean },
    signal: AbortSignal,
  ): Promise<void> {
    const { log } = this.#context;
    for (const mount of live.record.mounts) {
      try {
        if (mount.state === "wanted") await this.#driverMount(live, mount, { make: !mayLack }, signal);
        else await this.#removeMount(live, mount.path, signal);
        // The event of the mount is recorded at the first launch only.
        if (!mayLack) await live.decide({ type: "mounted", path: mount.path });
      } catch (error) {
        if (signal.aborted || !mayLack) throw toMountError(live, mount, error);
        log.warn({ sandbox: live.id, path: mount.path, cause: causeOf(error) }, "failed to restore a mount");
        await this.#close(live, mount, error, signal);
      }
    }
  }

  /**
   * If a mount failed because its drive no longer exists, unmounts that drive, because a restored instance may still
   * have it mounted. The path stays closed: writes to it fail.
   */
  async #close(live: LiveSandbox, { path }: MountRecord, error: unknown, signal: AbortSignal): Promise<void> {
    if (!isDriveGone(error)) return;
    await this.#driverUnmount(live, path, { keepClosed: true }, signal).catch((failure: unknown) => {
      this.#context.log.warn(
        { sandbox: live.id, path, cause: causeOf(failure) },
        "failed to close the path of a deleted drive",
      );
    });
  }

  /** Removes mounts marked for removal, and repairs missing mounts whose drive is available. */
  maintain(allLive: Iterable<LiveSandbox>): void {
    const { log } = this.#context;
    for (const live of allLive) {
      if (live.record.phase.name !== "running" || this.#repairing.has(live)) continue;
      const pending = live.record.mounts.filter((mount) => this.#needsWork(live, mount));
      if (pending.length === 0) continue;
      this.#repairing.add(live);
      const repairs = pending.map(({ path }) =>
        this.#repair(live, path).catch((error: unknown) => {
          log.warn({ sandbox: live.id, path, cause: causeOf(error) }, "failed to repair a mount");
        }),
      );
      void Promise.all(repairs).finally(() => this.#repairing.delete(live));
    }
  }

  #needsWork(live: LiveSandbox, { state, path, driveId }: MountRecord): boolean {
    if (state === "removing") return true;
    const { observation, provenMounts } = live.evidence;
    if (observation?.seen !== "present") return false;
    if (live.isOpenMountPath(path)) return true;
    if (!this.#parts.drives.isWell(driveId)) return false;
    if (observation.mounts.find((seen) => seen.path === path)?.problem !== null) return true;
    // From outside the mount looks right. It is repaired if it was not proven from inside and the sandbox is degraded
    // because of a mount.
    return isMountTrouble(live.judge()) && !provenMounts.includes(path);
  }

  #repair(live: LiveSandbox, path: string): Promise<void> {
    return this.#inTurn(live, this.#context.stopping, async () => {
      const mount = live.record.mounts.find((each) => each.path === path);
      if (mount === undefined || !this.#needsWork(live, mount)) return;
      if (mount.state === "wanted")
        await this.#establish(live, mount, { make: false }).catch(async (error: unknown) => {
          await this.#doubt(live, path);
          throw error;
        });
      else await this.#removeMount(live, path, this.#lifetime(live));
      await this.#reprove(live);
    });
  }

  /**
   * Unmounts a drive that is being deleted. Writes to its mount paths then fail: the paths stay closed, because the
   * sandbox's record still contains the mounts.
   */
  async detach(live: LiveSandbox, drive: DriveId, signal: AbortSignal): Promise<void> {
    // Without an instance nothing is mounted. When the sandbox wakes, its mount paths are closed, because the drive is
    // gone.
    if (live.record.instance === null) return;
    for (const { path } of mountsOf(live.record, drive))
      await this.#driverUnmount(live, path, { keepClosed: true }, signal);
    // The proof updates the sandbox's status at once instead of at the next observation.
    if (live.record.phase.name === "running") await this.#parts.prover.prove(live);
  }
}

const asleepAgain = ({ id: sandboxId }: LiveSandbox): HoldfastError =>
  new HoldfastError("sandbox_busy", {
    sandboxId,
    message: "The sandbox was suspended again each time before its mounts could be changed.",
  });

const isDriveGone = (error: unknown): boolean => error instanceof MountRefused && error.code === "drive_gone";

function forgetProof(live: LiveSandbox, path: string): void {
  live.learn({ provenMounts: live.health.provenMounts.filter((each) => each !== path) });
}

/** Divisor of the wake's deadline: mounting may take one third of it. */
const WAKE_SHARE = 3;

function checkedTarget(raw: string): string {
  const path = normalisePath(raw);
  if (path === null)
    throw new HoldfastError("invalid_path", {
      message: `${JSON.stringify(raw.slice(0, 200))} is not an absolute path.`,
    });
  const refused = refusedTarget(path);
  if (refused !== null) throw new HoldfastError("mount_refused", { message: refused });
  return path;
}

const tooMany = (limit: number): HoldfastError =>
  new HoldfastError("too_many_mounts", { message: `A sandbox can have at most ${limit} mounts.` });

function conflict(asked: MountPoint, taken: MountRecord): HoldfastError {
  const part = taken.subpath === "/" ? "" : ` (${taken.subpath})`;
  const how = taken.state === "removing" ? "is still being unmounted from" : "is mounted at";
  const mixed = taken.path === asked.path ? "" : `, and mounts can't be nested`;
  const message = `Drive ${taken.drive}${part} ${how} ${taken.path}${taken.readOnly ? ", read-only" : ""}${mixed}.`;
  return new HoldfastError("mount_conflict", { message });
}

/** Converts a failure to mount or unmount to an error of the registry. */
function toMountError(
  live: LiveSandbox,
  { path, drive }: { path: string; drive?: string },
  error: unknown,
): unknown {
  const sandboxId = live.id;
  if (isHoldfastError(error)) return error;
  const refusal = live.refusal();
  if (refusal !== null) return refusal;
  if (error instanceof MountRefused) {
    const code = error.code === "drive_gone" ? "drive_degraded" : error.code;
    return new HoldfastError(code, { sandboxId, message: `${path}: ${error.message}`, cause: error });
  }
  const translated = translate(error, { sandboxId });
  if (isHoldfastError(translated) && translated.code !== "system_error") return translated;
  const what = drive === undefined ? `The mount at ${path}` : `Drive ${drive}`;
  const message = `${what} could not be changed: ${causeOf(error).message}`;
  return new HoldfastError("mount_failed", { sandboxId, message, cause: error });
}

/**
 * The mounts of a sandbox as the API returns them. A mount is proven if the last proof of the current instance included
 * it.
 */
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
