import type { Socket } from "node:net";
import { NUMBERS } from "@holdfast/contract";
import type { Identity } from "@holdfast/engine";
import { Files, type JailedFiles } from "../files/files.ts";
import { greet } from "../link/link.ts";
import { Channel } from "../wire/channel.ts";
import { WireError } from "../wire/wire.ts";
import { keeperBinaries } from "./binaries.ts";
import { JailListener } from "./jail-listener.ts";
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
import {
  type ProcessCommandLine,
  type ProcessName,
  readCommandLines,
  readRemounted,
} from "./porter-instance.ts";
import { type HelperEnd, type HelperOrder, PorterError, Spawner } from "./spawner.ts";

const GONE = 3;
const TOO_MUCH = 4;
const REFUSED = 5;
const JAIL_CLOSE_MS = 1_000;
const STDERR_BYTES = 4_096;
/**
 * Maximum size of a command's output. The longest output lists all files that CRIU writes for a sandbox with as many
 * processes as possible, and is smaller than this.
 */
const OUTPUT_BYTES = 16 * 1_048_576;

interface PorterOptions {
  /** Path of the porter's binary. Default: the one built with this package. */
  binary?: string;
  /** The spawner that starts the porter. Default: a new spawner of the same binary. */
  spawner?: Spawner;
  /** Deadline of operations whose time does not depend on the amount of data, such as signals and mounts. */
  deadlineMs?: number;
  /**
   * Deadline of operations whose time depends on the amount of data: removing and copying trees, reading files,
   * flushing file systems.
   */
  slowDeadlineMs?: number;
}

interface Overlay {
  /** The marker, which becomes the mount's source in mountinfo. */
  marker: string;
  target: string;
  /** Lower layers, the uppermost first. */
  lower: readonly string[];
  upper: string;
  work: string;
}

interface DiskImage {
  /** Path of a file with an ext4 file system. */
  image: string;
  target: string;
  /** Mount options of the file system. */
  options: string;
}

export interface FileSum {
  size: number;
  /** Checksum of 16 hex digits. It detects accidental changes, not forgery. */
  sum: string;
}

interface TreeCopy {
  from: string;
  /** The destination: an existing directory that contains none of the names yet. */
  to: string;
  /**
   * Names of entries in `from`. Each is copied with its content. Hard links between entries are preserved in the copy.
   */
  names: readonly string[];
  /** Maximum number of bytes that the copies may allocate. Every inode counts as at least 4 KiB. */
  maxBytes: number;
  /**
   * Whether to leave out the attributes by which an overlay's upper layer refers to files of its lower layer. Set if
   * the copy will be mounted over another copy of the lower layer, with an empty work directory. Default: false.
   */
  detached?: boolean;
}

/**
 * The size of the copy, or why it failed: "gone" if a source is missing, "too_much" if the copy would exceed
 * `maxBytes`. After a failure the caller must remove the partial copy.
 */
type Copied = { bytes: number } | "gone" | "too_much";

export interface KeeperRename {
  pid: number;
  startTime: string;
  /** The sandbox name that the keeper has now. It must be as long as the new name. */
  from: string;
  to: string;
  hostname: string;
  /** The installation name that the keeper has now, and its new one; undefined if the installation stays the same. */
  installation?: { from: string; to: string } | undefined;
}

export interface PrivateView {
  /** A file of a cgroup. By writing to it, the command enters the cgroup before it does anything else. */
  enter?: string | undefined;
  /** Whether the command gets its own mounts, to which later mounts and unmounts of the host do not propagate. */
  detach?: boolean;
  /** Paths that are mounts on the host and are unmounted for the command only. */
  unmount?: readonly string[];
  /**
   * If set, the command's /run is a new tmpfs with a copy of this file and nothing else. If the file does not exist,
   * the new /run is empty.
   */
  runFile?: string | undefined;
  /**
   * If set, the command's /tmp is a new tmpfs. If this path is a directory below the host's /tmp, that directory is
   * also in the new /tmp; otherwise the new /tmp is empty.
   */
  tmpDir?: string | undefined;
  /** A directory that the command sees at a second path too, including its submounts. */
  bind?: { from: string; to: string } | undefined;
}

interface IdMap {
  /** The host's user id that is root in the jail. */
  idBase: number;
  idCount: number;
}

export type Jail = JailedFiles & { close(): Promise<void> };

