/** Findings about the state of a sandbox, as opposed to the processes that run in it. */
import { iso, seconds } from "../lib/format.ts";
import { areFilesGone, CAUSES_GONE, CAUSES_MOUNT, CAUSES_SILENT } from "../model/cause-groups.ts";
import type { FilesLeft } from "../model/status.ts";
import type { Facts, FindingText, Rule } from "./diagnosis.ts";
import { describeCommands, describeHealing, NOT_SERVING_YOU } from "./phrases.ts";

const JUMP_LATELY_MS = 600_000;
const LINKS_FLAP = 3;
const TIMEOUTS_MANY = 3;
const QUEUE_LONG_MS = 60_000;
const LINE_LONG_MS = 30_000;

function causeRule(kind: Rule["kind"], codes: ReadonlySet<string>, heading: string): Rule {
  return {
    kind,
    severity: "problem",
    evaluate: (facts) =>
      facts.status !== "degraded" || facts.cause === null || !codes.has(facts.cause.code)
        ? null
        : {
            summary: `${heading}: ${facts.cause.message}`,
            evidence: [`The last observation or proof reported ${facts.cause.code}.`],
            confidence: "high",
            holdfast: describeHealing(facts),
            you: NOT_SERVING_YOU,
          },
  };
}

const KEPT: Record<FilesLeft["are"], string> = {
  kept: "Its record, its files and its last memory image, if it has one, are",
  unknown: "Its record, and what is left of its files, are",
  incomplete: "Some of its files are missing on the host. Its record and the rest are",
  removed: "It was never ready, so none of its files are left. Its record is",
};

const RESTART_OR_COPY = [
  "Restart it from its files: 'holdfast restart NAME'.",
  "Copy its files out: 'holdfast cp NAME:/path .' reads them from its disk.",
];

const WITH_FILES: Record<FilesLeft["are"], readonly string[]> = {
  kept: RESTART_OR_COPY,
  unknown: RESTART_OR_COPY,
  incomplete: [
    "Put back on the host what is missing, if it was moved: its files can then be read, and it can be restarted.",
  ],
  removed: ["Create the sandbox again: its name is free."],
};

export const failed: Rule = {
  kind: "failed",
  severity: "problem",
  evaluate: ({ status, cause, keptUntil, filesLeft, restartsOnLoss }) =>
    status !== "failed"
      ? null
      : {
          summary: `The sandbox failed: ${cause?.message ?? "the cause is not known"}`,
          evidence: [`The cause on record is ${cause?.code ?? "unknown"}.`],
          confidence: "high",
          holdfast:
            keptUntil === null
              ? "Its record is kept."
              : `None of its processes run. ${KEPT[filesLeft.are]} kept until ${iso(keptUntil)}, then deleted.`,
          you: [
            ...WITH_FILES[filesLeft.are],
            "Read its timeline: 'holdfast events --sandbox NAME'.",
            `Remove it: 'holdfast rm NAME'.${restartsOnLoss ? "" : " With onMemoryLoss 'cold-start' a sandbox restarts by itself."}`,
          ],
        },
};

export const stopping: Rule = {
  kind: "stopping",
  severity: "notice",
  evaluate: ({ status, nextStopAt, cause, now, since }) =>
    status !== "stopping"
      ? null
      : {
          summary: `The sandbox has been in deletion for ${seconds(now - since)}; its absence has not been observed yet.`,
          evidence: cause === null ? [] : [cause.message],
          confidence: "high",
          holdfast:
            nextStopAt === null
              ? "A stop attempt is in progress."
              : `The next stop attempt is at ${iso(nextStopAt)}; attempts continue until it is gone.`,
          you: [
            "List what is left of it: 'holdfast audit'.",
            "Read each attempt: 'holdfast events --sandbox NAME'.",
          ],
        },
};

const FROZEN_CAUSES = new Set(["frozen", "disk_filler"]);
export const frozen: Rule = {
  kind: "frozen",
  severity: "problem",
  evaluate: (facts) =>
    facts.status !== "degraded" || facts.cause === null || !FROZEN_CAUSES.has(facts.cause.code)
      ? null
      : {
          summary: `All processes of the sandbox are frozen: ${facts.cause.message}`,
          evidence: ["Its cgroup is frozen, and no pause was requested."],
          confidence: "high",
          holdfast:
            facts.cause.code === "disk_filler"
              ? "The sandbox is thawed once the disk has its reserve free again."
              : describeHealing(facts),
          you:
            facts.cause.code === "disk_filler"
              ? ["Free space on the host's disk.", "Delete it if it is not needed: 'holdfast rm NAME'."]
              : NOT_SERVING_YOU,
        },
};

