import type { Cause, Numbers, Rung, Status } from "@holdfast/contract";

/** A healing step: an action on an instance, or its restart by policy. */
export type Step = Exclude<Rung, "wait" | "hold">;

/**
 * One period in which a sandbox does not serve. If no healing step was taken, it ends as soon as the sandbox serves
 * again; otherwise only when the sandbox has served for `healHoldMs` and was then proven.
 */
export interface Episode {
  readonly startedAt: number;
  readonly cause: Cause;
  readonly step: Rung;
  /**
   * How long the current step has lasted. Durations are sums of ticks and not differences between clock readings: a
   * clock jump must not make a sandbox look broken for an hour.
   */
  readonly stepMs: number;
  /** How long the sandbox has not served, as a sum of ticks. */
  readonly unservedMs: number;
  readonly tries: Readonly<Partial<Record<Step, number>>>;
  /** The last step taken; null while the sandbox may heal by itself. */
  readonly by: Step | null;
}

export type Act =
  | { do: Step; attempt: number; cause: Cause }
  /** The sandbox has served for long enough: after one more proof it is regarded as healed. */
  | { do: "confirm"; by: Step };

interface Decision {
  episode: Episode | null;
  act: Act | null;
}

type Settings = Pick<
  Numbers,
  | "healAfterMs"
  | "healTryMs"
  | "healTriesPerRung"
  | "healHoldMs"
  | "healGiveUpMs"
  | "healsMax"
  | "healWindowMs"
>;

/**
 * The steps that can help, by cause, gentlest first. Causes without an entry are handled by other parts: `Mounts`
 * mounts a missing drive again, `DiskGuard` thaws the writers it froze, `Observer` repeats a failed observation, and
 * `InstanceLoss` handles the death of an instance. For files that are gone (`areFilesGone`) no step exists: a restart
 * could not start the sandbox again, and a directory that a person moved may come back.
 */
const LADDERS: Readonly<Record<string, readonly Step[]>> = {
  keeper_stopped: ["thaw", "relink", "restart"],
  frozen: ["thaw", "restart"],
  root_unmounted: ["remount", "restart"],
  disk_unmounted: ["remount", "restart"],
  disk_failed: ["restart"],
  keeper_missing: ["restart"],
  instance_replaced: ["restart"],
  cgroup_gone: ["restart"],
  journals_gone: ["restart"],
  socket_gone: ["restart"],
  link_down: ["relink", "thaw", "restart"],
  keeper_silent: ["relink", "thaw", "restart"],
  proof_failed: ["relink", "thaw", "restart"],
  unproven: ["relink", "restart"],
};

/**
 * Causes that an overloaded host alone can produce, because everything responds too late although nothing is broken.
 * For these causes the instance is ended only after the sandbox has not served for `healGiveUpMs`.
 */
const MAY_PASS: ReadonlySet<string> = new Set(["link_down", "keeper_silent", "proof_failed", "unproven"]);

export const KEEPS_BREAKING = "keeps_breaking";

/**
 * Decides the next healing step of a sandbox that does not serve. The function is pure and is called on every tick with
 * the current status. It acts only on evidence of not serving; the CPU use of a sandbox's processes is no such
 * evidence. A step counts as successful only after the sandbox has then served for `healHoldMs`, so a single successful
 * probe does not end an episode. The duration and the number of attempts of each step are limited. The last step is a
 * restart, which the sandbox machine counts in the record. A sandbox that was healed `healsMax` times within the window
 * is restarted at once.
 */
export function nextStep(
  episode: Episode | null,
  seen: { status: Status; cause: Cause | null; healsLately: number },
  time: { now: number; passedMs: number },
  settings: Settings,
): Decision {
  const { status, cause } = seen;
  if (status === "degraded" && cause !== null)
    return stepWhileUnserving(episode, { ...seen, cause }, time, settings);
  if (episode === null || episode.by === null) return { episode: null, act: null };
  const stepMs = episode.stepMs + time.passedMs;
  // A new instance starts without the step counts of the previous one; only restarts are still counted.
  if (status === "queued" || status === "creating")
    return { episode: { ...episode, stepMs, unservedMs: 0, tries: onlyRestarts(episode) }, act: null };
  if (status !== "ready") return { episode: null, act: null };
  if (episode.step !== "hold") return { episode: { ...episode, step: "hold", stepMs: 0 }, act: null };
  const isOver = stepMs >= settings.healHoldMs;
  return { episode: { ...episode, stepMs }, act: isOver ? { do: "confirm", by: episode.by } : null };
}

