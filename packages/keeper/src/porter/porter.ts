import { type ChildProcess, spawn } from "node:child_process";
import type { Socket } from "node:net";
import { NUMBERS } from "@holdfast/contract";
import type { Identity } from "@holdfast/engine";
import { keeperBinaries } from "./binaries.ts";
import { Channel } from "./channel.ts";
import { Files, type JailedFiles } from "./files.ts";
import { greet } from "./link.ts";
import {
  type DriveUsage,
  type MountedInto,
  type MountInto,
  type MountPointBefore,
  type MountRefusal,
  readMounted,
  readRefused,
  readStaged,
  readUsage,
  type StageOrder,
} from "./porter-drive.ts";
import { type ProcessName, type ProcessWords, readRemounted, readWords } from "./porter-instance.ts";
import { type HelperEnd, type HelperOrder, PorterError, Spawner } from "./spawner.ts";
import { WireError } from "./wire.ts";

const GONE = 3;
const TOO_MUCH = 4;
const REFUSED = 5;
/** The jail's end of its socket. */
const JAIL_FD = 3;
const JAIL_CLOSE_MS = 1_000;
const COMPLAINT_BYTES = 4_096;
/** More than the names of what CRIU writes for any number of processes that a sandbox may have. */
const OUTPUT_BYTES = 16 * 1_048_576;

export interface PorterOptions {
  /** The porter's binary; the one that was built beside this file otherwise. */
  binary?: string;
  /** What starts it; a process of that same binary otherwise. */
  spawner?: Spawner;
  /** Signals and mounts. */
  deadlineMs?: number;
  /** What takes the longer the more there is: removing and copying trees, reading files, writing out file systems. */
  slowDeadlineMs?: number;
}

export interface Overlay {
  /** The mount's source in mountinfo. */
  marker: string;
  target: string;
  /** Uppermost first. */
  lower: readonly string[];
  upper: string;
  work: string;
}

export interface DiskImage {
  /** The file that an ext4 file system is in. */
  image: string;
  target: string;
  /** The file system's own mount options. */
  options: string;
}

export interface FileSum {
  size: number;
  /** 16 hex digits, for finding accidents. */
  sum: string;
}

export interface TreeCopy {
  from: string;
  /** A directory that is there and has none of the names. */
  to: string;
  /** Entries of `from`, each with all that is in it. What is linked between them is linked between the copies. */
  names: readonly string[];
  /** What the copies may have allocated; each inode counts 4 KiB at least. */
  maxBytes: number;
}

/** Where it is no size, what was made until then is left for the caller to remove. */
export type Copied = { bytes: number } | "gone" | "too_much";

export interface KeeperRename {
  pid: number;
  startTime: string;
  /** The sandbox whose name the keeper has; both names are of one length. */
  from: string;
  to: string;
  hostname: string;
}

export interface PrivateView {
  /** The file by which a cgroup is entered, before anything else is done. */
  enter?: string | undefined;
  /** What is not mounted. */
  unmount?: readonly string[];
  /** All that is in /run, which is in memory then; nothing is where there is no such file. */
  runFile?: string | undefined;
  /** All that is in /tmp, where it lies there. */
  tmpDir?: string | undefined;
  /** A directory that is also seen in another's place, with what is mounted in it. */
  bind?: { from: string; to: string } | undefined;
}

export interface IdMap {
  /** The host's id of the jail's root. */
  idBase: number;
  idCount: number;
}

export type Jail = JailedFiles & { close(): Promise<void> };

/**
 * The host-side acts that Node can't do safely. Each is a short-lived process with a deadline, so that a hanging mount
 * or file system hangs that process and not the server. One more process starts them.
 */
export class Porter {
  readonly #binary: string;
  readonly #spawner: Spawner;
  readonly #deadlineMs: number;
  readonly #slowDeadlineMs: number;

  constructor(options: PorterOptions = {}) {
    this.#binary = options.binary ?? keeperBinaries().porter;
    this.#spawner = options.spawner ?? new Spawner(this.#binary);
    this.#deadlineMs = options.deadlineMs ?? 10_000;
    this.#slowDeadlineMs = options.slowDeadlineMs ?? 120_000;
  }

