import type { MountDrive } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { DEFAULT_DETACH_KEYS, detachKeys } from "./detach-keys.ts";
import { requireTerminal, terminalEnv, terminalSize } from "./terminal.ts";
import { cores, count, duration, givenAny, label, megabytes, mount, variable } from "./values.ts";

/** Options that several commands share, so that they read the same everywhere. */

export interface SandboxOptions {
  image?: string;
  memory?: number;
  cpus?: number;
  pids?: number;
  disk?: number;
  ttl?: number;
  label?: Record<string, string>;
  mount?: MountDrive[];
}

export const sandboxOptions = (command: Command): Command =>
  command
    .option("--image <name>", "image to start from (default: host)")
    .option("--memory <size>", "memory limit, such as 512m or 2g", megabytes)
    .option("--cpus <number>", "CPU limit in cores", cores)
    .option("--pids <number>", "limit on processes and threads", count)
    .option("--disk <size>", "a file system of its own, of this size, for all that it writes", megabytes)
    .option(
      "--ttl <time>",
      "delete it when it is this old, such as 30m or 2h, whatever it is doing",
      duration,
    )
    .option("--label <key=value>", "label, any number of times", label)
    .option(
      "--mount <drive:path[:ro]>",
      "have a drive there from the beginning, or with DRIVE/DIRECTORY a part of it, any number of times",
      mount,
    );

export interface ExecFlags {
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  timeout?: number;
  stdin?: boolean;
  tty?: boolean;
}

export const execOptions = (command: Command): Command =>
  command
    .option(
      "-e, --env <key=value>",
      "environment variable, any number of times; KEY alone passes it on",
      variable,
    )
    .option("-w, --cwd <path>", "directory to run in")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("--timeout <time>", "kill the command after this long, such as 30s or 5m", duration)
    .option("-i, --stdin", "pass our stdin on to the command")
    .option("-t, --tty", "give the command a terminal; with -i, ours becomes it");

export const detachOption = (command: Command): Command =>
  command.addOption(
    new Option("--detach-keys <keys>", "keys that leave a terminal and let its command run on")
      .argParser(detachKeys)
      .default(detachKeys(DEFAULT_DETACH_KEYS), DEFAULT_DETACH_KEYS),
  );

/** Undefined where none was given: the server's own are used then. */
export const resourcesOf = ({ memory, cpus, pids, disk }: SandboxOptions) =>
  givenAny({ memoryMb: memory, cpus, pids, diskMb: disk });

/** Of a command that is started here: its terminal is as large as ours, and of the same kind. */
export const execOf = ({ env, cwd, user, timeout, stdin, tty }: ExecFlags) => ({
  env: tty ? { ...terminalEnv(), ...env } : env,
  cwd,
  user,
  timeoutMs: timeout,
  openStdin: tty ? undefined : stdin,
  tty: tty ? terminalSize() : undefined,
});

export function checkTerminal({ tty, stdin }: ExecFlags): void {
  if (tty && stdin) requireTerminal("Leave out -t to pass on what is piped in.");
}
