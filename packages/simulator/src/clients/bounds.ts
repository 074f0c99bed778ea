import type { Numbers } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";

/**
 * Time allowed on top of the configured deadlines: for the engine's clean-up, for outcomes that arrive late, and for
 * reading journals.
 */
export const AFTERMATH_MS = 5_000;
const ASLEEP: ReadonlySet<string> = new Set(["suspending", "standby", "waking"]);

/** Maximum duration of a launch: waiting in the launch queue, then launching. */
export const madeMs = ({ launchQueueMs, createDeadlineMs }: Numbers): number =>
  launchQueueMs + createDeadlineMs + AFTERMATH_MS;

/**
 * Maximum duration of copying the checkpoint of a fork, which happens before the fork's launch; 0 for other sandboxes.
 */
const copiedMs = (record: SandboxRecord | undefined, { standbyDeadlineMs }: Numbers): number =>
  record?.forkedFrom == null ? 0 : standbyDeadlineMs;

/**
 * Returns whether a wake may launch the sandbox instead of restoring it: if standby keeps only files, or if the policy
 * allows a cold start after the memory was lost.
 */
const mayBeLaunched = ({ phase, spec }: SandboxRecord): boolean =>
  spec.lifecycle.onMemoryLoss === "cold-start" ||
  (phase.name === "suspending" && phase.kind === "files") ||
  (phase.name === "standby" && phase.checkpoint === null);

/** Maximum time for which a call waits until its sandbox serves, or until the call is refused. */
export function gateMs(record: SandboxRecord | undefined, numbers: Numbers): number {
  const { wakeDeadlineMs, proofDeadlineMs } = numbers;
  const isHeld = record !== undefined && ASLEEP.has(record.phase.name);
  const woken = wakeDeadlineMs + proofDeadlineMs;
  if (isHeld) return woken + (mayBeLaunched(record) ? madeMs(numbers) : 0);
  return madeMs(numbers) + copiedMs(record, numbers) + woken + madeMs(numbers);
}

/** Maximum duration of a pause: freezing and, if that fails, thawing and proving again. */
export const pauseMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  2 * gateMs(record, numbers) + 2 * numbers.freezeMs + numbers.proofDeadlineMs;

export const resumeMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  gateMs(record, numbers) + numbers.freezeMs + numbers.proofDeadlineMs;

/** Maximum duration of a restart: ending the old instance, measuring and cleaning the host, and launching. */
export const restartMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  numbers.stopAttemptMs + 3 * numbers.measureMs + numbers.deleteWaitMs + 2 * gateMs(record, numbers);

/**
 * Maximum number of other requests for the same sandbox that the engine handles before the request whose duration is
 * computed. The value was chosen for the numbers that the simulation uses.
 */
const TURNS = 3;

/**
 * Maximum duration of a standby. It includes: launching the sandbox, or waking it if asleep; other requests that come
 * first, including checkpoints; the suspension itself; and ending the instance.
 */
export function standbyMs(numbers: Numbers): number {
  const { standbyDeadlineMs, wakeDeadlineMs, stopAttemptMs } = numbers;
  const made = madeMs(numbers) + standbyDeadlineMs;
  return made + wakeDeadlineMs + 2 * TURNS * triedMs(numbers) + stopAttemptMs + AFTERMATH_MS;
}

/**
 * Maximum duration of one attempt to suspend or copy a sandbox. It includes everything that the attempt may wait for,
 * and the time until the sandbox serves again.
 */
function triedMs(numbers: Numbers): number {
  const { keeperCallMs, quietWaitMs, standbyDeadlineMs, freezeMs, proofDeadlineMs, stopAttemptMs } = numbers;
  return keeperCallMs + 2 * quietWaitMs + standbyDeadlineMs + 2 * freezeMs + proofDeadlineMs + stopAttemptMs;
}

/** Maximum time until a drive is usable: completing its creation, then opening and observing it. */
export const usableMs = ({ driveCallMs, observeEveryMs }: Numbers): number =>
  2 * driveCallMs + 2 * 2 * observeEveryMs;

/**
 * Maximum duration of creating a drive: measuring the host, then creating and observing the drive, or removing it after
 * a failure.
 */
export const driveMs = (numbers: Numbers): number => numbers.measureMs + usableMs(numbers) + AFTERMATH_MS;

/**
 * Maximum duration of deleting a drive: a removal that is already in progress, then unmounting the drive everywhere,
 * removing it and observing its absence.
 */
export const undriveMs = (numbers: Numbers): number =>
  usableMs(numbers) + 2 * (numbers.maxSandboxes + 2) * numbers.driveCallMs + AFTERMATH_MS;

/**
 * Maximum number of other mounts and unmounts in the sandbox that are handled before the mount whose duration is
 * computed. Each of them may have to be rolled back.
 */
const MOUNT_TURNS = 8;

/** Maximum duration of a mount. It includes a wake, because the sandbox may fall asleep before the mount begins. */
export const mountMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  usableMs(numbers) +
  2 * gateMs(record, numbers) +
  MOUNT_TURNS * (2 * numbers.driveCallMs + numbers.proofDeadlineMs + AFTERMATH_MS);

/** Maximum duration of saving a checkpoint, including a standby and other checkpoint operations that come first. */
export const saveMs = (record: SandboxRecord | undefined, numbers: Numbers): number =>
  2 * gateMs(record, numbers) + standbyMs(numbers) + 2 * TURNS * triedMs(numbers);