  /** Reaches the process that had this pid and start time or none: "gone" also where another has the pid by now. */
  async signal(pid: number, startTime: string, signal: number): Promise<"sent" | "gone"> {
    const args = ["signal", String(pid), startTime, String(signal)];
    return (await this.#run(args, this.#deadlineMs, [GONE])).code === GONE ? "gone" : "sent";
  }

  async mountOverlay(overlay: Overlay): Promise<void> {
    const { marker, target, lower, upper, work } = overlay;
    await this.#run(["overlay", marker, target, upper, work, ...lower], this.#deadlineMs);
  }

  /**
   * Mounts a file's own file system. One that is mounted there already is fine, one that is mounted elsewhere is the same
   * one here; "gone" where there is no such file. The loop device goes with the last mount.
   */
  async mountDisk({ image, target, options }: DiskImage): Promise<"mounted" | "gone"> {
    const { code } = await this.#run(["disk", image, target, options], this.#deadlineMs, [GONE]);
    return code === GONE ? "gone" : "mounted";
  }

  /** Takes every mount off the target; a busy one is detached. Nothing mounted there is fine. */
  async unmount(target: string): Promise<void> {
    await this.#run(["umount", target], this.#deadlineMs);
  }

  /** Removes a file or tree without following links; refuses where a mount lies inside. Nothing there is fine. */
  async removeTree(path: string): Promise<void> {
    await this.#run(["rmtree", path], this.#slowDeadlineMs);
  }

  /**
   * Copies trees that nobody writes to, with all that a file system knows about them: holes, links, owners, times,
   * attributes. Follows no link, enters no mount, and changes nothing in `from` but when a symbolic link was last read;
   * devices are refused, but not an overlay's whiteouts. An overlay's upper and work directories belong in one call; the
   * copies can be mounted as an overlay of their own. "gone" where a name, or `from`, is missing. What was copied is on
   * disk after a `sync`. Aborted, it rejects once nothing is written any more.
   */
  async copy({ from, to, names, maxBytes }: TreeCopy, signal: AbortSignal): Promise<Copied> {
    const args = ["copy", from, to, String(maxBytes), ...names];
    const { code, output } = await this.#run(args, this.#slowDeadlineMs, [GONE, TOO_MUCH], signal);
    if (code === GONE) return "gone";
    if (code === TOO_MUCH) return "too_much";
    if (!/^\d+\n$/.test(output)) throw new PorterError("porter copy said something else", null);
    return { bytes: Number(output) };
  }

  /**
   * Has a keeper that does not run at the moment answer to another sandbox's name from now on, and gives its host name
   * namespace, which must not be this host's, a new name. Where it fails, the keeper may have either name.
   */
  async renameKeeper({ pid, startTime, from, to, hostname }: KeeperRename): Promise<"renamed" | "gone"> {
    const args = ["rename-keeper", String(pid), startTime, from, to, hostname];
    return (await this.#run(args, this.#deadlineMs, [GONE])).code === GONE ? "gone" : "renamed";
  }

  /** Has the file system place what is made in this directory far apart, where it knows how: a matter of speed. */
  async spread(directory: string): Promise<void> {
    await this.#run(["spread", directory], this.#deadlineMs);
  }

  /**
   * Mounts a directory of the host in a living instance, where what it is mounted on is sealed: should the mount ever be
   * missing, writes there fail. Seen from inside before it resolves. The same again is fine; where it is refused or fails,
   * the place is as it was but for directories that were made on the way.
   */
  async mountInto(order: MountInto): Promise<MountedInto> {
    const { pid, startTime, source, subpath, target, readOnly, sourceOwner, targetOwner } = order;
    const process = [String(pid), startTime];
    const owners = [ownerArg(sourceOwner), String(targetOwner)];
    const args = ["mount", ...process, source, subpath, target, access(readOnly), ...owners];
    const { code, output } = await this.#run(args, this.#deadlineMs, [GONE, REFUSED]);
    if (code === GONE) return "gone";
    return code === REFUSED ? readRefused(output) : readMounted(output);
  }

  /**
   * Takes every mount off the target inside, lazily where it is busy, and gives the directory under it back to its owner.
   * Not mounted is fine.
   */
  async unmountFrom(order: {
    pid: number;
    startTime: string;
    target: string;
    before: MountPointBefore;
  }): Promise<"unmounted" | "gone"> {
    const args = ["unmount", String(order.pid), order.startTime, order.target, ...ownership(order.before)];
    return (await this.#run(args, this.#deadlineMs, [GONE])).code === GONE ? "gone" : "unmounted";
  }

  /** Gives a sealed directory back. One that is missing, or is not sealed, is fine. */
  async unseal(order: { root: string; path: string; before: MountPointBefore }): Promise<void> {
    await this.#run(["unseal", order.root, order.path, ...ownership(order.before)], this.#deadlineMs);
  }

  /** Mounts a directory of a drive at a directory of the host that only this server knows. The same again is fine. */
  async stage(order: StageOrder): Promise<{ staged: Identity } | MountRefusal> {
    const { source, subpath, target, readOnly, sourceOwner } = order;
    const args = ["stage", source, subpath, target, access(readOnly), ownerArg(sourceOwner)];
    const { code, output } = await this.#run(args, this.#deadlineMs, [REFUSED]);
    return code === REFUSED ? readRefused(output) : readStaged(output);
  }

  /**
   * Makes a directory that is there the root of a drive. Where the file system has ACLs, uid 0 and uid 1000 of the map can
   * both write whatever either makes, as far as the mode that it is made with allows others than its owner.
   */
  async makeDriveRoot(order: { path: string; idBase: number; owner: number }): Promise<void> {
    const args = ["drive-root", order.path, String(order.idBase), String(order.owner)];
    await this.#run(args, this.#deadlineMs);
  }

  /** What a tree has allocated, mounts in it left out, and how many files it has, directories not counted. */
  async usage(path: string, signal: AbortSignal): Promise<DriveUsage> {
    return readUsage((await this.#run(["usage", path], this.#slowDeadlineMs, [], signal)).output);
  }

  /**
   * Puts the root of a living instance where the host sees it, as the same mount that the instance has: that is the only
   * way where an overlay was taken off the host meanwhile. What is mounted there already goes below it; the same is fine.
   */
  async remount(order: ProcessName & { target: string }): Promise<Identity | "gone"> {
    const args = ["remount", String(order.pid), order.startTime, order.target];
    const { code, output } = await this.#run(args, this.#deadlineMs, [GONE]);
    return code === GONE ? "gone" : readRemounted(output);
  }

  /** What processes say of themselves, by pid; those that are gone are left out. Where one hangs, the signal ends it. */
  async words(processes: readonly ProcessName[], signal: AbortSignal): Promise<Map<number, ProcessWords>> {
    if (processes.length === 0) return new Map();
    const args = processes.flatMap(({ pid, startTime }) => [String(pid), startTime]);
    return readWords((await this.#run(["words", ...args], this.#deadlineMs, [], signal)).output);
  }

  /** Runs any other helper: see `Spawner`. */
  run(order: HelperOrder, signal: AbortSignal): Promise<HelperEnd> {
    return this.#spawner.run(order, signal);
  }

  /** Keeps no process that waits for more to do. */
  close(): void {
    this.#spawner.close();
  }

  /** The argv that runs a command with another view of the host, in a mount namespace of its own where that takes one. */
  privateArgv(argv: readonly string[], view: PrivateView): string[] {
    const option = (name: string, ...values: (string | undefined)[]) =>
      values.includes(undefined) ? [] : [name, ...(values as string[])];
    const options = [
      ...option("--enter", view.enter),
      ...(view.unmount ?? []).flatMap((path) => option("--umount", path)),
      ...option("--run", view.runFile),
      ...option("--tmp", view.tmpDir),
      ...option("--bind", view.bind?.from, view.bind?.to),
    ];
    return [this.#binary, "private", ...options, "--", ...argv];
  }

  /** What CRIU is given as its action script: see the environment that it expects in `criu.ts`. */
  get actionScript(): string {
    return this.#binary;
  }

  /** Sizes and sums of the files in a directory that holds nothing else; null where it is missing. */
  async sums(directory: string): Promise<Map<string, FileSum> | null> {
    const { code, output } = await this.#run(["sums", directory], this.#slowDeadlineMs, [GONE]);
    return code === GONE ? null : readSums(output);
  }

  /** Resolves when all that was written to the file systems of these directories is on their disks. */
  async sync(directories: readonly string[]): Promise<void> {
    await this.#run(["sync", ...directories], this.#slowDeadlineMs);
  }

  /**
   * Serves the files below `root` from a process that can see nothing else. Ids are those of the map: uid 0 is the host's
   * `idBase`. With names of directories in the root to be hidden, the jail is for reading, and refuses what lies there.
   * The signal covers the opening; the jail then lives until it is closed, or as long as this process.
   */
  async openJail(
    root: string,
    ids: IdMap,
    signal: AbortSignal,
    hidden: readonly string[] = [],
  ): Promise<Jail> {
    signal.throwIfAborted();
    const args = ["jail", String(JAIL_FD), root, String(ids.idBase), String(ids.idCount), ...hidden];
    const child = spawn(this.#binary, args, { stdio: ["ignore", "ignore", "pipe", "pipe"], env: {} });
    const complaint = complaints(child);
    const channel = jailChannel(child.stdio[JAIL_FD] as Socket);
    try {
      await greet(channel, { installation: "", sandbox: "", generation: 0 }, signal);
    } catch (error) {
      await ended(child, 0);
      throw complaint() === "" ? error : new PorterError(complaint(), child.exitCode);
    }
    const close = async () => {
      channel.close("closed by this side");
      await ended(child, JAIL_CLOSE_MS);
    };
    return Object.assign(new Files(channel), { close });
  }

  /** One act. It ends well with 0, and with the codes given. */
  async #run(
    args: readonly string[],
    deadlineMs: number,
    fine: readonly number[] = [],
    signal?: AbortSignal,
  ): Promise<{ code: number; output: string }> {
    const name = `porter ${args[0]}`;
    const late = new AbortController();
    const deadline = setTimeout(() => {
      late.abort(new PorterError(`${name} did not end within ${deadlineMs / 1000} s`, null));
    }, deadlineMs);
    const keep = { stdout: OUTPUT_BYTES, stderr: COMPLAINT_BYTES };
    try {
      const order = { name, argv: [this.#binary, ...args], env: {}, keep, isTied: true };
      const { status, stdout, stderr } = await this.#spawner.run(
        order,
        signal === undefined ? late.signal : AbortSignal.any([late.signal, signal]),
      );
      if (typeof status !== "number") throw new PorterError(`${name} ended by ${status}`, null);
      if (status !== 0 && !fine.includes(status))
        throw new PorterError(asLine(stderr) || `${name} failed`, status);
      return { code: status, output: stdout };
    } finally {
      clearTimeout(deadline);
    }
  }
}

const access = (readOnly: boolean): string => (readOnly ? "ro" : "rw");

const ownership = ({ uid, gid, mode }: MountPointBefore): string[] => [uid, gid, mode].map(String);

const ownerArg = (owner: number | null): string => (owner === null ? "-" : String(owner));

const asLine = (text: string): string => text.trim().replaceAll(/\s*\n\s*/g, "; ");

/** The first few lines of a child's stderr, as one. */
function complaints(child: ChildProcess): () => string {
  let text = "";
  child.stderr?.setEncoding("utf8").on("data", (chunk: string) => {
    if (text.length < COMPLAINT_BYTES) text = (text + chunk).slice(0, COMPLAINT_BYTES);
  });
  return () => asLine(text);
}

function readSums(output: string): Map<string, FileSum> {
  const sums = new Map<string, FileSum>();
  for (const line of output.split("\n").filter(Boolean)) {
    const [, size, sum, name] = /^(\d+) ([0-9a-f]{16}) (.+)$/.exec(line) ?? [];
    if (sum === undefined || name === undefined)
      throw new PorterError("porter sums said something else", null);
    sums.set(name, { size: Number(size), sum });
  }
  return sums;
}

/** Waits for a child's end, kills it after `graceMs`, and gives up where even that does not end it. */
function ended(child: ChildProcess, graceMs: number): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return resolve();
    const kill = setTimeout(() => child.kill("SIGKILL"), graceMs);
    const giveUp = setTimeout(resolve, graceMs + JAIL_CLOSE_MS);
    child.once("close", () => {
      clearTimeout(kill);
      clearTimeout(giveUp);
      resolve();
    });
  });
}

function jailChannel(socket: Socket): Channel {
  const channel = new Channel(socket, {
    heartbeatMs: NUMBERS.heartbeatMs,
    deadMs: NUMBERS.linkDeadMs,
    now: Date.now,
    onEvent: () => {
      throw new WireError("an event from a jail");
    },
  });
  socket.on("data", (chunk: Buffer) => channel.feed(chunk, false));
  return channel;
}
