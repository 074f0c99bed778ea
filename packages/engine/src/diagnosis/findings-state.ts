import { CAUSES_GONE, CAUSES_MOUNT, CAUSES_SILENT } from "./cause-kinds.ts";
import type { Facts, Rule, Told } from "./diagnosis.ts";
import { commandsOf, healing, NOT_SERVING_YOU, seconds } from "./diagnosis-words.ts";

/** What is the matter with a sandbox by what it is, not by what runs in it. */

const JUMP_LATELY_MS = 600_000;
const LINKS_FLAP = 3;
const TIMEOUTS_MANY = 3;
const QUEUE_LONG_MS = 60_000;
const LINE_LONG_MS = 30_000;
/** The label by which a sandbox says what it is for. */
export const TASK_LABEL = "task_id";

function causeRule(kind: Rule["kind"], codes: ReadonlySet<string>, says: string): Rule {
  return {
    kind,
    severity: "problem",
    look: (facts) =>
      facts.status !== "degraded" || facts.cause === null || !codes.has(facts.cause.code)
        ? null
        : {
            summary: `${says}: ${facts.cause.message}`,
            evidence: [`The last observation or proof says ${facts.cause.code}.`],
            confidence: "high",
            holdfast: healing(facts),
            you: NOT_SERVING_YOU,
          },
  };
}

export const failed: Rule = {
  kind: "failed",
  severity: "problem",
  look: ({ status, cause, keptUntil, restartsOnLoss }) =>
    status !== "failed"
      ? null
      : {
          summary: `It failed: ${cause?.message ?? "the cause is not known"}`,
          evidence: [`The cause on record is ${cause?.code ?? "unknown"}.`],
          confidence: "high",
          holdfast:
            keptUntil === null
              ? "Its record is kept."
              : `Nothing of it runs. Record, files and what was last kept of its memory stay until ${new Date(keptUntil).toISOString()}, then all of it goes.`,
          you: [
            "Start it again on its files: 'holdfast restart NAME'.",
            "Take its files out: 'holdfast cp NAME:/path .'; they are read from its disk.",
            "Read what led to it: 'holdfast events --sandbox NAME'.",
            `Remove it: 'holdfast rm NAME'.${restartsOnLoss ? "" : " With onMemoryLoss 'cold-start' the next one starts again by itself."}`,
          ],
        },
};

export const stopping: Rule = {
  kind: "stopping",
  severity: "notice",
  look: ({ status, nextStopAt, cause, now, since }) =>
    status !== "stopping"
      ? null
      : {
          summary: `It is being deleted since ${seconds(now - since)}, and its absence has not been observed yet.`,
          evidence: cause === null ? [] : [cause.message],
          confidence: "high",
          holdfast:
            nextStopAt === null
              ? "It is being ended right now."
              : `It is tried again at ${new Date(nextStopAt).toISOString()}, for as long as it takes.`,
          you: [
            "See what is left of it: 'holdfast audit'.",
            "See each try: 'holdfast events --sandbox NAME'.",
          ],
        },
};

const FROZEN_CAUSES = new Set(["frozen", "disk_filler"]);
export const frozen: Rule = {
  kind: "frozen",
  severity: "problem",
  look: (facts) =>
    facts.status !== "degraded" || facts.cause === null || !FROZEN_CAUSES.has(facts.cause.code)
      ? null
      : {
          summary: `All its processes are frozen: ${facts.cause.message}`,
          evidence: ["Its cgroup is frozen, and nobody has paused it."],
          confidence: "high",
          holdfast:
            facts.cause.code === "disk_filler"
              ? "It is let go by itself once the disk has its reserve free again."
              : healing(facts),
          you:
            facts.cause.code === "disk_filler"
              ? ["Make room on the host's disk.", "Delete it if it is the one to go: 'holdfast rm NAME'."]
              : NOT_SERVING_YOU,
        },
};

export const paused: Rule = {
  kind: "frozen",
  severity: "fine",
  look: ({ status }) =>
    status !== "paused"
      ? null
      : {
          summary: "It is paused, as somebody asked for: its processes are in memory and don't run.",
          evidence: ["Its record says so, and its cgroup is frozen."],
          confidence: "high",
          holdfast: "It stays so until it is resumed or deleted.",
          you: ["Let it go on: 'holdfast resume NAME'."],
        },
};

const NOT_SERVING = new Set(["proof_failed", "unproven", "observation_unknown", "lease_lost", "disk_failed"]);

export const keeperGone = causeRule("keeper_gone", CAUSES_GONE, "Its keeper is gone");
export const keeperSilent = causeRule("keeper_silent", CAUSES_SILENT, "Its keeper does not answer");
export const mountGone = causeRule("mount_gone", CAUSES_MOUNT, "A mount of it is gone");
export const notServing = causeRule("not_serving", NOT_SERVING, "It does not serve");

export const linkFlapping: Rule = {
  kind: "link_flapping",
  severity: "problem",
  look: (facts) =>
    facts.linkLosses < LINKS_FLAP || (facts.status !== "ready" && facts.status !== "degraded")
      ? null
      : {
          summary: `Its link breaks again and again: ${facts.linkLosses} times within a minute.`,
          evidence: ["Each time a new link was made, and commands went on meanwhile."],
          confidence: "high",
          holdfast: "A lost link is made again at once, and costs no command anything.",
          you: [
            "Look whether the host is overloaded, or something kills connections on it.",
            "See when it began: 'holdfast events --sandbox NAME --type link.lost'.",
          ],
        },
};

