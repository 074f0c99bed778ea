import type { HoldfastError } from "@holdfast/sdk";

/**
 * Rewords the server's errors for users of the CLI. The server's messages name HTTP requests and their fields; users of
 * the CLI know commands and options.
 */

interface Field {
  option: string;
  unit?: "MB" | "ms";
  /** A description of valid values. It is shown in place of a regular expression. */
  form?: string;
}

const NAME = "use up to 63 lower-case letters, digits and hyphens, such as my-box-1";

const FIELDS: ReadonlyMap<string, Field> = new Map<string, Field>([
  ["name", { option: "the name", form: NAME }],
  ["port", { option: "the port" }],
  ["onWake", { option: "--on-wake", form: "use a signal such as HUP" }],
  ["ref", { option: "the name or id", form: "use a name or id that the command's list shows" }],
  ["id", { option: "the id", form: "use an id such as exe_3f9a" }],
  ["path", { option: "the path", form: "use an absolute path without '..'" }],
  ["image", { option: "--image" }],
  ["memoryMb", { option: "--memory", unit: "MB" }],
  ["cpus", { option: "--cpus" }],
  ["pids", { option: "--pids" }],
  ["diskMb", { option: "--disk", unit: "MB" }],
  ["sizeMb", { option: "--size", unit: "MB" }],
  ["ttlMs", { option: "--ttl", unit: "ms" }],
  ["expiresInMs", { option: "--ttl", unit: "ms" }],
  ["idleTtlMs", { option: "--idle-ttl", unit: "ms" }],
  ["idleStandbyMs", { option: "--idle-standby", unit: "ms" }],
  ["maxExecs", { option: "--max-execs" }],
  ["onMemoryLoss", { option: "--on-memory-loss" }],
  ["ifExists", { option: "--if-exists" }],
  ["fromCheckpoint", { option: "--from-checkpoint", form: "use an id from 'holdfast checkpoint ls'" }],
  [
    "labels",
    { option: "--label", form: "use KEY=VALUE with a key of letters, digits, '.', '_', '-' and '/'" },
  ],
  ["env", { option: "--env", form: "use KEY=VALUE with a key of letters, digits and '_'" }],
  ["mounts", { option: "--mount" }],
  ["cwd", { option: "--cwd" }],
  ["user", { option: "--user", form: "use a name, or uid[:gid]" }],
  ["timeoutMs", { option: "--timeout", unit: "ms" }],
  ["restart", { option: "--restart" }],
  ["backoffMs", { option: "--backoff", unit: "ms" }],
  ["withinMs", { option: "--ready-within or --connect-within", unit: "ms" }],
  ["graceMs", { option: "--grace", unit: "ms" }],
  ["argv", { option: "the command" }],
  ["type", { option: "--type" }],
  ["since", { option: "--since" }],
  ["until", { option: "--until" }],
]);

/** Matches the start of a finding about one field of a request, such as "body/resources/memoryMb must be >= 16". */
const ABOUT_FIELD = /^(?:body|query|path|header)((?:\/[^\s/]+)+)\s+/;
/** Matches the separator between two findings in one message. */
const NEXT_FINDING = /; (?=(?:body|query|path|header)[/ ])/;
/**
 * Matches the advice in the server's message about a paused sandbox. The CLI removes it from the message, and gives it
 * as a hint instead, with the sandbox's id.
 */
const RESUME_FIRST = / Resume it first: .*$/;
/** Matches field names in camelCase, which are not English words. */
const IDENTIFIERS = /\b[a-z]+[A-Z]\w*\b/g;

/** The error's message with the CLI's own options in place of fields. */
export function messageOf({ message }: HoldfastError): string {
  if (ABOUT_FIELD.test(message))
    return `${message.replace(/\.$/, "").split(NEXT_FINDING).map(findingOf).join("; ")}.`;
  return message
    .replace(RESUME_FIRST, "")
    .replace(/\b(\w+)( is \d+)\b/g, named)
    .replace(/^(\w+)(?= must )/, (name) =>
      FIELDS.get(name)?.option.startsWith("--") ? optionOf(name) : name,
    )
    .replace(IDENTIFIERS, optionOf);
}

function findingOf(finding: string): string {
  const about = ABOUT_FIELD.exec(finding);
  if (about === null) return finding;
  const names = about[1]?.split("/") ?? [];
  const known =
    names.findLast((name) => FIELDS.get(name)?.option.startsWith("--")) ??
    names.findLast((name) => FIELDS.has(name)) ??
    "";
  const field = FIELDS.get(known) ?? { option: names.at(-1) ?? "" };
  return `${field.option} ${ruleOf(finding.slice(about[0].length), field)}`;
}

const optionOf = (name: string): string => FIELDS.get(name)?.option ?? name;

function named(whole: string, name: string, rest: string): string {
  const field = FIELDS.get(name);
  return field === undefined || name === "name" ? whole : `${field.option}${rest}${unitOf(field)}`;
}

const unitOf = ({ unit }: Field): string => (unit === undefined ? "" : ` ${unit}`);

/** Rewords the part of a message that says what is wrong with a field. */
function ruleOf(rule: string, field: Field): string {
  const { form } = field;
  if (rule.startsWith("must match pattern"))
    return form === undefined ? "is not valid" : `is not valid: ${form}`;
  if (rule.startsWith("has the invalid key") && form !== undefined) return `${rule}: ${form}`;
  return rule.replace(/^must be (>=|<=) (\d+)/, (_, sign: string, bound: string) => {
    return `must be at ${sign === ">=" ? "least" : "most"} ${bound}${unitOf(field)}`;
  });
}

