import { seconds } from "../lib/format.ts";
import type { ExecFact, Facts } from "./diagnosis.ts";
import { type ProcessActivity, plain } from "./process-activity.ts";

export const CANCEL = "End the command and keep the sandbox: 'holdfast kill EXEC'.";

export const NOT_SERVING_YOU = [
  "See each check: 'holdfast verify NAME'.",
  "Read its timeline: 'holdfast events --sandbox NAME'.",
  "If you can't wait: 'holdfast restart NAME' restarts it from its files, 'holdfast rm NAME' deletes it in any state.",
];

/** Describes what Holdfast does about a sandbox that is not serving. */
export function describeHealing({ recovery, restartsOnLoss }: Facts): string {
  if (recovery === null) return "The sandbox is observed every few seconds; nothing else is done yet.";
  const end = restartsOnLoss
    ? "If no step helps, the sandbox is restarted from its files, a few times at most."
    : "If no step helps, the sandbox fails, and its files stay where they are.";
  return `${recovery.message} The next decision is due at ${recovery.nextAt}. ${end}`;
}

/**
 * Describes which command times out first and when. Considers the commands that own the given processes, or all running
 * commands if the owners are not known.
 */
export function describeTimeouts(
  all: readonly ExecFact[],
  now: number,
  of: readonly ProcessActivity[] = [],
): string {
  const ids = new Set(of.map(({ process }) => process.execId));
  const own = all.filter(({ id }) => ids.has(id));
  const running = own.length > 0 ? own : all;
  if (running.length === 0) return "Nothing by itself: no running command owns these processes.";
  const bounded = running.flatMap(({ id, endsBy }) => (endsBy === null ? [] : [{ id, endsBy }]));
  const [first] = bounded.sort((a, b) => a.endsBy - b.endsBy);
  if (first === undefined)
    return "Nothing by itself: commands may run for as long as they need, and no running command has a timeout.";
  const left = Math.max(0, first.endsBy - now);
  return `Nothing before a command times out: exec ${first.id} is first, after about ${seconds(left)} more of running time, and is then ended with its whole process tree.`;
}

export const describeCommands = (running: readonly ExecFact[]): string[] =>
  running.map(({ id, command }) => `exec ${id}: ${plain(command).slice(0, 80)}`);
