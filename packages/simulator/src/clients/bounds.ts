import type { Numbers } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";

/** How long the engine gives its own clean-up, a late outcome and the reading of a journal, beyond its numbers. */
export const AFTERMATH_MS = 5_000;
/** How long calls that are under way may hold a standby up. */
const QUIET_MS = 5_000;
const ASLEEP: ReadonlySet<string> = new Set(["suspending", "standby", "waking"]);

/** Waiting for its turn, then being made. */
export const madeMs = ({ launchQueueMs, createDeadlineMs }: Numbers): number =>
  launchQueueMs + createDeadlineMs + AFTERMATH_MS;

/** What is a fork is copied first. */
const copiedMs = (record: SandboxRecord | undefined, { standbyDeadlineMs }: Numbers): number =>
  record?.forkedFrom == null ? 0 : standbyDeadlineMs;

/** Whether a wake may end in a launch: where only files are kept, or where its policy says so when memory is lost. */
const mayBeLaunched = ({ phase, spec }: SandboxRecord): boolean =>
  spec.lifecycle.onMemoryLoss === "cold-start" ||
  (phase.name === "suspending" && phase.kind === "files") ||
  (phase.name === "standby" && phase.checkpoint === null);

/** How long a call may be held before it reaches a sandbox that serves, or is refused. */
export function gateMs(record: SandboxRecord | undefined, numbers: Numbers): number {
  const { wakeDeadlineMs, proofDeadlineMs } = numbers;
  const isHeld = record !== undefined && ASLEEP.has(record.phase.name);
  const woken = wakeDeadlineMs + proofDeadlineMs;
  if (isHeld) return woken + (mayBeLaunched(record) ? madeMs(numbers) : 0);
  return madeMs(numbers) + copiedMs(record, numbers) + woken + madeMs(numbers);
}

/** Freezing, and where that fails, thawing and proving again. */
export const pauseMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  2 * gateMs(record, numbers) + 2 * numbers.freezeMs + numbers.proofDeadlineMs;

export const resumeMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  gateMs(record, numbers) + numbers.freezeMs + numbers.proofDeadlineMs;

/** What is left of it is ended, the host is measured and cleaned for it, and it is made. */
export const restartMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  numbers.stopAttemptMs + 3 * numbers.measureMs + numbers.deleteWaitMs + 2 * gateMs(record, numbers);

/** So many others may come before it, with the simulation's numbers. */
const TURNS = 3;

/** Until it is made, and awake where it wakes; the turns of others, checkpoints too, and its own; the end of the instance. */
export function standbyMs(numbers: Numbers): number {
  const { standbyDeadlineMs, wakeDeadlineMs, stopAttemptMs } = numbers;
  const made = madeMs(numbers) + standbyDeadlineMs;
  return made + wakeDeadlineMs + 2 * TURNS * triedMs(numbers) + stopAttemptMs + AFTERMATH_MS;
}

/** One way into standby, or one copy, with all that it can wait for, and the way back. */
function triedMs(numbers: Numbers): number {
  const { keeperCallMs, standbyDeadlineMs, freezeMs, proofDeadlineMs, stopAttemptMs } = numbers;
  return keeperCallMs + QUIET_MS + standbyDeadlineMs + 2 * freezeMs + proofDeadlineMs + stopAttemptMs;
}

/** Until a drive is made that was being made, and then opened and looked at. */
export const usableMs = ({ driveCallMs, observeEveryMs }: Numbers): number =>
  2 * driveCallMs + 2 * 2 * observeEveryMs;

/** The host is measured, the drive is made and looked at, or given up. */
export const driveMs = (numbers: Numbers): number => numbers.measureMs + usableMs(numbers) + AFTERMATH_MS;

/** A removal that is under way, then one of its own: taken from everybody, removed, looked at. */
export const undriveMs = (numbers: Numbers): number =>
  usableMs(numbers) + 2 * (numbers.maxSandboxes + 2) * numbers.driveCallMs + AFTERMATH_MS;

/** So many may be mounted or unmounted before it in one sandbox, each of which may have to be taken off again. */
const MOUNT_TURNS = 8;

/** The sandbox may fall asleep before it is its turn. */
export const mountMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  usableMs(numbers) +
  2 * gateMs(record, numbers) +
  MOUNT_TURNS * (2 * numbers.driveCallMs + numbers.proofDeadlineMs + AFTERMATH_MS);

/** Behind others that are made or removed, and behind a standby. */
export const saveMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  2 * gateMs(record, numbers) + standbyMs(numbers) + 2 * TURNS * triedMs(numbers);