export const paused: Rule = {
  kind: "frozen",
  severity: "fine",
  evaluate: ({ status }) =>
    status !== "paused"
      ? null
      : {
          summary: "The sandbox is paused on request: its processes are in memory and do not run.",
          evidence: ["Its record says paused, and its cgroup is frozen."],
          confidence: "high",
          holdfast: "Nothing: the sandbox stays paused until it is resumed or deleted.",
          you: ["Resume it: 'holdfast resume NAME'."],
        },
};

const NOT_SERVING = new Set([
  ...["proof_failed", "unproven", "observation_unknown", "lease_lost", "disk_failed"],
  ...["cgroup_gone", "journals_gone", "socket_gone"],
]);

export const filesGone: Rule = {
  kind: "files_gone",
  severity: "problem",
  evaluate: ({ status, cause }) =>
    status !== "degraded" || !areFilesGone(cause)
      ? null
      : {
          summary: `What the sandbox writes to is gone: ${cause.message}`,
          evidence: [`The last observation reported ${cause.code}.`],
          confidence: "high",
          holdfast:
            "Nothing by itself: no step can bring back what is gone, and ending the instance would lose what its processes still hold.",
          you: [
            "Put back on the host what was moved: the sandbox then serves again by itself.",
            "If it is lost, delete the sandbox: 'holdfast rm NAME'. A restart is refused, because it needs these files.",
            "Read its timeline: 'holdfast events --sandbox NAME'.",
          ],
        },
};

export const keeperGone = causeRule("keeper_gone", CAUSES_GONE, "The sandbox's keeper is gone");
export const keeperSilent = causeRule("keeper_silent", CAUSES_SILENT, "The sandbox's keeper does not answer");
export const mountGone = causeRule("mount_gone", CAUSES_MOUNT, "A mount of the sandbox is gone");
export const notServing = causeRule("not_serving", NOT_SERVING, "The sandbox is not serving");

export const linkFlapping: Rule = {
  kind: "link_flapping",
  severity: "problem",
  evaluate: (facts) =>
    facts.linkLosses < LINKS_FLAP || (facts.status !== "ready" && facts.status !== "degraded")
      ? null
      : {
          summary: `The link to the sandbox keeps breaking: ${facts.linkLosses} times within a minute.`,
          evidence: ["A new link was made each time; commands kept running meanwhile."],
          confidence: "high",
          holdfast: "A lost link is re-established at once; commands are not affected.",
          you: [
            "Check whether the host is overloaded, or whether something on it closes connections.",
            "Find out when it began: 'holdfast events --sandbox NAME --type link.lost'.",
          ],
        },
};

export const repeatedTimeouts: Rule = {
  kind: "repeated_timeouts",
  severity: "problem",
  evaluate: ({ ended }) =>
    ended.timedOut < TIMEOUTS_MANY
      ? null
      : {
          summary: `Commands of the sandbox keep timing out: ${ended.timedOut} of the last ${ended.count}.`,
          evidence: [`They all ended within the last ${seconds(ended.windowMs)}.`],
          confidence: "high",
          holdfast:
            "Each command was ended with its whole process tree; an alert is raised if it continues. The sandbox itself is not touched.",
          you: [
            "List them: 'holdfast execs NAME'.",
            "Give them longer timeouts, or diagnose the sandbox while one runs.",
          ],
        },
};

