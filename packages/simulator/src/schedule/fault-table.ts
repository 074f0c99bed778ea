import type { Point } from "./armed-faults.ts";
import {
  DRIVE_EFFECTS,
  DRIVE_STAGES,
  FORK_EFFECTS,
  FORK_STAGES,
  REQUESTS,
  SLEEP_EFFECTS,
  SLEEP_STAGES,
} from "./fault-targets.ts";
import type { Random } from "./random.ts";

/**
 * Parameters of a fault, as they are stored in a schedule. `ms` is a duration, and `flag` selects one of two variants
 * of the fault.
 */
export interface FaultParams {
  ms: number;
  /** Depends on the fault: for example, the number of opportunities to skip, or the number of repetitions. */
  n: number;
  flag: boolean;
  /** Index of the target among the living instances. */
  box: number;
  /** The kind of request or write during which the fault strikes; null for any. */
  on: string | null;
}

/** The immediate effects that faults can have on the simulated world. */
export interface Reach {
  crash(why: string, downMs: number): boolean;
  restart(downMs: number): Promise<boolean>;
  reboot(options: { powerCut: boolean; downMs: number }): Promise<boolean>;
  secondServer(): boolean;
  jump(ms: number): boolean;
  fillDisk(ms: number): boolean;
  lowDisk(params: FaultParams): boolean;
  lowMemory(ms: number): boolean;
  killKeeper(box: number): boolean;
  stopKeeper(box: number, ms: number): boolean;
  unmountRoot(box: number, options: { forGood: boolean }): boolean;
  killForMemory(box: number): boolean;
  dropLinks(box: number): boolean;
  silenceLinks(box: number): boolean;
  stray(params: FaultParams): boolean;
  corruptLease(n: number, downMs: number): boolean;
  corruptRecord(n: number, downMs: number): boolean;
  harmCheckpoint(n: number, how: "damaged" | "foreign" | "lost"): boolean;
  harmSaved(n: number, how: "damaged" | "lost"): boolean;
  takeDrive(params: FaultParams): boolean;
  takeMount(n: number): boolean;
  strayDrive(): boolean;
  corruptDrive(n: number, downMs: number): boolean;
}

interface Kind {
  readonly name: string;
  readonly weight: number;
  readonly about: string;
  /** The operation during which the fault strikes; absent for faults with an immediate effect. */
  readonly point?: Point;
  /** Applies the immediate effect of the fault. Returns false if the fault had no target. */
  readonly strike?: (reach: Reach, params: FaultParams) => boolean | Promise<boolean>;
  readonly draw?: (random: Random) => Partial<FaultParams>;
}

const soon = (random: Random) => ({ ms: random.pick([0, 5, 200, 3_000]) });
const seconds = (random: Random) => ({ ms: random.between(500, 15_000) });

const anyStage = (random: Random) => ({
  ...soon(random),
  on: random.pick([null, ...SLEEP_STAGES]),
  n: random.below(3),
});