/**
 * Operations on the host that Node cannot do safely. Each is a short-lived process with a deadline, so that a hanging
 * mount or file system blocks that process and not the server. A spawner process starts these processes.
 */
export class Porter {
  readonly #binary: string;
  readonly #spawner: Spawner;
  readonly #jails = new JailListener();
  readonly #deadlineMs: number;
  readonly #slowDeadlineMs: number;

  constructor(options: PorterOptions = {}) {
    this.#binary = options.binary ?? keeperBinaries().porter;
    this.#spawner = options.spawner ?? new Spawner(this.#binary);
    this.#deadlineMs = options.deadlineMs ?? 10_000;
    this.#slowDeadlineMs = options.slowDeadlineMs ?? 120_000;
  }

  /**
   * Signals the process with this pid and start time. Returns "gone" if that process does not exist, even if another
   * process has the pid now.
   */
  async signal(pid: number, startTime: string, signal: number): Promise<"sent" | "gone"> {
    const args = ["signal", String(pid), startTime, String(signal)];
    return (await this.#run(args, this.#deadlineMs, [GONE])).code === GONE ? "gone" : "sent";
  }

  async mountOverlay(overlay: Overlay): Promise<void> {
    const { marker, target, lower, upper, work } = overlay;
    await this.#run(["overlay", marker, target, upper, work, ...lower], this.#deadlineMs);
  }

  /**
   * Mounts the file system in the file `image` at `target`. Does nothing if it is already mounted at `target`. If it is
   * mounted at another path, both paths show the same file system. Returns "gone" if the file does not exist. The loop
   * device is released when the file system is no longer mounted anywhere.
   */
  async mountDisk({ image, target, options }: DiskImage): Promise<"mounted" | "gone"> {
    const { code } = await this.#run(["disk", image, target, options], this.#deadlineMs, [GONE]);
    return code === GONE ? "gone" : "mounted";
  }

  /** Unmounts everything at the target. A busy mount is detached. Does nothing if nothing is mounted. */
  async unmount(target: string): Promise<void> {
    await this.#run(["umount", target], this.#deadlineMs);
  }

  /**
   * Removes a file or a tree without following symbolic links. Fails if a mount lies inside the tree. Does nothing if
   * the path does not exist.
   */
  async removeTree(path: string): Promise<void> {
    await this.#run(["rmtree", path], this.#slowDeadlineMs);
  }

  /**
   * Copies entries of `from`, with everything below them, to `to`. No process may write to them meanwhile. The copies
   * have the same holes, hard links, owners, modes, times and extended attributes. Follows no symbolic link, enters no
   * mount, and changes nothing in `from` except the access time of symbolic links. Refuses devices, except the
   * whiteouts of an overlay.
   *
   * The upper and work directories of an overlay must be copied in one call. Their copies can then be mounted as a
   * separate overlay.
   *
   * Returns "gone" if `from` or one of the entries is missing, and "too_much" if the copies would exceed `maxBytes`.
   * The copies are durable only after `sync`. After an abort, rejects once nothing is being written any more.
   */
  async copy(
    { from, to, names, maxBytes, detached = false }: TreeCopy,
    signal: AbortSignal,
  ): Promise<Copied> {
    const args = [detached ? "copy-detached" : "copy", from, to, String(maxBytes), ...names];
    const { code, output } = await this.#run(args, this.#slowDeadlineMs, [GONE, TOO_MUCH], signal);
    if (code === GONE) return "gone";
    if (code === TOO_MUCH) return "too_much";
    if (!/^\d+\n$/.test(output)) throw new PorterError("unexpected output from porter copy", null);
    return { bytes: Number(output) };
  }

  /**
   * Gives a frozen keeper the name of another sandbox, and changes the host name of its UTS namespace. That namespace
   * must not be the host's own. If the promise rejects, the keeper may have the old or the new name.
   */
  async renameKeeper(order: KeeperRename): Promise<"renamed" | "gone"> {
    const { pid, startTime, from, to, hostname, installation } = order;
    const names = [from, to, hostname, ...(installation ? [installation.from, installation.to] : [])];
    const args = ["rename-keeper", String(pid), startTime, ...names];
    return (await this.#run(args, this.#deadlineMs, [GONE])).code === GONE ? "gone" : "renamed";
  }

  /**
   * Asks the file system to place the subdirectories that will be created in `directory` far apart on the disk. Only
   * affects speed. Does nothing if the file system does not support it.
   */
  async spread(directory: string): Promise<void> {
    await this.#run(["spread", directory], this.#deadlineMs);
  }

  /**
   * Mounts a directory of the host in a running instance. Seals the directory beneath the mount: that directory then
   * belongs to the host's root and has no write permission, so that writes to it fail if the mount is ever missing. The
   * mount is visible inside the instance before the promise resolves. Does nothing if the directory of the host is
   * already mounted at the target. If the mount is refused or fails, the target is unchanged, but missing parent
   * directories may have been created.
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
   * Unmounts everything at a path inside an instance, and restores the owner and mode of the directory beneath. A busy
   * mount is detached. Does nothing if nothing is mounted.
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

  /**
   * Restores the owner and mode (`before`) of a directory that `mountInto` has sealed. Works without a running
   * instance: `root` is the directory on the host that contains the path. Does nothing if there is no directory at the
   * path or if the directory is not sealed.
   */
  async unseal(order: { root: string; path: string; before: MountPointBefore }): Promise<void> {
    await this.#run(["unseal", order.root, order.path, ...ownership(order.before)], this.#deadlineMs);
  }

  /**
   * Mounts a directory of a drive at a host directory that only this server uses. Does nothing if it is already
   * mounted.
   */
  async stage(order: StageOrder): Promise<{ staged: Identity } | MountRefusal> {
    const { source, subpath, target, readOnly, sourceOwner } = order;
    const args = ["stage", source, subpath, target, access(readOnly), ownerArg(sourceOwner)];
    const { code, output } = await this.#run(args, this.#deadlineMs, [REFUSED]);
    return code === REFUSED ? readRefused(output) : readStaged(output);
  }

  /**
   * Makes an existing directory the root of a drive. If the file system has ACLs, both users of a sandbox (uids 0 and
   * 1000 of the id map) can write everything that either of them creates, as far as the mode at creation permits.
   */
  async makeDriveRoot(order: { path: string; idBase: number; owner: number }): Promise<void> {
    const args = ["drive-root", order.path, String(order.idBase), String(order.owner)];
    await this.#run(args, this.#deadlineMs);
  }

  /**
   * Returns the number of bytes that a tree occupies on disk, and its number of files without directories. Mounts
   * inside the tree do not count.
   */
  async usage(path: string, signal: AbortSignal): Promise<DriveUsage> {
    return readUsage((await this.#run(["usage", path], this.#slowDeadlineMs, [], signal)).output);
  }

  /**
   * Mounts the root of a running instance on the host again, by cloning the mount that the instance still has. This is
   * the only way after an overlay was unmounted on the host. An existing mount at the target stays below the new one.
   * Does nothing if the root is already mounted at the target.
   */
  async remount(order: ProcessName & { target: string }): Promise<Identity | "gone"> {
    const args = ["remount", String(order.pid), order.startTime, order.target];
    const { code, output } = await this.#run(args, this.#deadlineMs, [GONE]);
    return code === GONE ? "gone" : readRemounted(output);
  }

  /**
   * Returns the command lines and exec ids of processes, by pid. Processes that no longer exist are skipped. If a
   * process hangs, only the signal or the deadline ends the wait.
   */
  async commandLines(
    processes: readonly ProcessName[],
    signal: AbortSignal,
  ): Promise<Map<number, ProcessCommandLine>> {
    if (processes.length === 0) return new Map();
    const args = processes.flatMap(({ pid, startTime }) => [String(pid), startTime]);
    return readCommandLines((await this.#run(["words", ...args], this.#deadlineMs, [], signal)).output);
  }

  /** Runs a program that is not a command of the porter as a helper. Resolves and rejects as `Spawner.run` does. */
  run(order: HelperOrder, signal: AbortSignal): Promise<HelperEnd> {
    return this.#spawner.run(order, signal);
  }

  /** Ends the spawner process as soon as it is idle. */
  close(): void {
    this.#jails.close();
    this.#spawner.close();
  }

  /**
   * Returns the argv that runs a command with a changed view of the host. If the view differs in mounts, the command
   * gets its own mount namespace.
   */
  privateArgv(argv: readonly string[], view: PrivateView): string[] {
    const option = (name: string, ...values: (string | undefined)[]) =>
      values.includes(undefined) ? [] : [name, ...(values as string[])];
    const options = [
      ...option("--enter", view.enter),
      ...(view.detach === true ? ["--detach"] : []),
      ...(view.unmount ?? []).flatMap((path) => option("--umount", path)),
      ...option("--run", view.runFile),
      ...option("--tmp", view.tmpDir),
      ...option("--bind", view.bind?.from, view.bind?.to),
    ];
    return [this.#binary, "private", ...options, "--", ...argv];
  }

  /**
   * Path of the program that CRIU calls at each stage of a restore. `criu-argv.ts` documents the environment that the
   * program expects.
   */
  get actionScript(): string {
    return this.#binary;
  }

  /**
   * Returns sizes and checksums of the files in a directory that contains only files; null if the directory is missing.
   */
  async sums(directory: string): Promise<Map<string, FileSum> | null> {
    const { code, output } = await this.#run(["sums", directory], this.#slowDeadlineMs, [GONE]);
    return code === GONE ? null : readSums(output);
  }

  /** Resolves when all data written to the file systems of these directories is on disk. */
  async sync(directories: readonly string[]): Promise<void> {
    await this.#run(["sync", ...directories], this.#slowDeadlineMs);
  }

  /**
   * Serves the files below `root` from a process that can see nothing else. Ids are those of the id map: uid 0 is the
   * host's `idBase`. If `hidden` names directories, the jail is read-only and refuses paths in them. The signal applies
   * only to opening the jail. The jail then lives until it is closed or this process ends.
   */
  async openJail(
    root: string,
    ids: IdMap,
    signal: AbortSignal,
    hidden: readonly string[] = [],
  ): Promise<Jail> {
    signal.throwIfAborted();
    const { path, id, socket, forget } = await this.#jails.expect();
    const killed = new AbortController();
    const owner = [root, String(ids.idBase), String(ids.idCount)];
    const argv = [this.#binary, "jail", path, String(id), ...owner, ...hidden];
    const order = { name: "porter jail", argv, env: {}, keep: { stderr: STDERR_BYTES }, isTied: true };
    const ended = this.#spawner.run(order, killed.signal);
    const kill = (graceMs: number) => endWithin(ended, killed, graceMs);
    let channel: Channel | undefined;
    try {
      channel = jailChannel(await soonest(socket, ended, signal));
      await greet(channel, { installation: "", sandbox: "", generation: 0 }, signal);
    } catch (error) {
      forget();
      channel?.close("the jail could not be opened");
      const end = await kill(signal.aborted ? 0 : JAIL_CLOSE_MS);
      throw end === null || asLine(end.stderr) === ""
        ? error
        : new PorterError(asLine(end.stderr), typeof end.status === "number" ? end.status : null);
    }
    const open = channel;
    const close = async () => {
      open.close("closed by this side");
      await kill(JAIL_CLOSE_MS);
    };
    return Object.assign(new Files(open), { close });
  }

  /** Runs one command of the porter. Rejects if it exits with a code that is neither 0 nor one of `fine`. */
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
    const keep = { stdout: OUTPUT_BYTES, stderr: STDERR_BYTES };
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

function readSums(output: string): Map<string, FileSum> {
  const sums = new Map<string, FileSum>();
  for (const line of output.split("\n").filter(Boolean)) {
    const [, size, sum, name] = /^(\d+) ([0-9a-f]{16}) (.+)$/.exec(line) ?? [];
    if (sum === undefined || name === undefined)
      throw new PorterError("unexpected output from porter sums", null);
    sums.set(name, { size: Number(size), sum });
  }
  return sums;
}

/** Resolves with the socket of a jail. Rejects if the jail ends, or the signal is aborted, before the jail connects. */
function soonest(socket: Promise<Socket>, ended: Promise<HelperEnd>, signal: AbortSignal): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    const gone = ended.then(() => reject(new PorterError("porter jail ended at once", null)), reject);
    socket.then(resolve);
    Promise.race([socket, gone]).finally(() => signal.removeEventListener("abort", abort));
  });
}

/**
 * Waits for a helper's end, and kills the helper after `graceMs`. Returns null if the helper was killed or its end is
 * not known.
 */
async function endWithin(
  ended: Promise<HelperEnd>,
  killed: AbortController,
  graceMs: number,
): Promise<HelperEnd | null> {
  const late = setTimeout(() => killed.abort(new PorterError("porter jail was killed", null)), graceMs);
  try {
    return await ended;
  } catch {
    return null;
  } finally {
    clearTimeout(late);
  }
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