const EARLIER = " An earlier attempt of the same request may have taken effect.";

/**
 * Returns the error's hint, worded as a command or option of the CLI if possible. Returns an empty text if the error's
 * message already says what to do.
 */
export function hintFor(error: HoldfastError): string {
  const { code, hint, message } = error;
  const isRepeated = hint.endsWith(EARLIER);
  const own = isRepeated ? hint.slice(0, -EARLIER.length) : hint;
  const words =
    error.operation?.startsWith("import") && IMPORT_HINTS.has(code)
      ? (IMPORT_HINTS.get(code) ?? "")
      : code === "invalid_request"
        ? ABOUT_FIELD.test(message)
          ? "Add --help to see what the command accepts."
          : ""
        : code === "unauthorized" && !own.includes("Authorization")
          ? own
          : (HINTS.get(code) ?? own.replace(AGAIN, "Run the command again"));
  return isRepeated ? `${words} An earlier attempt may have taken effect.`.trim() : words;
}

/**
 * Hints for the import commands. The usual hints for these errors name --if-exists, which import commands do not have.
 */
const IMPORT_HINTS: ReadonlyMap<HoldfastError["code"], string> = new Map([
  ["name_taken", "Choose another name with --name."],
  ["drive_exists", "Choose another name with --name."],
]);

const AGAIN = /\b(?:Retry|Send) the (?:same )?request(?: again)?/;
const VERSIONS = "Check with 'holdfast doctor' that this CLI and the server have the same version.";

const HINTS: ReadonlyMap<HoldfastError["code"], string> = new Map([
  ["bad_cursor", "Omit --since-cursor to start from the beginning."],
  [
    "unauthorized",
    "Set HOLDFAST_API_KEY to a valid key. For a server on the same machine, set HOLDFAST_DIR to its state directory instead: the CLI finds the running server and its key there.",
  ],
  ["preview_denied", "'holdfast preview token' creates a new link."],
  [
    "checkpoint_not_found",
    "'holdfast checkpoint ls' lists the checkpoints of a sandbox. They are deleted with the sandbox.",
  ],
  ["delivery_not_found", "'holdfast alerts deliveries' lists the deliveries that are still kept."],
  ["exec_not_found", "'holdfast execs' lists the execs of a sandbox."],
  ["mount_not_found", "'holdfast mounts' lists the mounts of a sandbox and their paths."],
  ["not_found", VERSIONS],
  [
    "preview_not_found",
    "'holdfast preview ls' lists the previews of a sandbox, 'holdfast preview tokens' the tokens of a preview.",
  ],
  ["method_not_allowed", VERSIONS],
  ["drive_exists", "Choose another name, or pass --if-exists return to get the existing drive."],
  [
    "drive_mounted",
    "'holdfast unmount' unmounts it from one sandbox; 'holdfast drive rm --force' detaches it from all.",
  ],
  ["exec_limit", "The limit is the sandbox's --max-execs. Create a new sandbox."],
  ["idempotency_conflict", VERSIONS],
  ["name_taken", "Pass --if-exists return to get the existing sandbox, or choose another name."],
  ["not_on_disk", "'holdfast wake' wakes the sandbox; run the command again then."],
  [
    "preview_exists",
    "'holdfast preview token' creates another link to it; 'holdfast preview rm' deletes it.",
  ],
  ["events_dropped", "Run the command again to follow from now. The events in between were deleted."],
  ["output_dropped", "No output is kept. The limits on kept output are in the server's configuration."],
  ["too_large", "Send less at once. 'holdfast cp' copies files of any size."],
  ["unsupported_media_type", VERSIONS],
  ["range_not_satisfiable", VERSIONS],
  ["too_many_mounts", "'holdfast unmount' makes room; one drive can also be mounted as a whole."],
  ["headers_too_large", VERSIONS],
  ["port_cut", "The program on that port closed the connection, or the sandbox went to standby."],
  [
    "drive_degraded",
    "'holdfast drive get' reports what is missing. Nothing was written to another place instead.",
  ],
  [
    "link_lost",
    "The connection is being re-established. The command may have taken effect; check before you run it again.",
  ],
  ["mount_failed", "The cause explains why. The attempt was rolled back; run the command again."],
  [
    "sandbox_degraded",
    "The sandbox's cause explains why, and says if waiting can't help. Otherwise run the command again, or delete the sandbox.",
  ],
  ["starting", "Run the command again in a moment."],
  ["too_many_held", "Run the command again in a moment."],
  ["too_many_streams", "Run the command again when some of the connections have closed."],
  ["request_timeout", "Nothing was done; run the command again."],
  ["wrong_state", "'holdfast get' shows the sandbox's state."],
  [
    "sandbox_failed",
    "'holdfast diagnose' explains the failure. If the sandbox's files are kept, they can be read until the time that 'holdfast get' shows, and 'holdfast restart' starts the sandbox again on them.",
  ],
  ["wake_failed", "The cause explains why. The sandbox is still in standby; run the command again."],
  ["wake_timeout", "The wake is still in progress; run the command again."],
]);
