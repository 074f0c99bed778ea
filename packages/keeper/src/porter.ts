import { type ChildProcess, spawn } from "node:child_process";
import type { Socket } from "node:net";
import { NUMBERS } from "@holdfast/contract";
import { keeperBinaries } from "./binaries.ts";
import { Channel } from "./channel.ts";
import { Files, type JailedFiles } from "./files.ts";
import { complaints, PorterError, runHelper } from "./helper.ts";
import { greet } from "./link.ts";
import { WireError } from "./wire.ts";

export { PorterError } from "./helper.ts";

const GONE = 3;
/** The jail's end of its socket. */
const JAIL_FD = 3;
const JAIL_CLOSE_MS = 1_000;

export interface PorterOptions {
  /** The porter's binary; the one that was built beside this file otherwise. */
  binary?: string;
  /** Signals and mounts. */
  deadlineMs?: number;
  /** Removing a tree, however large. */
  removeDeadlineMs?: number;
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

export interface IdMap {
  /** The host's id of the jail's root. */
  idBase: number;
  idCount: number;
}

export type Jail = JailedFiles & { close(): Promise<void> };

/**
 * The host-side acts that Node can't do safely. Each is a short-lived process with a deadline, so that a hanging mount
 * or file system hangs that process and not the server.
 */
export class Porter {
  readonly #binary: string;
  readonly #deadlineMs: number;
  readonly #removeDeadlineMs: number;

  constructor(options: PorterOptions = {}) {
    this.#binary = options.binary ?? keeperBinaries().porter;
    this.#deadlineMs = options.deadlineMs ?? 10_000;
    this.#removeDeadlineMs = options.removeDeadlineMs ?? 120_000;
  }

  /** Reaches the process that had this pid and start time or none: "gone" also where another has the pid by now. */
  async signal(pid: number, startTime: string, signal: number): Promise<"sent" | "gone"> {
    const args = ["signal", String(pid), startTime, String(signal)];
    return (await this.#run(args, this.#deadlineMs, [0, GONE])) === GONE ? "gone" : "sent";
  }

  async mountOverlay(overlay: Overlay): Promise<void> {
    const { marker, target, lower, upper, work } = overlay;
    await this.#run(["overlay", marker, target, upper, work, ...lower], this.#deadlineMs);
  }

  /** Takes every mount off the target; a busy one is detached. Nothing mounted there is fine. */
  async unmount(target: string): Promise<void> {
    await this.#run(["umount", target], this.#deadlineMs);
  }

  /** Removes a file or tree without following links; refuses where a mount lies inside. Nothing there is fine. */
  async removeTree(path: string): Promise<void> {
    await this.#run(["rmtree", path], this.#removeDeadlineMs);
  }

  /** Has the file system place what is made in this directory far apart, where it knows how: a matter of speed. */
  async spread(directory: string): Promise<void> {
    await this.#run(["spread", directory], this.#deadlineMs);
  }

  /** The argv that runs a command in a mount namespace of its own, in which some paths are not mounted. */
  privateArgv(unmount: readonly string[], argv: readonly string[]): string[] {
    return [this.#binary, "private", ...unmount.flatMap((path) => ["--umount", path]), "--", ...argv];
  }

  /**
   * Serves the files below `root` from a process that can see nothing else. Ids are those of the map: uid 0 is the host's
   * `idBase`. The signal covers the opening; the jail then lives until it is closed, or as long as this process.
   */
  async openJail(root: string, ids: IdMap, signal: AbortSignal): Promise<Jail> {
    signal.throwIfAborted();
    const args = ["jail", String(JAIL_FD), root, String(ids.idBase), String(ids.idCount)];
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

  async #run(args: string[], deadlineMs: number, fine: readonly number[] = [0]): Promise<number> {
    const { code, complaint } = await runHelper([this.#binary, ...args], deadlineMs);
    if (fine.includes(code)) return code;
    throw new PorterError(complaint === "" ? `porter ${args[0]} failed` : complaint, code);
  }
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
