import { type Process, ProcessNotReadyError, type ProcessOptions } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import type { Context } from "../context.ts";
import { forEachOf } from "../each.ts";
import { Failure, usage } from "../failure.ts";
import { findSandbox } from "../lookup.ts";
import { withSpinner } from "../spinner.ts";
import { age, asJson, commandLine, table } from "../table.ts";
import { count, duration, given, variable } from "../values.ts";
import { signalName } from "./execs.ts";

export function registerProcesses(program: Command, context: Context): void {
  registerStart(program, context);
  registerList(program, context);
  registerStop(program, context);
}

interface StartFlags {
  name: string;
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  timeout?: number;
  keepAwake?: boolean;
  onWake?: string;
  restart?: "failure" | "always";
  maxRestarts?: number;
  backoff?: number;
  readyPort?: number;
  readyOutput?: string;
  readyWithin?: number;
  connectPort?: number;
  connectWithin?: number;
  wait?: boolean;
  json?: boolean;
}

const CONNECT_WITHIN_MS = 30_000;

function registerStart(program: Command, context: Context): void {
  program
    .command("start")
    .summary("start a named, long-lived process in a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<command...>", "the command and its arguments, behind --")
    .requiredOption("--name <name>", "what it is called; one process of the sandbox has a name at a time")
    .option(
      "-e, --env <key=value>",
      "environment variable, any number of times; KEY alone passes it on",
      variable,
    )
    .option("-w, --cwd <path>", "directory to run in")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("--timeout <time>", "kill each run after this long, such as 30s or 5m", duration)
    .option("--keep-awake", "keep the sandbox awake for it; otherwise both sleep and wake together")
    .option("--on-wake <signal>", "send it this signal after every wake, such as HUP", signalName)
    .addOption(
      new Option("--restart <when>", "start it again when it ends: after a failure, or always").choices([
        "failure",
        "always",
      ]),
    )
    .option("--max-restarts <number>", "give up after so many in a row (default: 10)", count)
    .option("--backoff <time>", "wait before the first restart, doubled with each (default: 1s)", duration)
    .option("--ready-port <port>", "it is ready when something listens at this port", count)
    .option("--ready-output <text>", "it is ready when it has written this")
    .option("--ready-within <time>", "how long it may take to be ready (default: 60s)", duration)
    .option("--connect-port <port>", "after a wake, something has to listen at this port again", count)
    .option("--connect-within <time>", "how long that may take (default: 30s)", duration)
    .option("--no-wait", "don't wait until it is ready")
    .option("--json", "print the process as JSON")
    .description(
      "Starts a process and prints its id once it is ready, or fails with why it is not. The same command under the same name\n" +
        "again follows the process that is there. It goes on, and is started again, with nobody watching: 'holdfast ps' shows it,\n" +
        "'holdfast logs' its output, run by run.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast start box --name web --restart always --ready-port 3000 -- node server.js\n" +
        "  holdfast start box --name job --restart failure --max-restarts 3 -- sh -c './job || exit 1'",
    )
    .action(async (sandbox: string, command: string[], flags: StartFlags) => {
      const { signal } = context.interruption;
      const options = optionsOf(flags);
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const started = await box.processes.start(flags.name, command, { ...options, signal });
      const shown =
        flags.wait === false
          ? started.info
          : await withSpinner(`waiting for ${flags.name}`, () => started.ready({ signal })).catch(told);
      process.stdout.write(flags.json ? asJson(shown) : `${shown.id}\n`);
    });
}

/** Its output is where the reason is, more often than not. */
function told(error: unknown): never {
  if (error instanceof ProcessNotReadyError)
    process.stderr.write(`Its output: holdfast logs ${error.process.execId}\n`);
  throw error;
}

/** What would mean nothing is refused: whoever gave it would believe that it holds. */
function checkFlags(flags: StartFlags): void {
  const { restart, maxRestarts, backoff, readyPort, readyOutput, readyWithin } = flags;
  const { connectPort, connectWithin } = flags;
  if (restart === undefined && (maxRestarts !== undefined || backoff !== undefined))
    throw usage("--max-restarts and --backoff mean nothing without --restart.");
  if (readyPort !== undefined && readyOutput !== undefined)
    throw usage("Give either --ready-port or --ready-output.");
  if (readyPort === undefined && readyOutput === undefined && readyWithin !== undefined)
    throw usage("--ready-within means nothing without --ready-port or --ready-output.");
  if (connectPort === undefined && connectWithin !== undefined)
    throw usage("--connect-within means nothing without --connect-port.");
}

function optionsOf(flags: StartFlags): ProcessOptions {
  checkFlags(flags);
  const { env, cwd, user, timeout, keepAwake, onWake, restart, maxRestarts, backoff, connectPort } = flags;
  return given({
    env,
    cwd,
    user,
    timeoutMs: timeout,
    keepAwake,
    onWake: onWake === undefined ? undefined : { signal: onWake },
    restart: restart && { on: restart, ...given({ max: maxRestarts, backoffMs: backoff }) },
    readyWhen: readyWhenOf(flags),
    connectBy:
      connectPort === undefined
        ? undefined
        : { port: connectPort, withinMs: flags.connectWithin ?? CONNECT_WITHIN_MS },
  });
}

function readyWhenOf({ readyPort, readyOutput, readyWithin }: StartFlags): ProcessOptions["readyWhen"] {
  const within = given({ withinMs: readyWithin });
  if (readyPort !== undefined) return { port: readyPort, ...within };
  return readyOutput === undefined ? undefined : { output: readyOutput, ...within };
}

function registerList(program: Command, context: Context): void {
  program
    .command("ps")
    .summary("list the named processes of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print them as JSON")
    .description(
      "Lists the named processes of a sandbox, those that are over included. One that sleeps is not woken.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast ps box\n  holdfast ps --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.processes.list({ signal: context.interruption.signal });
      process.stdout.write(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Process[]): string =>
  table(
    ["NAME", "STATUS", "RUNS", "RESTARTS", "STARTED", "EXEC", "COMMAND", "CAUSE"],
    found.map((each) => [
      each.name,
      each.suspended ? `${each.status}, suspended` : each.status,
      String(each.runs),
      String(each.restarts),
      `${age(each.createdAt)} ago`,
      each.execId,
      commandLine(each),
      each.cause?.message ?? "",
    ]),
  );

function registerStop(program: Command, context: Context): void {
  program
    .command("stop")
    .summary("end named processes, with all that they started")
    .argument("<sandbox>", "name or id")
    .argument("<processes...>", "names or ids")
    .option("--restart", "begin the next run at once, also of one that is over")
    .description(
      "Ends processes and what would follow them, and prints each name once nothing of it is left. One that is over is fine. A\n" +
        "sandbox that sleeps is woken for it.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast stop box web\n  holdfast stop --restart box web")
    .action(async (sandbox: string, names: string[], { restart }: { restart?: boolean }) => {
      const { signal } = context.interruption;
      const { processes } = await context.client().sandboxes.get(sandbox, { signal });
      await withSpinner(`stopping ${names.length}`, () =>
        forEachOf(context, names, async (name) => {
          const after = await (restart
            ? processes.restart(name, { signal })
            : processes.stop(name, { signal }));
          if (!restart && after.endedAt === null) throw notOver(after);
          process.stdout.write(`${after.name}\n`);
        }),
      );
    });
}

const notOver = ({ name, status }: Process): Failure =>
  new Failure(
    `Process ${name} is not over yet: it is ${status}.`,
    "The order is stored, and is carried out when it can be; 'holdfast ps' shows when it was.",
  );