/** Faults while a sandbox enters or leaves standby. */
const SLEEP_FAULTS = [
  { name: "freeze-hangs", weight: 1, about: "freezing hangs, done or not", point: "freeze" },
  { name: "thaw-fails", weight: 2, about: "thawing fails, done or not", point: "thaw" },
  { name: "thaw-hangs", weight: 2, about: "thawing hangs, done or not", point: "thaw" },
  { name: "measure-fails", weight: 1, about: "usage can't be measured", point: "measure" },
  { name: "measure-hangs", weight: 1, about: "measuring usage hangs", point: "measure" },
  {
    name: "remount-fails",
    weight: 24,
    about: "a root can't be remounted, or the remount hangs",
    point: "remount",
  },
  { name: "dump-fails", weight: 2, about: "memory is partly written", point: "checkpoint" },
  { name: "dump-hangs", weight: 2, about: "writing memory hangs", point: "checkpoint" },
  {
    name: "dump-answer-lost",
    weight: 2,
    about: "memory is written but the answer is a failure",
    point: "checkpoint",
  },
  { name: "dump-slow", weight: 2, about: "writing memory takes long", point: "checkpoint", draw: seconds },
  { name: "restore-fails", weight: 2, about: "a restore fails before it creates anything", point: "restore" },
  { name: "restore-hangs", weight: 2, about: "a restore hangs, done or not", point: "restore" },
  {
    name: "restore-answer-lost",
    weight: 2,
    about: "a restore succeeds but the answer is a failure",
    point: "restore",
  },
  { name: "restore-half", weight: 2, about: "a restore fails and leaves some processes", point: "restore" },
  { name: "restore-slow", weight: 3, about: "a restore takes long", point: "restore", draw: seconds },
  { name: "restore-stillborn", weight: 2, about: "the restored instance dies at once", point: "restore" },
  {
    name: "restore-hollow",
    weight: 2,
    about: "a restore reports success, but the root, the keeper or a command is missing",
    point: "restore",
  },
  { name: "discard-fails", weight: 1, about: "old checkpoints can't be removed", point: "discard" },
  {
    name: "disk-unreadable",
    weight: 16,
    about: "the disk of a sleeping sandbox can't be opened",
    point: "files",
  },
  {
    name: "stop-asleep-does-nothing",
    weight: 2,
    about: "an instance whose memory is on disk can't be stopped",
    point: "stop.asleep",
  },
  {
    name: "checkpoint-truncated",
    weight: 2,
    about: "a checkpoint on disk is truncated",
    strike: (reach, { box }) => reach.harmCheckpoint(box, "damaged"),
  },
  {
    name: "checkpoint-lost",
    weight: 2,
    about: "a checkpoint is gone from the disk",
    strike: (reach, { box }) => reach.harmCheckpoint(box, "lost"),
  },
  {
    name: "checkpoint-foreign",
    weight: 2,
    about: "a checkpoint is replaced by that of another sandbox",
    strike: (reach, { box }) => reach.harmCheckpoint(box, "foreign"),
  },
  {
    name: "crash-asleep-before-write",
    weight: 3,
    about: "the server is killed before a write on the way into standby or out of it",
    point: "commit.asleep",
    draw: anyStage,
  },
  {
    name: "crash-asleep-after-write",
    weight: 3,
    about: "the server is killed after such a write",
    point: "commit.asleep",
    draw: anyStage,
  },
  {
    name: "crash-after-sleep-effect",
    weight: 3,
    about: "the server is killed right after it froze, thawed, wrote, restored or discarded",
    point: "effect",
    draw: (random) => ({ ...soon(random), on: random.pick(SLEEP_EFFECTS) }),
  },
  {
    name: "reboot-asleep",
    weight: 2,
    about: "the host reboots on the way into standby, in it, or on the way out",
    point: "commit.asleep",
    draw: anyStage,
  },
  {
    name: "power-cut-asleep",
    weight: 2,
    about: "the host loses power at such a write",
    point: "commit.asleep",
    draw: anyStage,
  },
] as const satisfies readonly Kind[];

const anyForkStage = (random: Random) => ({
  ...soon(random),
  on: random.pick([null, ...FORK_STAGES]),
  n: random.chance(0.7) ? 0 : 1,
});

/** Faults of saved checkpoints and forks. */
const FORK_FAULTS = [
  { name: "save-fails", weight: 5, about: "a checkpoint is partly copied", point: "save" },
  { name: "save-hangs", weight: 5, about: "copying a checkpoint hangs", point: "save" },
  {
    name: "save-answer-lost",
    weight: 5,
    about: "a checkpoint is copied but the answer is a failure",
    point: "save",
  },
  { name: "save-slow", weight: 5, about: "copying a checkpoint takes long", point: "save", draw: seconds },
  {
    name: "unsave-fails",
    weight: 3,
    about: "removing saved checkpoints fails, done or not",
    point: "unsave",
  },
  {
    name: "unsave-hangs",
    weight: 2,
    about: "removing saved checkpoints hangs, done or not",
    point: "unsave",
  },
  { name: "fork-fails", weight: 7, about: "a fork fails when its files are copied", point: "fork" },
  { name: "fork-hangs", weight: 7, about: "a fork hangs, done or not", point: "fork" },
  {
    name: "fork-answer-lost",
    weight: 7,
    about: "a fork succeeds but the answer is a failure",
    point: "fork",
  },
  { name: "fork-slow", weight: 8, about: "a fork takes long", point: "fork", draw: seconds },
  { name: "fork-hollow", weight: 10, about: "a fork lacks the commands that it should have", point: "fork" },
  {
    name: "saved-truncated",
    weight: 3,
    about: "a saved checkpoint on disk is truncated",
    strike: (reach, { box }) => reach.harmSaved(box, "damaged"),
  },
  {
    name: "saved-lost",
    weight: 3,
    about: "a saved checkpoint is gone from the disk",
    strike: (reach, { box }) => reach.harmSaved(box, "lost"),
  },
  {
    name: "crash-forking-before-write",
    weight: 3,
    about: "the server is killed before a write on the way to a saved checkpoint or a fork",
    point: "commit.fork",
    draw: anyForkStage,
  },
  {
    name: "crash-forking-after-write",
    weight: 3,
    about: "the server is killed after such a write",
    point: "commit.fork",
    draw: anyForkStage,
  },
  {
    name: "crash-after-fork-effect",
    weight: 3,
    about: "the server is killed right after it copied, forked or removed a checkpoint",
    point: "effect",
    draw: (random) => ({ ...soon(random), on: random.pick(FORK_EFFECTS) }),
  },
  {
    name: "reboot-forking",
    weight: 4,
    about: "the host reboots on the way to a saved checkpoint or a fork",
    point: "commit.fork",
    draw: anyForkStage,
  },
] as const satisfies readonly Kind[];

