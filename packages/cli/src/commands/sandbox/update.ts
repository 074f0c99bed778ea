import type { Command } from "commander";
import { durationOrNone, given, givenAny, label, several, variable } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { usage } from "../../failure.ts";
import { print } from "../../output/streams.ts";
import { asJson } from "../../output/table.ts";

interface UpdateOptions {
  label?: Record<string, string>;
  removeLabel?: string[];
  env?: Record<string, string>;
  removeEnv?: string[];
  ttl?: number | "none";
  idleStandby?: number | "none";
  json?: boolean;
}

export function registerUpdate(program: Command, context: Context): void {
  program
    .command("update")
    .summary("change labels, environment and lifecycle of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--label <key=value>", "set a label; KEY= sets an empty value; repeatable", label)
    .option("--remove-label <key>", "remove a label; repeatable", several)
    .option(
      "-e, --env <key=value>",
      "set an environment variable; KEY alone copies the local value, KEY= sets an empty value; repeatable",
      variable,
    )
    .option("--remove-env <key>", "remove an environment variable; repeatable", several)
    .option(
      "--ttl <time>",
      "delete the sandbox this long from now, such as 30m or 2h, even if it is busy; or none",
      durationOrNone,
    )
    .option(
      "--idle-standby <time>",
      "suspend the sandbox after this long without a call, such as 15s or 10m; or none",
      durationOrNone,
    )
    .option("--json", "print the sandbox as JSON")
    .description(
      "Changes a sandbox and prints its name. Settings that are not given stay unchanged. Environment changes apply to commands " +
        "started afterwards. Does not wake the sandbox.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast update --label stage=done --remove-label owner box
  holdfast update -e DEBUG=1 --remove-env TOKEN box
  holdfast update --ttl 2h --idle-standby none box`,
    )
    .action(async (sandbox: string, options: UpdateOptions) => {
      const changes = given({
        labels: changed(options.label, options.removeLabel),
        env: changed(options.env, options.removeEnv),
        lifecycle: givenAny({ ...endOf(options.ttl), idleStandbyMs: orNull(options.idleStandby) }),
      });
      if (Object.keys(changes).length === 0)
        throw usage("no changes given", "Add --help to see what can be changed.");
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const info = await box.update({ ...changes, signal });
      print(options.json ? asJson(info) : `${info.name}\n`);
    });
}

/**
 * Counts the new TTL from now, and not from the sandbox's creation. Otherwise "30m" would immediately delete a sandbox
 * that is older than 30 minutes.
 */
const endOf = (ttl: number | "none" | undefined) => (ttl === "none" ? { ttlMs: null } : { expiresInMs: ttl });

const orNull = (time: number | "none" | undefined) => (time === "none" ? null : time);

/**
 * Merges the keys to set and the keys to remove into one object, in which null removes a key. Returns undefined if
 * there are none.
 */
function changed(
  set: Record<string, string> | undefined,
  removed: readonly string[] = [],
): Record<string, string | null> | undefined {
  const both = removed.filter((key) => set?.[key] !== undefined);
  if (both.length > 0) throw usage(`${both.join(", ")} cannot be both set and removed`);
  return givenAny({ ...set, ...Object.fromEntries(removed.map((key) => [key, null])) });
}
