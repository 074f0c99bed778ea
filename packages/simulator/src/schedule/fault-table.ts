import type { Point } from "./faults.ts";
import type { Random } from "./random.ts";
import {
  DRIVE_EFFECTS,
  DRIVE_STAGES,
  FORK_EFFECTS,
  FORK_STAGES,
  REQUESTS,
  SLEEP_EFFECTS,
  SLEEP_STAGES,
} from "./requests.ts";

/** What a fault is given, so that a schedule is data: how long, how many, which of two ways, whom it is about. */
export interface FaultParams {
  ms: number;
  /** Chances that are let pass, or the number of times. */
  n: number;
  flag: boolean;
  /** The n-th living instance. */
  box: number;
  /** A kind of request, or of write. */
  on: string | null;
}

/** What a fault can do to the world at once. */
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
  bendLease(n: number, downMs: number): boolean;
  bendRecord(n: number, downMs: number): boolean;
  harmCheckpoint(n: number, how: "damaged" | "foreign" | "lost"): boolean;
  harmSaved(n: number, how: "damaged" | "lost"): boolean;
  takeDrive(params: FaultParams): boolean;
  takeMount(n: number): boolean;
  strayDrive(): boolean;
  bendDrive(n: number, downMs: number): boolean;
}

interface Kind {
  readonly name: string;
  readonly weight: number;
  readonly about: string;
  /** Where it waits to strike. */
  readonly point?: Point;
  /** Or what it does at once; false where there was nothing to do it to. */
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

/** What can go wrong on the way into standby and out of it. */
const SLEEP_FAULTS = [
  { name: "freeze-hangs", weight: 1, about: "freezing is never answered, done or not", point: "freeze" },
  { name: "thaw-fails", weight: 2, about: "thawing fails, done or not", point: "thaw" },
  { name: "thaw-hangs", weight: 1, about: "thawing is never answered, done or not", point: "thaw" },
  { name: "measure-fails", weight: 1, about: "figures can't be read", point: "measure" },
  { name: "measure-hangs", weight: 1, about: "figures are never answered", point: "measure" },
  {
    name: "remount-fails",
    weight: 4,
    about: "a root can't be put back, or that is never answered",
    point: "remount",
  },
  { name: "dump-fails", weight: 2, about: "memory is half written", point: "checkpoint" },
  { name: "dump-hangs", weight: 2, about: "writing memory never ends", point: "checkpoint" },
  {
    name: "dump-answer-lost",
    weight: 2,
    about: "memory is written and that is answered as if it had failed",
    point: "checkpoint",
  },
  { name: "dump-slow", weight: 2, about: "writing memory takes long", point: "checkpoint", draw: seconds },
  { name: "restore-fails", weight: 2, about: "a restore fails before it made anything", point: "restore" },
  { name: "restore-hangs", weight: 2, about: "a restore is never answered, done or not", point: "restore" },
  {
    name: "restore-answer-lost",
    weight: 2,
    about: "a restore succeeds and is answered as if it had failed",
    point: "restore",
  },
  { name: "restore-half", weight: 2, about: "a restore fails and leaves half a tree", point: "restore" },
  { name: "restore-slow", weight: 2, about: "a restore takes long", point: "restore", draw: seconds },
  { name: "restore-stillborn", weight: 2, about: "what was restored dies at once", point: "restore" },
  {
    name: "restore-hollow",
    weight: 2,
    about: "a restore says that it succeeded, and the root, the keeper or a command is missing",
    point: "restore",
  },
  { name: "discard-fails", weight: 1, about: "old checkpoints can't be removed", point: "discard" },
  { name: "disk-unreadable", weight: 7, about: "the disk of a sleeper can't be opened", point: "files" },
  {
    name: "stop-asleep-does-nothing",
    weight: 2,
    about: "an instance whose memory is on disk can't be stopped",
    point: "stop.asleep",
  },
  {
    name: "checkpoint-truncated",
    weight: 2,
    about: "a checkpoint on disk is cut short",
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
    about: "a checkpoint is exchanged for that of another sandbox",
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
    about: "the server is killed after a write on that way",
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
    weight: 1,
    about: "the host loses power on that way",
    point: "commit.asleep",
    draw: anyStage,
  },
] as const satisfies readonly Kind[];

const anyForkStage = (random: Random) => ({
  ...soon(random),
  on: random.pick([null, ...FORK_STAGES]),
  n: random.chance(0.7) ? 0 : 1,
});

/** What can go wrong with checkpoints that are kept, and with what begins with them. */
const FORK_FAULTS = [
  { name: "save-fails", weight: 2, about: "a checkpoint is half copied", point: "save" },
  { name: "save-hangs", weight: 2, about: "copying a checkpoint never ends", point: "save" },
  {
    name: "save-answer-lost",
    weight: 2,
    about: "a checkpoint is copied and that is answered as if it had failed",
    point: "save",
  },
  { name: "save-slow", weight: 3, about: "copying a checkpoint takes long", point: "save", draw: seconds },
  {
    name: "unsave-fails",
    weight: 2,
    about: "kept checkpoints can't be removed, done or not",
    point: "unsave",
  },
  {
    name: "unsave-hangs",
    weight: 2,
    about: "removing kept checkpoints is never answered, done or not",
    point: "unsave",
  },
  { name: "fork-fails", weight: 2, about: "a fork fails when its files are copied", point: "fork" },
  { name: "fork-hangs", weight: 3, about: "a fork is never answered, done or not", point: "fork" },
  {
    name: "fork-answer-lost",
    weight: 2,
    about: "a fork succeeds and is answered as if it had failed",
    point: "fork",
  },
  { name: "fork-slow", weight: 2, about: "a fork takes long", point: "fork", draw: seconds },
  { name: "fork-hollow", weight: 3, about: "a fork lacks the commands that it should have", point: "fork" },
  {
    name: "saved-truncated",
    weight: 2,
    about: "a kept checkpoint on disk is cut short",
    strike: (reach, { box }) => reach.harmSaved(box, "damaged"),
  },
  {
    name: "saved-lost",
    weight: 2,
    about: "a kept checkpoint is gone from the disk",
    strike: (reach, { box }) => reach.harmSaved(box, "lost"),
  },
  {
    name: "crash-forking-before-write",
    weight: 3,
    about: "the server is killed before a write on the way to a kept checkpoint or a fork",
    point: "commit.fork",
    draw: anyForkStage,
  },
  {
    name: "crash-forking-after-write",
    weight: 3,
    about: "the server is killed after a write on that way",
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
    weight: 2,
    about: "the host reboots on the way to a kept checkpoint or a fork",
    point: "commit.fork",
    draw: anyForkStage,
  },
] as const satisfies readonly Kind[];

const anyDriveStage = (random: Random) => ({
  ...soon(random),
  on: random.pick([null, ...DRIVE_STAGES]),
  n: random.chance(0.7) ? 0 : 1,
});

/** What can go wrong with drives, and with what sandboxes have of them. */
const DRIVE_FAULTS = [
  { name: "mount-refused", weight: 3, about: "a drive can't be mounted at a path", point: "mount" },
  { name: "mount-half", weight: 3, about: "a path is closed and the drive is not over it", point: "mount" },
  {
    name: "mount-answer-lost",
    weight: 3,
    about: "a drive is mounted and that is answered as if it had failed",
    point: "mount",
  },
  { name: "mount-hangs", weight: 3, about: "a mount is never answered, done or not", point: "mount" },
  {
    name: "mount-astray",
    weight: 3,
    about: "a mount is said to be there, and another directory is seen inside",
    point: "mount",
  },
  { name: "mount-slow", weight: 4, about: "a mount takes long", point: "mount", draw: seconds },
  { name: "unmount-does-nothing", weight: 6, about: "a mount stays, and that is said", point: "unmount" },
  {
    name: "unmount-fails",
    weight: 6,
    about: "a drive is taken off and that is answered as if it had failed",
    point: "unmount",
  },
  { name: "unmount-hangs", weight: 4, about: "an unmount is never answered, done or not", point: "unmount" },
  { name: "make-fails", weight: 4, about: "a drive can't be made", point: "drive.make" },
  { name: "make-half", weight: 5, about: "a drive is half made", point: "drive.make" },
  {
    name: "make-hangs",
    weight: 4,
    about: "making a drive is never answered, done or not",
    point: "drive.make",
  },
  {
    name: "make-answer-lost",
    weight: 4,
    about: "a drive is made and that is answered as if it had failed",
    point: "drive.make",
  },
  { name: "undrive-fails", weight: 5, about: "a drive can't be removed", point: "drive.destroy" },
  { name: "undrive-half", weight: 5, about: "a part of a drive is removed", point: "drive.destroy" },
  {
    name: "undrive-hangs",
    weight: 5,
    about: "removing a drive is never answered, done or not",
    point: "drive.destroy",
  },
  { name: "drive-open-fails", weight: 2, about: "a drive can't be opened", point: "drive.open" },
  {
    name: "drives-unknown",
    weight: 3,
    about: "nobody can say what is there of drives",
    point: "drive.observe",
  },
  { name: "drives-observe-fails", weight: 1, about: "looking at drives fails", point: "drive.observe" },
  {
    name: "drives-observe-hangs",
    weight: 2,
    about: "looking at drives is never answered",
    point: "drive.observe",
  },
  { name: "drive-immeasurable", weight: 5, about: "measuring a drive never ends", point: "drive.usage" },
  { name: "drives-list-fails", weight: 2, about: "drives can't be listed", point: "drive.list" },
  {
    name: "drive-taken",
    weight: 4,
    about: "a drive is taken away behind everybody's back, for a while or for good",
    strike: (reach, params) => reach.takeDrive(params),
    draw: seconds,
  },
  {
    name: "mount-taken",
    weight: 3,
    about: "a mount is taken off behind everybody's back",
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
    weight: 1,
    about: "the record of a drive can't be read by the next server",
    strike: (reach, { box, ms }) => reach.bendDrive(box, ms),
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
    about: "the server is killed right after it made or removed a drive, or mounted or unmounted one",
    point: "effect",
    draw: (random) => ({ ...soon(random), on: random.pick(DRIVE_EFFECTS) }),
  },
  {
    name: "reboot-driving",
    weight: 3,
    about: "the host reboots after a write about a drive or a mount",
    point: "commit.drive",
    draw: anyDriveStage,
  },
] as const satisfies readonly Kind[];

/** What makes a sandbox that runs stop serving, and what then keeps it from being healed. */
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
 * Everything that can go wrong. To add one: a line here and, for one that waits at a point, what it does there. A run
 * in which one of these never struck does not pass, because it has shown nothing about it.
 */
export const FAULTS = [
  // The server.
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
    about: "the server is killed with a write in its hands",
    point: "commit",
    draw: (random) => ({ ...soon(random), n: random.below(8) }),
  },
  {
    name: "crash-after-write",
    weight: 5,
    about: "the server is killed when a write is done and nobody has heard of it",
    point: "commit",
    draw: (random) => ({ ...soon(random), n: random.below(8) }),
  },
  {
    name: "crash-after-effect",
    weight: 4,
    about: "the server is killed when a physical act is done and nothing of it is written",
    point: "effect",
    draw: soon,
  },
  {
    name: "restart",
    weight: 1,
    about: "the server is stopped in an orderly way and started again",
    strike: (reach, { ms }) => reach.restart(ms),
    draw: soon,
  },
  {
    name: "second-server",
    weight: 1,
    about: "another server is started on the same state while the first one lives",
    strike: (reach) => reach.secondServer(),
  },
  // The host.
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
    about: "the host loses power: what was not flushed is lost too",
    strike: (reach, { ms }) => reach.reboot({ powerCut: true, downMs: ms }),
    draw: soon,
  },
  {
    name: "power-cut-after-start",
    weight: 3,
    about: "the same, when the start of an exec is written and not flushed",
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
    about: "the disk runs out, because a sandbox fills it or for another reason",
    strike: (reach, params) => reach.lowDisk(params),
    draw: seconds,
  },
  {
    name: "store-slow",
    weight: 2,
    about: "a write takes long before it is done",
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
    about: "something with our marker appears that no record owns",
    strike: (reach, params) => reach.stray(params),
  },
  {
    name: "lease-unreadable",
    weight: 1,
    about: "a stored lease can't be read by the next server",
    strike: (reach, { box, ms }) => reach.bendLease(box, ms),
    draw: soon,
  },
  {
    name: "record-unreadable",
    weight: 1,
    about: "the record of a sandbox can't be read by the next server",
    strike: (reach, { box, ms }) => reach.bendRecord(box, ms),
    draw: soon,
  },
  // The driver's verbs.
  { name: "launch-refused", weight: 1, about: "a launch fails before it made anything", point: "launch" },
  { name: "launch-half", weight: 2, about: "a launch fails and leaves a directory", point: "launch" },
  {
    name: "launch-answer-lost",
    weight: 2,
    about: "a launch succeeds and is answered as if it had failed",
    point: "launch",
  },
  { name: "launch-hangs", weight: 2, about: "a launch succeeds and is never answered", point: "launch" },
  { name: "launch-slow", weight: 2, about: "a launch takes long", point: "launch", draw: seconds },
  { name: "launch-stillborn", weight: 1, about: "the instance dies at once", point: "launch" },
  { name: "stop-does-nothing", weight: 2, about: "a stop doesn't stop, and says so", point: "stop" },
  {
    name: "stop-unknown",
    weight: 3,
    about: "after a stop the instance can't be observed, whether or not it lives",
    point: "stop",
  },
  { name: "stop-fails", weight: 2, about: "a stop fails, before or after the kill", point: "stop" },
  { name: "stop-hangs", weight: 2, about: "a stop is never answered", point: "stop" },
  { name: "stop-slow", weight: 1, about: "a stop takes long", point: "stop", draw: seconds },
  { name: "destroy-fails", weight: 3, about: "files can't be removed", point: "destroy" },
  { name: "destroy-half", weight: 3, about: "a part of the files is removed", point: "destroy" },
  { name: "destroy-hangs", weight: 3, about: "removing files is never answered", point: "destroy" },
  { name: "observe-unknown", weight: 3, about: "the driver can't say what it sees", point: "observe" },
  { name: "observe-fails", weight: 1, about: "observing fails", point: "observe" },
  { name: "observe-hangs", weight: 1, about: "observing is never answered", point: "observe" },
  {
    name: "observe-late",
    weight: 1,
    about: "what was observed is told late",
    point: "observe",
    draw: seconds,
  },
  { name: "recover-fails", weight: 3, about: "an instance can't be looked at on recovery", point: "recover" },
  { name: "recover-hangs", weight: 3, about: "looking at it is never answered", point: "recover" },
  { name: "connect-refused", weight: 1, about: "the keeper doesn't listen", point: "connect" },
  { name: "connect-hangs", weight: 1, about: "the keeper doesn't greet", point: "connect" },
  { name: "connect-impostor", weight: 1, about: "another answers in its place", point: "connect" },
  { name: "list-fails", weight: 1, about: "what carries our marker can't be listed", point: "list" },
  { name: "capacity-unknown", weight: 1, about: "the host can't be measured", point: "capacity" },
  { name: "capacity-hangs", weight: 1, about: "measuring the host is never answered", point: "capacity" },
  {
    name: "freeze-fails",
    weight: 2,
    about: "freezing or asking who writes fails, done or not",
    point: "freeze",
  },
  ...SLEEP_FAULTS,
  ...FORK_FAULTS,
  ...DRIVE_FAULTS,
  // Journals.
  { name: "journal-unreadable", weight: 5, about: "output on disk can't be read", point: "journals.read" },
  {
    name: "journal-end-unreadable",
    weight: 4,
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
    weight: 3,
    about: "looking at a journal takes long",
    point: "journals.end",
    draw: seconds,
  },
  // Inside.
  {
    name: "keeper-dies",
    weight: 3,
    about: "PID 1 of a sandbox ends, and all else in it",
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
    weight: 3,
    about: "the kernel kills a command",
    strike: (reach, { box }) => reach.killForMemory(box),
  },
  {
    name: "timeout-forgotten",
    weight: 2,
    about: "a keeper doesn't enforce a timeout",
    point: "exec.timeout",
  },
  // The links.
  {
    name: "links-drop",
    weight: 2,
    about: "the links of a sandbox break",
    strike: (reach, { box }) => reach.dropLinks(box),
  },
  {
    name: "links-half-open",
    weight: 2,
    about: "the links of a sandbox fall silent, without a FIN",
    strike: (reach, { box }) => reach.silenceLinks(box),
  },
  { name: "request-lost", weight: 2, about: "the link breaks before a request arrives", point: "link" },
  { name: "answer-lost", weight: 3, about: "the link breaks before an answer arrives", point: "link" },
  {
    name: "answer-late",
    weight: 2,
    about: "an answer comes late",
    point: "link",
    draw: (random) => ({ ms: random.between(200, 12_000) }),
  },
  {
    name: "link-half-open",
    weight: 2,
    about: "the link falls silent with a request on its way",
    point: "link",
  },
  {
    name: "request-refused",
    weight: 2,
    about: "the keeper has no resources for a request",
    point: "link",
    draw: (random) => ({ on: random.pick(["start", "read", "cancel", "list", "file", "probe"]) }),
  },
  { name: "end-lost", weight: 2, about: "nobody is told of an exec's end", point: "exec.end" },
  { name: "end-late", weight: 2, about: "an exec's end is told late", point: "exec.end", draw: seconds },
  { name: "end-twice", weight: 1, about: "an exec's end is told twice", point: "exec.end", draw: seconds },
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