export const repeatedTimeouts: Rule = {
  kind: "repeated_timeouts",
  severity: "problem",
  look: ({ ended }) =>
    ended.timedOut < TIMEOUTS_MANY
      ? null
      : {
          summary: `Its commands time out again and again: ${ended.timedOut} of the last ${ended.count}.`,
          evidence: [`All of them ended within ${seconds(ended.windowMs)}.`],
          confidence: "high",
          holdfast:
            "Each one was ended with its whole tree, and an alert tells of it where that goes on. The sandbox is left alone.",
          you: [
            "See which: 'holdfast execs NAME'.",
            "Give them more time, or find out what they wait for while one runs.",
          ],
        },
};

export const queueStarved: Rule = {
  kind: "queue_starved",
  severity: "problem",
  look: ({ status, execs, launches, now, since }) => {
    const oldest = Math.min(...execs.queued.map(({ createdAt }) => createdAt));
    if (execs.queued.length > 0 && now - oldest >= QUEUE_LONG_MS)
      return {
        summary: `${execs.queued.length} commands wait for their turn, the first for ${seconds(now - oldest)}: ${execs.running.length} others hold all places.`,
        evidence: commandsOf(execs.running).slice(0, 5),
        confidence: "high",
        holdfast: "Each gets its turn when one ends; one that waits too long is refused, never run late.",
        you: ["End what is not needed: 'holdfast execs NAME', 'holdfast kill EXEC'."],
      };
    if (status !== "queued" || now - since < LINE_LONG_MS) return null;
    return {
      summary: `It has waited for its launch for ${seconds(now - since)}, with ${launches.waiting} in the line.`,
      evidence: [
        launches.suspended
          ? "Launches are suspended: they keep failing."
          : "All places for launches are taken.",
      ],
      confidence: "high",
      holdfast: launches.suspended
        ? "One launch is tried every half minute; when it works, all go on."
        : "It is launched when its turn comes, or refused when it has waited too long.",
      you: ["See why: 'holdfast stats', 'holdfast events --type launches.suspended'."],
    };
  },
};

export const clockJump: Rule = {
  kind: "clock_jump",
  severity: "notice",
  look: ({ clockJump: jump, now }) =>
    jump === null || Math.abs(now - jump.at) > JUMP_LATELY_MS
      ? null
      : {
          summary: `The host's clock jumped by ${seconds(Math.abs(jump.byMs))} ${jump.byMs < 0 ? "back" : "forward, or the server stood still that long,"} lately.`,
          evidence: [`It was noticed at ${new Date(jump.at).toISOString()}; the host may have been asleep.`],
          confidence: "high",
          holdfast:
            "Nothing: timeouts of commands count lived time. Ages and dates of these minutes may look odd.",
          you: ["Look at the host's time service."],
        },
};

export const noTask: Rule = {
  kind: "no_task",
  severity: "notice",
  look: ({ labels, status }) =>
    labels[TASK_LABEL] !== undefined || status === "terminated"
      ? null
      : {
          summary: `Nobody has said what it is for: it has no label ${TASK_LABEL}.`,
          evidence: [`Its labels: ${Object.keys(labels).join(", ") || "none"}.`],
          confidence: "high",
          holdfast: "Nothing: it is flagged here.",
          you: [`Create sandboxes with a label: 'holdfast create --label ${TASK_LABEL}=…'.`],
        },
};

const SAYS: Partial<Record<Facts["status"], Told>> = {
  queued: fine("It waits for its turn to be launched.", "It is launched when its turn comes."),
  creating: fine(
    "It is being launched.",
    "It is proven before it is called ready, or fails within its deadline.",
  ),
  waking: fine("Its memory is being restored.", "Calls are held until it is proven."),
};
export const starting: Rule = {
  kind: "starting",
  severity: "fine",
  look: ({ status }) => SAYS[status] ?? null,
};

const ASLEEP: Partial<Record<Facts["status"], Told>> = {
  standby: fine("It sleeps: its memory is on disk and nothing of it runs.", "Any call wakes it."),
  suspending: fine("It is being put to sleep.", "A call that comes now is held, then served."),
};
export const asleep: Rule = {
  kind: "asleep",
  severity: "fine",
  look: ({ status }) => ASLEEP[status] ?? null,
};

const GONE = fine("It was deleted: nothing of it is left.", "Its record is kept for a while.");
export const gone: Rule = {
  kind: "gone",
  severity: "fine",
  look: ({ status }) => (status === "terminated" ? GONE : null),
};

/** It serves again, and has to for a while before that counts. */
export const recovering: Rule = {
  kind: "recovering",
  severity: "notice",
  look: ({ status, recovery }) =>
    status !== "ready" || recovery?.step !== "hold"
      ? null
      : {
          summary: "It did not serve a moment ago, was healed, and is watched for a while.",
          evidence: [recovery.message],
          confidence: "high",
          holdfast: `If it still serves at ${recovery.nextAt} it counts as healed; if not, the next step is taken.`,
          you: ["See what was done: 'holdfast events --sandbox NAME'."],
        },
};

function fine(summary: string, holdfast: string): Told {
  return { summary, evidence: ["Its record says so."], confidence: "high", holdfast, you: ["Nothing."] };
}