export const queueStarved: Rule = {
  kind: "queue_starved",
  severity: "problem",
  evaluate: ({ status, execs, launches, now, since }) => {
    const oldest = Math.min(...execs.queued.map(({ createdAt }) => createdAt));
    if (execs.queued.length > 0 && now - oldest >= QUEUE_LONG_MS)
      return {
        summary: `${execs.queued.length} commands are queued, the first for ${seconds(now - oldest)}: ${execs.running.length} running commands take all slots.`,
        evidence: describeCommands(execs.running).slice(0, 5),
        confidence: "high",
        holdfast:
          "Queued commands start as running ones end; a command that is queued for too long is rejected.",
        you: ["End commands that are not needed: 'holdfast execs NAME', 'holdfast kill EXEC'."],
      };
    if (status !== "queued" || now - since < LINE_LONG_MS) return null;
    return {
      summary: `The sandbox has been queued for its launch for ${seconds(now - since)}; ${launches.waiting} are in the queue.`,
      evidence: [
        launches.suspended
          ? "Launches are suspended because they keep failing."
          : "All launch slots are taken.",
      ],
      confidence: "high",
      holdfast: launches.suspended
        ? "One launch is attempted every half minute; when it succeeds, all launches resume."
        : "The sandbox is launched when its turn comes, or rejected when it has waited too long.",
      you: ["Find out why: 'holdfast stats', 'holdfast events --type launches.suspended'."],
    };
  },
};

export const clockJump: Rule = {
  kind: "clock_jump",
  severity: "notice",
  evaluate: ({ clockJump: jump, now }) =>
    jump === null || Math.abs(now - jump.at) > JUMP_LATELY_MS
      ? null
      : {
          summary: `The host's clock jumped by ${seconds(Math.abs(jump.byMs))} ${jump.byMs < 0 ? "back" : "forward, or the server was suspended for that long,"} recently.`,
          evidence: [`The jump was detected at ${iso(jump.at)}; the host may have been suspended.`],
          confidence: "high",
          holdfast:
            "Nothing: timeouts of commands do not depend on the clock. Ages and dates around the jump may look odd.",
          you: ["Check the host's time service."],
        },
};

export const noTask: Rule = {
  kind: "no_task",
  severity: "notice",
  evaluate: ({ labels, expectedLabels, status }) => {
    const missing = expectedLabels.filter((label) => labels[label] === undefined);
    return missing.length === 0 || status === "terminated"
      ? null
      : {
          summary: `The sandbox lacks the ${missing.length === 1 ? "label" : "labels"} ${missing.join(", ")}.`,
          evidence: [`Its labels: ${Object.keys(labels).join(", ") || "none"}.`],
          confidence: "high",
          holdfast: "Nothing: it is only reported here.",
          you: [`Create sandboxes with a label: 'holdfast create --label ${missing[0]}=…'.`],
        };
  },
};

const STARTING: Partial<Record<Facts["status"], FindingText>> = {
  queued: fine("The sandbox is queued for its launch.", "The sandbox is launched when its turn comes."),
  creating: fine(
    "The sandbox is being launched.",
    "The sandbox is proven before it becomes ready, or fails within its deadline.",
  ),
  waking: fine("The memory of the sandbox is being restored.", "Calls are held until the sandbox is proven."),
};
export const starting: Rule = {
  kind: "starting",
  severity: "fine",
  evaluate: ({ status }) => STARTING[status] ?? null,
};

const ASLEEP: Partial<Record<Facts["status"], FindingText>> = {
  standby: fine(
    "The sandbox is in standby: its memory is on disk and no process runs.",
    "Any call wakes it.",
  ),
  suspending: fine("The sandbox is being suspended.", "Calls are held, then served."),
};
export const asleep: Rule = {
  kind: "asleep",
  severity: "fine",
  evaluate: ({ status }) => ASLEEP[status] ?? null,
};

const GONE = fine("The sandbox was deleted; nothing of it is left.", "Its record is kept for a while.");
export const gone: Rule = {
  kind: "gone",
  severity: "fine",
  evaluate: ({ status }) => (status === "terminated" ? GONE : null),
};

/** Reports a sandbox that serves again but has not yet served long enough to be regarded as healed. */
export const recovering: Rule = {
  kind: "recovering",
  severity: "notice",
  evaluate: ({ status, recovery }) =>
    status !== "ready" || recovery?.step !== "hold"
      ? null
      : {
          summary: "The sandbox recovered a moment ago and is on probation.",
          evidence: [recovery.message],
          confidence: "high",
          holdfast: `If the sandbox still serves at ${recovery.nextAt}, it counts as healed; otherwise the next step follows.`,
          you: ["Read the steps taken: 'holdfast events --sandbox NAME'."],
        },
};

function fine(summary: string, holdfast: string): FindingText {
  return { summary, evidence: ["Its record says so."], confidence: "high", holdfast, you: ["Nothing."] };
}