const onlyRestarts = ({ tries: { restart } }: Episode): Episode["tries"] =>
  restart === undefined ? {} : { restart };

function stepWhileUnserving(
  before: Episode | null,
  seen: { cause: Cause; healsLately: number },
  { now, passedMs }: { now: number; passedMs: number },
  settings: Settings,
): Decision {
  const { cause } = seen;
  const steps = LADDERS[cause.code];
  // If another part handles this cause, or the state is not known, the episode stays unchanged: no time is added to it.
  if (steps === undefined) return { episode: before, act: null };
  if (before === null)
    return {
      episode: { startedAt: now, cause, step: "wait", stepMs: 0, unservedMs: 0, tries: {}, by: null },
      act: null,
    };
  const brokeAgain = before.step === "hold";
  const episode: Episode = {
    ...before,
    cause,
    step: brokeAgain ? "wait" : before.step,
    stepMs: brokeAgain ? 0 : before.stepMs + passedMs,
    // If the sandbox broke again, it had served in between, so the time starts again at 0.
    unservedMs: brokeAgain ? 0 : before.unservedMs + passedMs,
  };
  if (episode.stepMs < patienceOf(episode, settings)) return { episode, act: null };
  const step = chooseStep(episode, steps, seen.healsLately, settings);
  if (step === null) return { episode, act: null };
  const attempt = (episode.tries[step] ?? 0) + 1;
  return {
    episode: { ...episode, step, stepMs: 0, tries: { ...episode.tries, [step]: attempt }, by: step },
    act: { do: step, attempt, cause: reasonFor(cause, seen.healsLately, settings) },
  };
}

/**
 * Returns the reason to end an instance, judged by a new observation after a restart was decided. Returns null if the
 * current cause does not require a restart, for example because a stopped keeper runs again. A link that is down
 * requires a restart only after the sandbox has not served for `healGiveUpMs`.
 */
export function reasonToEnd(
  episode: Episode,
  seen: { status: Status; cause: Cause | null; healsLately: number },
  settings: Settings,
): Cause | null {
  const { status, cause, healsLately } = seen;
  const steps = cause === null ? undefined : LADDERS[cause.code];
  if (status !== "degraded" || cause === null || steps === undefined) return null;
  const step = chooseStep({ ...episode, cause }, steps, healsLately, settings);
  return step === "restart" ? reasonFor(cause, healsLately, settings) : null;
}

const reasonFor = (cause: Cause, healsLately: number, settings: Settings): Cause =>
  healsLately >= settings.healsMax ? keepsBreaking(cause, healsLately, settings) : cause;

/** Returns how long the current step may take. The time doubles with each further attempt. */
function patienceOf({ step, tries }: Episode, { healAfterMs, healTryMs }: Settings): number {
  if (step === "wait" || step === "hold") return healAfterMs;
  return healTryMs * 2 ** Math.min((tries[step] ?? 1) - 1, 4);
}

function chooseStep(
  { cause, tries, unservedMs }: Episode,
  steps: readonly Step[],
  healsLately: number,
  settings: Settings,
): Step | null {
  if (healsLately >= settings.healsMax) return "restart";
  const gentle = steps.find((step) => step !== "restart" && (tries[step] ?? 0) < settings.healTriesPerRung);
  if (gentle !== undefined) return gentle;
  return MAY_PASS.has(cause.code) && unservedMs < settings.healGiveUpMs ? null : "restart";
}

function keepsBreaking(cause: Cause, heals: number, { healWindowMs }: Settings): Cause {
  const minutes = Math.round(healWindowMs / 60_000);
  const message = `The sandbox was healed ${heals} times within ${minutes} min and stopped serving again: ${cause.message}`;
  return { code: KEEPS_BREAKING, message, cause };
}

/** Returns the time until the next decision. Like the durations of an episode, it is a sum of ticks. */
export function dueInMs(episode: Episode, settings: Settings): number {
  if (episode.step === "hold") return Math.max(0, settings.healHoldMs - episode.stepMs);
  const steps = LADDERS[episode.cause.code] ?? [];
  const waitsForEnd = chooseStep(episode, steps, 0, settings) === null;
  const left = waitsForEnd
    ? settings.healGiveUpMs - episode.unservedMs
    : patienceOf(episode, settings) - episode.stepMs;
  return Math.max(0, left);
}

/** Lists the steps tried so far, in a sentence for people. */
export function describeTries({ tries }: Episode): string {
  const done = Object.entries(tries).map(([step, count]) => (count === 1 ? step : `${step} ×${count}`));
  return done.length === 0 ? "nothing yet" : done.join(", ");
}
