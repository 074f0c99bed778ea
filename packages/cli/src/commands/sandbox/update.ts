import type { Command } from "commander";
import type { Context } from "../context.ts";
import { usage } from "../failure.ts";
import { asJson } from "../table.ts";
import { durationOrNone, given, givenAny, label, several, variable } from "../values.ts";

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
    .option("--label <key=value>", "set a label, any number of times; KEY= sets an empty one", label)
    .option("--remove-label <key>", "take a label off, any number of times", several)
    .option(
      "-e, --env <key=value>",
      "set an environment variable, any number of times; KEY alone passes ours on, KEY= sets an empty one",
      variable,
    )
    .option("--remove-env <key>", "take an environment variable off, any number of times", several)
    .option(
      "--ttl <time>",
      "delete it when it is this old, such as 30m or 2h, counted from its creation; or none",
      durationOrNone,
    )
    .option(
      "--idle-standby <time>",
      "put it to sleep after this long without a call, such as 15s or 10m; or none",
      durationOrNone,
    )
    .option("--json", "print the sandbox as JSON")
    .description(
      "Changes a sandbox and prints its name. What is not named stays as it is. The environment is that of commands that start from\n" +
        "then on. A sandbox that sleeps is not woken.",
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
        lifecycle: givenAny({ ttlMs: orNull(options.ttl), idleStandbyMs: orNull(options.idleStandby) }),
      });
      if (Object.keys(changes).length === 0) throw usage("say what to change", "Add --help for what can be.");
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const info = await box.update({ ...changes, signal });
      process.stdout.write(options.json ? asJson(info) : `${info.name}\n`);
    });
}

const orNull = (time: number | "none" | undefined) => (time === "none" ? null : time);

/** Null takes one off; undefined where none is named. */
function changed(
  set: Record<string, string> | undefined,
  removed: readonly string[] = [],
): Record<string, string | null> | undefined {
  const both = removed.filter((key) => set?.[key] !== undefined);
  if (both.length > 0) throw usage(`${both.join(", ")} can't be set and removed at once`);
  return givenAny({ ...set, ...Object.fromEntries(removed.map((key) => [key, null])) });
}
