import { constants } from "node:os";
import type { Exec } from "@holdfast/sdk";
import { type Command, InvalidArgumentError } from "commander";
import { type Context, everything } from "../context.ts";
import { report } from "../failure.ts";
import { findSandbox } from "../lookup.ts";
import { age, asJson, commandLine, elapsed, table } from "../table.ts";

export function registerExecs(program: Command, context: Context): void {
  registerList(program, context);
  registerKill(program, context);
}

function registerList(program: Command, context: Context): void {
  program
    .command("execs")
    .summary("list the commands of a sandbox, newest first")
    .argument("<sandbox>", "name or id")
    .option("-q, --quiet", "print ids only")
    .option("--json", "print them as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast execs box\n  holdfast execs --json box")
    .action(async (name: string, { quiet, json }: { quiet?: boolean; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, name);
      const found = await everything((page) => box.execs.list({ ...page, signal }));
      if (json) process.stdout.write(asJson(found));
      else if (quiet) process.stdout.write(found.map(({ id }) => `${id}\n`).join(""));
      else process.stdout.write(listing(found));
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
    .summary("end commands, with all that they started")
    .argument("<execs...>", "ids of execs")
    .option("-s, --signal <signal>", "only send this signal, to the command's process group", signalName)
    .description("Kills commands and prints each id once nothing of it is left. One that has ended is fine.")
    .addHelpText("after", "\nExamples:\n  holdfast kill exe_3f9a\n  holdfast kill -s INT exe_3f9a")
    .action(async (ids: string[], options: { signal?: string }) => {
      for (const id of ids) await killOne(context, id, options.signal);
    });
}

/** One that can't be ended doesn't keep the others. */
async function killOne(context: Context, id: string, name: string | undefined): Promise<void> {
  const { signal } = context.interruption;
  try {
    const run = await context.client().execs.get(id, { signal });
    await (name === undefined ? run.cancel({ signal }) : run.signal(name, { signal }));
    process.stdout.write(`${id}\n`);
  } catch (error) {
    signal.throwIfAborted();
    const { text, exitCode } = report(error);
    process.stderr.write(text);
    context.exitCode = exitCode;
  }
}

/** "INT", "sigint", "2". */
export function signalName(text: string): string {
  const known = Object.entries(constants.signals);
  const wanted = text.toUpperCase().replace(/^(SIG)?/, "SIG");
  const found = known.find(([name, number]) => name === wanted || String(number) === text);
  if (found === undefined) throw new InvalidArgumentError("Use a signal such as INT, TERM or 9.");
  return found[0];
}
