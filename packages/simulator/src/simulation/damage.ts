import type { DriveId, SandboxId } from "@holdfast/contract";
import type { Clients } from "../clients/clients.ts";
import type { History } from "../invariants/history.ts";
import type { FaultParams, Reach } from "../schedule/fault-table.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import { checkpointsOn } from "../world/checkpoints.ts";
import type { SimulatedDatabase } from "../world/database.ts";
import { GIGABYTE, type Host, type SimulatedInstance } from "../world/host.ts";
import type { Mirror } from "../world/mirror.ts";
import { copiesOn } from "../world/saved-checkpoints.ts";
import type { Durability } from "../world/server-store.ts";
import type { Servers } from "../world/servers.ts";

/** Free disk space during a shortage: less than the engine's reserve. */
const LOW_DISK_BYTES = 8 * GIGABYTE;
/** Free disk space at the beginning of a severe shortage: so little that the engine freezes sandboxes that write. */
const RUNNING_OUT_BYTES = 3 * GIGABYTE;
/** Rate at which a writer fills the disk. */
const FILLS_PER_SECOND = 0.1 * GIGABYTE;
const LOW_MEMORY_BYTES = 0.1 * GIGABYTE;
/** Text that can't be parsed. */
const CORRUPT = "{corrupt";

interface Parts {
  time: VirtualTime;
  host: Host;
  database: SimulatedDatabase;
  durability: Durability;
  mirror: Mirror;
  history: History;
  clients: Clients;
  servers: Servers;
}

/**
 * Applies the immediate effects of faults to the server, the host and its processes. At the end of a simulation,
 * repairs what can be repaired.
 */
