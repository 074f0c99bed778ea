import { constants } from "node:os";
import type { Exec } from "@holdfast/sdk";
import { type Command, InvalidArgumentError } from "commander";
import { type Context, everything } from "../../context.ts";
import { report } from "../../failure.ts";
import { findSandbox } from "../../lookup.ts";
import { print, printError } from "../../output/streams.ts";
import { age, asJson, commandLine, elapsed, table } from "../../output/table.ts";

export function registerExecs(program: Command, context: Context): void {
  registerList(program, context);
  registerKill(program, context);
}

function registerList(program: Command, context: Context): void {
  program
    .command("execs")
    .summary("list the execs of a sandbox, newest first")
    .argument("<sandbox>", "name or id")
    .option("-q, --quiet", "print ids only")
    .option("--json", "print the list as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast execs box\n  holdfast execs --json box")
    .action(async (name: string, { quiet, json }: { quiet?: boolean; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, name);
      const found = await everything((page) => box.execs.list({ ...page, signal }));
      if (json) print(asJson(found));
      else if (quiet) print(found.map(({ id }) => `${id}\n`).join(""));
      else print(listing(found));
    });
}

const listing = (found: readonly Exec[]): string =>
  table(
    ["ID", "STATUS", "EXIT", "STARTED", "DURATION", "COMMAND"],
    found.map((exec) => [
      exec.id,
      exec.suspended ? `${exec.status}, suspended` : exec.status,
      exec.signal ?? String(exec.exitCode ?? ""),
      exec.startedAt === null ? "" : `${age(exec.startedAt)} ago`,
      exec.startedAt === null ? "" : elapsed(exec.startedAt, exec.endedAt),
      commandLine(exec),
    ]),
  );

function registerKill(program: Command, context: Context): void {
  program
    .command("kill")
    .summary("kill execs and all their processes")
    .argument("<execs...>", "exec ids")
    .option("-s, --signal <signal>", "only send this signal to the command's process group", signalName)
    .description(
      "Kills execs and prints each id once none of its processes is left. Does nothing if the exec has already ended.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast kill exe_3f9a\n  holdfast kill -s INT exe_3f9a")
    .action(async (ids: string[], options: { signal?: string }) => {
      for (const id of ids) await killOne(context, id, options.signal);
    });
}

/** Kills one exec. A failure is reported and does not stop the others from being killed. */
async function killOne(context: Context, id: string, name: string | undefined): Promise<void> {
  const { signal } = context.interruption;
  try {
    const run = await context.client().execs.get(id, { signal });
    await (name === undefined ? run.cancel({ signal }) : run.signal(name, { signal }));
    print(`${id}\n`);
  } catch (error) {
    signal.throwIfAborted();
    const { text, exitCode } = report(error);
    printError(text);
    context.exitCode = exitCode;
  }
}

/** Parses a signal: "INT", "sigint" or "2". */
export function signalName(text: string): string {
  const known = Object.entries(constants.signals);
  const wanted = text.toUpperCase().replace(/^(SIG)?/, "SIG");
  const found = known.find(([name, number]) => name === wanted || String(number) === text);
  if (found === undefined) throw new InvalidArgumentError("Use a signal such as INT, TERM or 9.");
  return found[0];
}
