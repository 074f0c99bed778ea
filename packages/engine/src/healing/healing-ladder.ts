import type { Cause, Numbers, Rung, Status } from "@holdfast/contract";

/** What is done to an instance, or left to its policy. */
export type Step = Exclude<Rung, "wait" | "hold">;

/** One time that a sandbox does not serve, from the moment it is noticed until it has served for a while again. */
export interface Episode {
  readonly startedAt: number;
  readonly cause: Cause;
  readonly step: Rung;
  /** Times are lived, not read off a clock: one that jumps must not make a sandbox look broken for an hour. */
  readonly stepMs: number;
  readonly unservedMs: number;
  readonly tries: Readonly<Partial<Record<Step, number>>>;
  /** The last thing that was done about it; null while it may heal by itself. */
  readonly by: Step | null;
}

export type Act =
  | { do: Step; attempt: number; cause: Cause }
  /** It has served for long enough: one more proof, and it is healed. */
  | { do: "confirm"; by: Step };

export interface Climb {
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
 * What can help, by cause, gentlest first. What is not here is not for this ladder: a drive that is gone is mounted again
 * by those who mount, a writer that was frozen for the disk's sake is let go by who froze it, what could not be looked at
 * is looked at again, and a death is dealt with by who saw it.
 */
const LADDERS: Readonly<Record<string, readonly Step[]>> = {
  keeper_stopped: ["thaw", "relink", "restart"],
  frozen: ["thaw", "restart"],
  root_unmounted: ["remount", "restart"],
  disk_unmounted: ["remount", "restart"],
  disk_failed: ["restart"],
  keeper_missing: ["restart"],
  instance_replaced: ["restart"],
  link_down: ["relink", "thaw", "restart"],
  keeper_silent: ["relink", "thaw", "restart"],
  proof_failed: ["relink", "thaw", "restart"],
  unproven: ["relink", "restart"],
};

/**
 * Causes that a busy host alone can bring about: nothing answers in time and everything is well. For them the instance is
 * ended only when it has not served for as long as nobody would wait.
 */
const MAY_PASS: ReadonlySet<string> = new Set(["link_down", "keeper_silent", "proof_failed", "unproven"]);

/** Whether something can be done about it here. */
export const isOnLadder = (cause: Cause | null): boolean =>
  cause !== null && LADDERS[cause.code] !== undefined;

export const KEEPS_BREAKING = "keeps_breaking";

/**
 * How to go on with a sandbox that does not serve: pure, asked every moment with what is seen then. It climbs only on
 * evidence of not serving; what a sandbox's processes do with their CPU is no such evidence. A step counts as what healed
 * it only when it then served for a while: one lucky probe ends nothing. Every step has a bound, the last one is the
 * machine's, which counts restarts durably; and one that had to be healed again and again goes there at once.
 */
export function climb(
  episode: Episode | null,
  seen: { status: Status; cause: Cause | null; healsLately: number },
  time: { now: number; passedMs: number },
  settings: Settings,
): Climb {
  const { status, cause } = seen;
  if (status === "degraded" && cause !== null) return unserving(episode, { ...seen, cause }, time, settings);
  if (episode === null || episode.by === null) return { episode: null, act: null };
  const stepMs = episode.stepMs + time.passedMs;
  // What was tried on the instance before says nothing of the next.
  if (status === "queued" || status === "creating")
    return { episode: { ...episode, stepMs, unservedMs: 0, tries: onlyRestarts(episode) }, act: null };
  if (status !== "ready") return { episode: null, act: null };
  if (episode.step !== "hold") return { episode: { ...episode, step: "hold", stepMs: 0 }, act: null };
  const isOver = stepMs >= settings.healHoldMs;
  return { episode: { ...episode, stepMs }, act: isOver ? { do: "confirm", by: episode.by } : null };
}

const onlyRestarts = ({ tries: { restart } }: Episode): Episode["tries"] =>
  restart === undefined ? {} : { restart };

function unserving(
  before: Episode | null,
  seen: { cause: Cause; healsLately: number },
  { now, passedMs }: { now: number; passedMs: number },
  settings: Settings,
): Climb {
  const { cause } = seen;
  const steps = LADDERS[cause.code];
  // Others deal with it, or nobody can see: no time passes and nothing is forgotten.
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
    // It has served in between.
    unservedMs: brokeAgain ? 0 : before.unservedMs + passedMs,
  };
  if (episode.stepMs < patienceOf(episode, settings)) return { episode, act: null };
  const step = nextStep(episode, steps, seen.healsLately, settings);
  if (step === null) return { episode, act: null };
  const attempt = (episode.tries[step] ?? 0) + 1;
  const told = seen.healsLately >= settings.healsMax ? breaking(cause, seen.healsLately, settings) : cause;
  return {
    episode: { ...episode, step, stepMs: 0, tries: { ...episode.tries, [step]: attempt }, by: step },
    act: { do: step, attempt, cause: told },
  };
}

/** How long the present step is given; twice as long when it is tried again. */
function patienceOf({ step, tries }: Episode, { healAfterMs, healTryMs }: Settings): number {
  if (step === "wait" || step === "hold") return healAfterMs;
  return healTryMs * 2 ** Math.min((tries[step] ?? 1) - 1, 4);
}

function nextStep(
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

function breaking(cause: Cause, heals: number, { healWindowMs }: Settings): Cause {
  const minutes = Math.round(healWindowMs / 60_000);
  const message = `It was healed ${heals} times within ${minutes} min and does not serve again: ${cause.message}`;
  return { code: KEEPS_BREAKING, message, cause };
}

/** When it is decided how to go on, in lived time from now. */
export function dueInMs(episode: Episode, settings: Settings): number {
  if (episode.step === "hold") return Math.max(0, settings.healHoldMs - episode.stepMs);
  const steps = LADDERS[episode.cause.code] ?? [];
  const waitsForEnd = nextStep(episode, steps, 0, settings) === null;
  const left = waitsForEnd
    ? settings.healGiveUpMs - episode.unservedMs
    : patienceOf(episode, settings) - episode.stepMs;
  return Math.max(0, left);
}

/** What has been done so far, for people. */
export function triedIn({ tries }: Episode): string {
  const done = Object.entries(tries).map(([step, count]) => (count === 1 ? step : `${step} ×${count}`));
  return done.length === 0 ? "nothing yet" : done.join(", ");
}
