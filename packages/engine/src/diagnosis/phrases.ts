import type { ExecFact, Facts } from "./diagnosis.ts";
import { plain, type Sign } from "./signs.ts";

export const seconds = (ms: number): string =>
  ms < 120_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`;

export const percent = (share: number): string => `${Math.round(share * 100)} %`;

export const list = (names: readonly string[], most = 5): string =>
  names.length <= most
    ? names.join(", ")
    : `${names.slice(0, most).join(", ")} and ${names.length - most} more`;

export const CANCEL = "End the command and keep the sandbox: 'holdfast kill EXEC'.";

export const NOT_SERVING_YOU = [
  "See each check: 'holdfast verify NAME'.",
  "Read its timeline: 'holdfast events --sandbox NAME'.",
  "If you can't wait: 'holdfast restart NAME' starts it anew on its files, 'holdfast rm NAME' ends it from any state.",
];

/** What Holdfast does about a sandbox that does not serve. */
export function healing({ recovery, restartsOnLoss }: Facts): string {
  if (recovery === null) return "It is looked at every few seconds; nothing else is done yet.";
  const end = restartsOnLoss
    ? "If nothing helps it is started again on the same files, a few times at most."
    : "If nothing helps it is failed, with everything kept.";
  return `${recovery.message} It is decided how to go on at ${recovery.nextAt}. ${end}`;
}

/** When the commands end by themselves that these processes belong to; any of them, where that is not known. */
export function endings(all: readonly ExecFact[], now: number, of: readonly Sign[] = []): string {
  const ids = new Set(of.map(({ process }) => process.execId));
  const own = all.filter(({ id }) => ids.has(id));
  const running = own.length > 0 ? own : all;
  if (running.length === 0) return "Nothing by itself: no command is under way that it could belong to.";
  const bounded = running.flatMap(({ id, endsBy }) => (endsBy === null ? [] : [{ id, endsBy }]));
  const [first] = bounded.sort((a, b) => a.endsBy - b.endsBy);
  if (first === undefined)
    return "Nothing by itself: a command may take as long as it likes, and none that is under way has a timeout.";
  const left = Math.max(0, first.endsBy - now);
  return `Nothing before a command's own timeout: that of exec ${first.id} comes first, in about ${seconds(left)} of running, and ends its whole tree.`;
}

export const commandsOf = (running: readonly ExecFact[]): string[] =>
  running.map(({ id, command }) => `exec ${id}: ${plain(command).slice(0, 80)}`);