export class Damage implements Reach {
  readonly #parts: Parts;
  #strays = 0;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  crash(why: string, downMs: number): boolean {
    const { living } = this.#parts.servers;
    living?.process.die(why, downMs);
    return living !== null;
  }

  /** Restarts the server gracefully. As on any shutdown, waiting callers are answered before the server ends. */
  async restart(downMs: number): Promise<boolean> {
    const { servers, clients, time } = this.#parts;
    const { serving } = servers;
    if (serving === null) return false;
    clients.dismiss(serving.process);
    await time.quiet();
    servers.stop(serving, downMs);
    return true;
  }

  async reboot({ powerCut, downMs }: { powerCut: boolean; downMs: number }): Promise<boolean> {
    const { host } = this.#parts;
    this.crash("the host went down", downMs);
    host.reboot();
    if (powerCut) {
      host.tearJournals();
      await this.#parts.durability.cut();
    }
    return true;
  }

  /**
   * Starts a second server. The first server holds the state directory, so the second one ends before it touches
   * anything.
   */
  secondServer(): boolean {
    const { servers } = this.#parts;
    const { living } = servers;
    if (living === null) return false;
    servers.boot();
    return servers.living === living;
  }

  jump(ms: number): boolean {
    this.#parts.time.jump(ms);
    return true;
  }

  fillDisk(ms: number): boolean {
    const { host, database, time } = this.#parts;
    if (host.diskIsFull) return false;
    host.diskIsFull = true;
    database.fill();
    host.runShort({});
    time.after(ms, () => this.#relieve());
    return true;
  }

  #relieve(): void {
    const { host, database } = this.#parts;
    host.relieve();
    database.free();
  }

  /**
   * Reduces the free disk space below the reserve, or so far below it that the engine has to freeze the sandbox that
   * writes.
   */
  lowDisk({ flag, box, ms, n }: FaultParams): boolean {
    const { host, time } = this.#parts;
    const filler = this.#instance(box);
    host.runShort({ disk: flag ? RUNNING_OUT_BYTES : LOW_DISK_BYTES });
    if (filler !== null && n === 0) host.write(filler, FILLS_PER_SECOND);
    time.after(ms, () => this.#relieve());
    return true;
  }

  lowMemory(ms: number): boolean {
    const { host, time } = this.#parts;
    host.runShort({ memory: LOW_MEMORY_BYTES });
    time.after(ms, () => this.#relieve());
    return true;
  }

  #instance(box: number): SimulatedInstance | null {
    const all = [...this.#parts.host.instances];
    return all[box % Math.max(1, all.length)] ?? null;
  }

  killKeeper(box: number): boolean {
    const instance = this.#instance(box);
    if (instance !== null) this.#parts.host.kill(instance, "the keeper died");
    return instance !== null;
  }

  stopKeeper(box: number, ms: number): boolean {
    const { host, time } = this.#parts;
    const instance = this.#instance(box);
    if (instance === null || instance.holds.has("stopped")) return false;
    host.hold(instance, "stopped");
    time.after(ms, () => host.release(instance, "stopped"));
    return true;
  }

  unmountRoot(box: number, { forGood }: { forGood: boolean }): boolean {
    const instance = this.#instance(box);
    if (instance === null) return false;
    this.#parts.host.unmount(instance);
    instance.isRootLost = forGood;
    return true;
  }

  killForMemory(box: number): boolean {
    const victims = [...this.#parts.host.instances]
      .filter(({ keeper }) => !keeper.isStopped)
      .flatMap((instance) => [...instance.keeper.execs.values()].map((exec) => ({ instance, exec })))
      .filter(({ exec }) => exec.state === "running");
    const victim = victims[box % Math.max(1, victims.length)];
    if (victim === undefined) return false;
    victim.instance.oomKills += 1;
    victim.instance.keeper.kill(victim.exec.order.id);
    return true;
  }

  dropLinks(box: number): boolean {
    const links = [...(this.#instance(box)?.links ?? [])];
    for (const link of links) link.drop("the link broke");
    return links.length > 0;
  }

  silenceLinks(box: number): boolean {
    const links = [...(this.#instance(box)?.links ?? [])];
    for (const link of links) link.goHalfOpen();
    return links.length > 0;
  }

  /**
   * Creates one of the objects that belong to a sandbox, without a record of that sandbox: a directory, a running
   * instance, or archived journals.
   */
  stray({ box, flag }: FaultParams): boolean {
    const { host, history } = this.#parts;
    this.#strays += 1;
    const id = `sbx_${String(this.#strays).padStart(16, "z")}` as SandboxId;
    history.strays.add(id);
    if (box === 0) host.kept.set(id, new Map());
    else if (flag) host.spawn({ sandboxId: id, generation: 1 });
    else host.directory(id);
    return true;
  }

  /** Makes a stored lease unreadable. Kills the server first, because a running server could overwrite the lease. */
  corruptLease(n: number, downMs: number): boolean {
    const { mirror, database } = this.#parts;
    const owed = mirror.readable().filter(({ lease }) => lease.state !== "none");
    const record = owed[n % Math.max(1, owed.length)];
    if (record === undefined) return false;
    this.crash("its database is damaged", downMs);
    database.corrupt(record.id, "lease", CORRUPT);
    mirror.sandboxes.set(record.id, { ...record, lease: { state: "quarantined", raw: CORRUPT } });
    return true;
  }

  /** Makes a sandbox's record unreadable, except for its id and name. */
  corruptRecord(n: number, downMs: number): boolean {
    const { mirror, database } = this.#parts;
    const live = mirror.readable();
    const record = live[n % Math.max(1, live.length)];
    if (record === undefined) return false;
    this.crash("its database is damaged", downMs);
    database.corrupt(record.id, "spec", CORRUPT);
    mirror.unreadable.add(record.id);
    return true;
  }

  /** Damages a complete standby checkpoint, removes it, or replaces it with the checkpoint of another sandbox. */
  harmCheckpoint(n: number, how: "damaged" | "foreign" | "lost"): boolean {
    const { host } = this.#parts;
    const whole = checkpointsOn(host).filter(({ stored }) => stored.state === "whole");
    const one = whole[n % Math.max(1, whole.length)];
    if (one === undefined) return false;
    host.report({ type: "harmed", id: one.stored.id });
    if (how === "lost") host.directories.get(one.sandboxId)?.checkpoints.delete(one.stored.id);
    else one.stored.state = how;
    return true;
  }

  /** Damages or removes a saved checkpoint. */
  harmSaved(n: number, how: "damaged" | "lost"): boolean {
    const { host } = this.#parts;
    const whole = copiesOn(host).filter(({ stored }) => stored.state === "whole");
    const one = whole[n % Math.max(1, whole.length)];
    if (one === undefined) return false;
    host.report({ type: "harmed", id: one.stored.id });
    if (how === "lost") host.directories.get(one.sandboxId)?.saved.delete(one.stored.id);
    else one.stored.state = how;
    return true;
  }

  /**
   * Hides the directory of a ready drive, forever or for a while. If the drive is deleted while its directory is
   * hidden, the directory comes back without a record.
   */
  takeDrive({ box, ms, flag }: FaultParams): boolean {
    const { host, mirror, history, time } = this.#parts;
    const there = [...host.drives.values()].filter(
      ({ id, isAway }) => !isAway && mirror.drives.get(id)?.phase === "ready",
    );
    const drive = there[box % Math.max(1, there.length)];
    if (drive === undefined) return false;
    drive.isAway = true;
    if (!flag) return true;
    time.after(ms, () => {
      drive.isAway = false;
      if (!mirror.drives.has(drive.id)) history.drives.strays.add(drive.id);
    });
    return true;
  }

  /** Unmounts a drive in a sandbox, so that the empty directory under the mount becomes visible. */
  takeMount(n: number): boolean {
    const all = [...this.#parts.host.instances].flatMap(({ places }) => [...places.values()]);
    const mounted = all.filter(({ directory }) => directory !== null);
    const place = mounted[n % Math.max(1, mounted.length)];
    if (place !== undefined) place.directory = null;
    return place !== undefined;
  }

  strayDrive(): boolean {
    const { host, history } = this.#parts;
    this.#strays += 1;
    const id = `drv_${String(this.#strays).padStart(16, "z")}` as DriveId;
    history.drives.strays.add(id);
    host.makeDrive(id, { isSized: false, state: "whole" });
    return true;
  }

  corruptDrive(n: number, downMs: number): boolean {
    const { mirror, database } = this.#parts;
    const all = [...mirror.drives.values()].filter(({ id }) => !mirror.unreadableDrives.has(id));
    const record = all[n % Math.max(1, all.length)];
    if (record === undefined) return false;
    this.crash("its database is damaged", downMs);
    database.corruptDrive(record.id, CORRUPT);
    mirror.unreadableDrives.add(record.id);
    return true;
  }

  /**
   * Repairs what can be repaired: frees the disk, lets stopped processes continue, and starts a server. Permanent
   * damage stays.
   */
  mend(): void {
    const { host } = this.#parts;
    this.#relieve();
    for (const instance of host.instances) host.release(instance, "stopped");
    this.#parts.servers.boot();
  }
}
