import { type Process, ProcessNotReadyError, type ProcessOptions } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { count, duration, given, port, variable } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { Failure, usage } from "../../failure.ts";
import { findSandbox } from "../../lookup.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { age, asJson, commandLine, table } from "../../output/table.ts";
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
    .argument("<command...>", "the command and its arguments, after --")
    .requiredOption("--name <name>", "name, unique among the sandbox's processes")
    .option(
      "-e, --env <key=value>",
      "environment variable; KEY alone copies the local value; repeatable",
      variable,
    )
    .option("-w, --cwd <path>", "directory to run in")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("--timeout <time>", "kill each run after this long, such as 30s or 5m", duration)
    .option(
      "--keep-awake",
      "keep the sandbox awake while the process runs; otherwise both go to standby and wake together",
    )
    .option("--on-wake <signal>", "send the process this signal after every wake, such as HUP", signalName)
    .addOption(
      new Option(
        "--restart <when>",
        "restart the process when it ends: only after a failure, or always",
      ).choices(["failure", "always"]),
    )
    .option("--max-restarts <number>", "give up after this many consecutive restarts (default: 10)", count)
    .option("--backoff <time>", "wait before the first restart; doubles with each (default: 1s)", duration)
    .option("--ready-port <port>", "ready when a program listens on this port", port)
    .option("--ready-output <text>", "ready when the output contains this text")
    .option("--ready-within <time>", "how long the process may take to be ready (default: 60s)", duration)
    .option("--connect-port <port>", "after a wake, a program must listen on this port again", port)
    .option("--connect-within <time>", "how long --connect-port may take (default: 30s)", duration)
    .option("--no-wait", "do not wait until the process is ready")
    .option("--json", "print the process as JSON")
    .description(
      "Starts a process and prints its id once it is ready, or fails with the reason. Repeating the same command under the " +
        "same name returns the running process. The process keeps running, and restarts, without a client. 'holdfast ps' lists " +
        "processes, and 'holdfast logs' shows the output of each run.",
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
          : await withSpinner(`waiting for ${flags.name}`, () => started.ready({ signal })).catch(
              rethrowWithLogsHint,
            );
      print(flags.json ? asJson(shown) : `${shown.id}\n`);
    });
}

/** Prints the command that shows the output of the failed run, because that output usually contains the reason. */
function rethrowWithLogsHint(error: unknown): never {
  if (error instanceof ProcessNotReadyError)
    printError(`To see its output: holdfast logs ${error.process.execId}\n`);
  throw error;
}

/** Rejects options that would have no effect, because the user would believe that they apply. */
function checkFlags(flags: StartFlags): void {
  const { restart, maxRestarts, backoff, readyPort, readyOutput, readyWithin } = flags;
  const { connectPort, connectWithin } = flags;
  if (restart === undefined && (maxRestarts !== undefined || backoff !== undefined))
    throw usage("--max-restarts and --backoff require --restart");
  if (readyPort !== undefined && readyOutput !== undefined)
    throw usage("--ready-port and --ready-output cannot be combined");
  if (readyPort === undefined && readyOutput === undefined && readyWithin !== undefined)
    throw usage("--ready-within requires --ready-port or --ready-output");
  if (connectPort === undefined && connectWithin !== undefined)
    throw usage("--connect-within requires --connect-port");
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
    .option("--json", "print the list as JSON")
    .description("Lists the named processes of a sandbox, including ended ones. Does not wake the sandbox.")
    .addHelpText("after", "\nExamples:\n  holdfast ps box\n  holdfast ps --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.processes.list({ signal: context.interruption.signal });
      print(json ? asJson(found) : listing(found));
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
    .summary("stop named processes and all their children")
    .argument("<sandbox>", "name or id")
    .argument("<processes...>", "names or ids")
    .option("--restart", "start the next run immediately, even if the process has ended")
    .description(
      "Stops processes without restarting them, and prints each name once nothing of it is left. Does nothing if the process " +
        "has already ended. Wakes a sandbox in standby.",
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
          print(`${after.name}\n`);
        }),
      );
    });
}

const notOver = ({ name, status }: Process): Failure =>
  new Failure(
    `process ${name} has not stopped yet: its status is ${status}`,
    "The stop request is stored and will be carried out as soon as possible; check with 'holdfast ps'.",
  );