const anyDriveStage = (random: Random) => ({
  ...soon(random),
  on: random.pick([null, ...DRIVE_STAGES]),
  n: random.chance(0.7) ? 0 : 1,
});

/** Faults of drives and mounts. */
const DRIVE_FAULTS = [
  { name: "mount-refused", weight: 5, about: "a drive can't be mounted at a path", point: "mount" },
  { name: "mount-half", weight: 5, about: "a path is sealed but the drive is not mounted", point: "mount" },
  {
    name: "mount-answer-lost",
    weight: 5,
    about: "a drive is mounted but the answer is a failure",
    point: "mount",
  },
  { name: "mount-hangs", weight: 5, about: "a mount hangs, done or not", point: "mount" },
  {
    name: "mount-astray",
    weight: 4,
    about: "a mount is reported, but another directory is visible inside",
    point: "mount",
  },
  { name: "mount-slow", weight: 4, about: "a mount takes long", point: "mount", draw: seconds },
  {
    name: "unmount-does-nothing",
    weight: 8,
    about: "an unmount does nothing, and reports so",
    point: "unmount",
  },
  {
    name: "unmount-fails",
    weight: 9,
    about: "a drive is unmounted but the answer is a failure",
    point: "unmount",
  },
  { name: "unmount-hangs", weight: 7, about: "an unmount hangs, done or not", point: "unmount" },
  { name: "make-fails", weight: 6, about: "a drive can't be created", point: "drive.make" },
  { name: "make-half", weight: 7, about: "a drive is partly created", point: "drive.make" },
  {
    name: "make-hangs",
    weight: 6,
    about: "creating a drive hangs, done or not",
    point: "drive.make",
  },
  {
    name: "make-answer-lost",
    weight: 7,
    about: "a drive is created but the answer is a failure",
    point: "drive.make",
  },
  { name: "undrive-fails", weight: 9, about: "a drive can't be removed", point: "drive.destroy" },
  { name: "undrive-half", weight: 9, about: "a drive is partly removed", point: "drive.destroy" },
  {
    name: "undrive-hangs",
    weight: 10,
    about: "removing a drive hangs, done or not",
    point: "drive.destroy",
  },
  { name: "drive-open-fails", weight: 3, about: "a drive can't be opened", point: "drive.open" },
  {
    name: "drives-unknown",
    weight: 3,
    about: "the state of drives is unknown",
    point: "drive.observe",
  },
  { name: "drives-observe-fails", weight: 2, about: "observing drives fails", point: "drive.observe" },
  {
    name: "drives-observe-hangs",
    weight: 2,
    about: "observing drives hangs",
    point: "drive.observe",
  },
  { name: "drive-immeasurable", weight: 13, about: "measuring a drive hangs", point: "drive.usage" },
  { name: "drives-list-fails", weight: 5, about: "drives can't be listed", point: "drive.list" },
  {
    name: "drive-taken",
    weight: 4,
    about: "a drive disappears, temporarily or permanently",
    strike: (reach, params) => reach.takeDrive(params),
    draw: seconds,
  },
  {
    name: "mount-taken",
    weight: 4,
    about: "a mount disappears",
    strike: (reach, { box }) => reach.takeMount(box),
  },
  {
    name: "drive-stray",
    weight: 1,
    about: "a drive appears that no record owns",
    strike: (reach) => reach.strayDrive(),
  },
  {
    name: "drive-unreadable",
    weight: 3,
    about: "the record of a drive can't be read by the next server",
    strike: (reach, { box, ms }) => reach.corruptDrive(box, ms),
    draw: soon,
  },
  {
    name: "crash-driving-before-write",
    weight: 4,
    about: "the server is killed before a write about a drive or a mount",
    point: "commit.drive",
    draw: anyDriveStage,
  },
  {
    name: "crash-driving-after-write",
    weight: 4,
    about: "the server is killed after such a write",
    point: "commit.drive",
    draw: anyDriveStage,
  },
  {
    name: "crash-after-drive-effect",
    weight: 4,
    about: "the server is killed right after it created or removed a drive, or mounted or unmounted one",
    point: "effect",
    draw: (random) => ({ ...soon(random), on: random.pick(DRIVE_EFFECTS) }),
  },
  {
    name: "reboot-driving",
    weight: 4,
    about: "the host reboots after a write about a drive or a mount",
    point: "commit.drive",
    draw: anyDriveStage,
  },
] as const satisfies readonly Kind[];

/** Faults that make a running sandbox stop serving, or prevent its healing. */
const HEAL_FAULTS: ReadonlySet<string> = new Set([
  "root-unmounted",
  "keeper-stopped",
  "remount-fails",
  "thaw-fails",
  "thaw-hangs",
  "connect-refused",
  "connect-hangs",
  "links-drop",
  "links-half-open",
]);

export const isHealFault = (name: FaultName): boolean => HEAL_FAULTS.has(name);

export const isDriveFault = (name: FaultName): boolean => DRIVE_FAULTS.some((each) => each.name === name);

export const isForkFault = (name: FaultName): boolean => FORK_FAULTS.some((each) => each.name === name);

export const isSleepFault = (name: FaultName): boolean => SLEEP_FAULTS.some((each) => each.name === name);

/**
 * All faults. To add one, add a line here. A fault with a `point` also needs code at that point, which applies the
 * fault's effect. A run fails if one of these faults never struck, because the run has shown nothing about that fault.
 */
export const FAULTS = [
  // Faults of the server.
  {
    name: "crash",
    weight: 3,
    about: "the server is killed, whatever it was doing",
    strike: (reach, { ms }) => reach.crash("killed", ms),
    draw: soon,
  },
  {
    name: "crash-before-write",
    weight: 5,
    about: "the server is killed right before a write",
    point: "commit",
    draw: (random) => ({ ...soon(random), n: random.below(8) }),
  },
  {
    name: "crash-after-write",
    weight: 5,
    about: "the server is killed right after a write, before its answer",
    point: "commit",
    draw: (random) => ({ ...soon(random), n: random.below(8) }),
  },
  {
    name: "crash-after-effect",
    weight: 4,
    about: "the server is killed after a physical effect that is not recorded yet",
    point: "effect",
    draw: soon,
  },
  {
    name: "restart",
    weight: 2,
    about: "the server is stopped gracefully and restarted",
    strike: (reach, { ms }) => reach.restart(ms),
    draw: soon,
  },
  {
    name: "second-server",
    weight: 1,
    about: "another server is started on the same state while the first one lives",
    strike: (reach) => reach.secondServer(),
  },
  // Faults of the host.
  {
    name: "reboot",
    weight: 1,
    about: "the host reboots: processes end, files stay",
    strike: (reach, { ms }) => reach.reboot({ powerCut: false, downMs: ms }),
    draw: soon,
  },
  {
    name: "power-cut",
    weight: 1,
    about: "the host loses power: unflushed data is lost too",
    strike: (reach, { ms }) => reach.reboot({ powerCut: true, downMs: ms }),
    draw: soon,
  },
  {
    name: "power-cut-after-start",
    weight: 3,
    about: "the host loses power after the start of an exec is written but not flushed",
    point: "commit",
    draw: (random) => ({ ...soon(random), on: "server" }),
  },
  {
    name: "clock-forward",
    weight: 1,
    about: "the time of day is set forward",
    strike: (reach, { ms }) => reach.jump(ms),
    draw: (random) => ({ ms: random.pick([3_000, 30_000, 600_000]) }),
  },
  {
    name: "clock-backward",
    weight: 1,
    about: "the time of day is set back",
    strike: (reach, { ms }) => reach.jump(-ms),
    draw: (random) => ({ ms: random.pick([3_000, 30_000, 600_000]) }),
  },
  {
    name: "disk-full",
    weight: 2,
    about: "the disk is full, for the database, launches, files and journals alike",
    strike: (reach, { ms }) => reach.fillDisk(ms),
    draw: seconds,
  },
  {
    name: "disk-low",
    weight: 3,
    about: "the disk runs low, because a sandbox fills it or for another reason",
    strike: (reach, params) => reach.lowDisk(params),
    draw: seconds,
  },
  {
    name: "store-slow",
    weight: 2,
    about: "a write takes long",
    point: "commit",
    draw: (random) => ({ ms: random.between(50, 1_500), n: random.below(4) }),
  },
  {
    name: "memory-low",
    weight: 1,
    about: "the host has little memory left",
    strike: (reach, { ms }) => reach.lowMemory(ms),
    draw: seconds,
  },
  {
    name: "store-refuses",
    weight: 2,
    about: "a write is refused with an input/output error",
    point: "commit",
    draw: (random) => ({ n: random.below(5) }),
  },
  {
    name: "stray",
    weight: 1,
    about: "a resource with our marker appears that no record owns",
    strike: (reach, params) => reach.stray(params),
  },
  {
    name: "lease-unreadable",
    weight: 1,
    about: "a stored lease can't be read by the next server",
    strike: (reach, { box, ms }) => reach.corruptLease(box, ms),
    draw: soon,
  },
  {
    name: "record-unreadable",
    weight: 2,
    about: "the record of a sandbox can't be read by the next server",
    strike: (reach, { box, ms }) => reach.corruptRecord(box, ms),
    draw: soon,
  },
  // Faults of driver methods.
  { name: "launch-refused", weight: 2, about: "a launch fails before it creates anything", point: "launch" },
  { name: "launch-half", weight: 2, about: "a launch fails and leaves a directory", point: "launch" },
  {
    name: "launch-answer-lost",
    weight: 2,
    about: "a launch succeeds but the answer is a failure",
    point: "launch",
  },
  { name: "launch-hangs", weight: 2, about: "a launch succeeds but hangs", point: "launch" },
  { name: "launch-slow", weight: 2, about: "a launch takes long", point: "launch", draw: seconds },
  { name: "launch-stillborn", weight: 2, about: "the instance dies at once", point: "launch" },
  { name: "stop-does-nothing", weight: 2, about: "a stop does nothing, and reports so", point: "stop" },
  {
    name: "stop-unknown",
    weight: 3,
    about: "after a stop the instance can't be observed, whether or not it lives",
    point: "stop",
  },
  { name: "stop-fails", weight: 2, about: "a stop fails, before or after the kill", point: "stop" },
  { name: "stop-hangs", weight: 2, about: "a stop hangs", point: "stop" },
  { name: "stop-slow", weight: 4, about: "a stop takes long", point: "stop", draw: seconds },
  { name: "destroy-fails", weight: 3, about: "files can't be removed", point: "destroy" },
  { name: "destroy-half", weight: 4, about: "files are partly removed", point: "destroy" },
  { name: "destroy-hangs", weight: 4, about: "removing files hangs", point: "destroy" },
  { name: "observe-unknown", weight: 3, about: "an observation is unknown", point: "observe" },
  { name: "observe-fails", weight: 1, about: "observing fails", point: "observe" },
  { name: "observe-hangs", weight: 1, about: "observing hangs", point: "observe" },
  {
    name: "observe-late",
    weight: 1,
    about: "an observation is answered late",
    point: "observe",
    draw: seconds,
  },
  { name: "recover-fails", weight: 4, about: "an instance can't be observed on recovery", point: "recover" },
  { name: "recover-hangs", weight: 5, about: "observing it on recovery hangs", point: "recover" },
  { name: "connect-refused", weight: 1, about: "the keeper doesn't listen", point: "connect" },
  { name: "connect-hangs", weight: 1, about: "the keeper doesn't answer the hello", point: "connect" },
  { name: "connect-impostor", weight: 2, about: "another keeper answers in its place", point: "connect" },
  { name: "list-fails", weight: 2, about: "marked resources can't be listed", point: "list" },
  { name: "capacity-unknown", weight: 1, about: "the host can't be measured", point: "capacity" },
  { name: "capacity-hangs", weight: 1, about: "measuring the host hangs", point: "capacity" },
  {
    name: "freeze-fails",
    weight: 4,
    about: "freezing or finding the writer fails, done or not",
    point: "freeze",
  },
  ...SLEEP_FAULTS,
  ...FORK_FAULTS,
  ...DRIVE_FAULTS,
  // Faults of journals.
  { name: "journal-unreadable", weight: 16, about: "output on disk can't be read", point: "journals.read" },
  {
    name: "journal-end-unreadable",
    weight: 8,
    about: "an exit on disk can't be read",
    point: "journals.end",
  },
  {
    name: "journals-immovable",
    weight: 1,
    about: "journals can't be kept or removed",
    point: "journals.change",
  },
  {
    name: "journals-slow",
    weight: 8,
    about: "reading a journal takes long",
    point: "journals.end",
    draw: seconds,
  },
  // Faults inside a sandbox.
  {
    name: "keeper-dies",
    weight: 3,
    about: "PID 1 of a sandbox ends, and everything else in it",
    strike: (reach, { box }) => reach.killKeeper(box),
  },
  {
    name: "keeper-stopped",
    weight: 2,
    about: "everything in a sandbox is stopped for a while",
    strike: (reach, { box, ms }) => reach.stopKeeper(box, ms),
    draw: (random) => ({ ms: random.between(500, 30_000) }),
  },
  {
    name: "root-unmounted",
    weight: 2,
    about: "a sandbox loses its root, and may never get it back",
    strike: (reach, { box, flag }) => reach.unmountRoot(box, { forGood: flag }),
    draw: (random) => ({ flag: random.chance(0.4) }),
  },
  {
    name: "out-of-memory",
    weight: 4,
    about: "the kernel kills a command",
    strike: (reach, { box }) => reach.killForMemory(box),
  },
  {
    name: "timeout-forgotten",
    weight: 2,
    about: "a keeper doesn't enforce a timeout",
    point: "exec.timeout",
  },
  // Faults of links.
  {
    name: "links-drop",
    weight: 2,
    about: "the links of a sandbox break",
    strike: (reach, { box }) => reach.dropLinks(box),
  },
  {
    name: "links-half-open",
    weight: 2,
    about: "the links of a sandbox become silent, without a FIN",
    strike: (reach, { box }) => reach.silenceLinks(box),
  },
  { name: "request-lost", weight: 3, about: "the link breaks before a request arrives", point: "link" },
  { name: "answer-lost", weight: 4, about: "the link breaks before an answer arrives", point: "link" },
  {
    name: "answer-late",
    weight: 2,
    about: "an answer arrives late",
    point: "link",
    draw: (random) => ({ ms: random.between(200, 12_000) }),
  },
  {
    name: "link-half-open",
    weight: 3,
    about: "the link becomes silent with a request in transit",
    point: "link",
  },
  {
    name: "request-refused",
    weight: 3,
    about: "the keeper has no resources for a request",
    point: "link",
    draw: (random) => ({ on: random.pick(["start", "read", "cancel", "list", "file", "probe"]) }),
  },
  { name: "end-lost", weight: 4, about: "the event of an exec's end is lost", point: "exec.end" },
  {
    name: "end-late",
    weight: 3,
    about: "the event of an exec's end is late",
    point: "exec.end",
    draw: seconds,
  },
  {
    name: "end-twice",
    weight: 3,
    about: "the event of an exec's end is repeated",
    point: "exec.end",
    draw: seconds,
  },
] as const satisfies readonly Kind[];

export type FaultName = (typeof FAULTS)[number]["name"];

export const faultKind = (name: FaultName): Kind => {
  const kind = FAULTS.find((each) => each.name === name);
  if (kind === undefined) throw new Error(`there is no fault ${name}`);
  return kind;
};

export function drawParams(name: FaultName, random: Random): FaultParams {
  const kind = faultKind(name);
  const on = kind.point === "link" ? random.pick(["start", "start", null, ...REQUESTS]) : null;
  return {
    ms: random.between(0, 5_000),
    n: random.chance(0.7) ? 0 : random.between(1, 3),
    flag: random.chance(0.5),
    box: random.below(4),
    on,
    ...kind.draw?.(random),
  };
}
