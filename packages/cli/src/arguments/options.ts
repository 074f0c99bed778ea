import type { MountDrive } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { DEFAULT_DETACH_KEYS, detachKeys } from "../terminal/detach-keys.ts";
import { requireTerminal, terminalEnv, terminalSize } from "../terminal/terminal.ts";
import { cores, count, duration, givenAny, label, megabytes, mount, variable } from "./values.ts";

/** Options that several commands share, so that their help texts are the same everywhere. */

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
    .option(
      "--disk <size>",
      "give the sandbox its own file system of this size for everything it writes",
      megabytes,
    )
    .option("--ttl <time>", "delete the sandbox at this age, such as 30m or 2h, even if it is busy", duration)
    .option("--label <key=value>", "label; repeatable", label)
    .option(
      "--mount <drive:path[:ro]>",
      "mount a drive, or with DRIVE/DIRECTORY a part of it, at creation; repeatable",
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
      "environment variable; KEY alone copies the local value; repeatable",
      variable,
    )
    .option("-w, --cwd <path>", "directory to run in")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("--timeout <time>", "kill the command after this long, such as 30s or 5m", duration)
    .option("-i, --stdin", "connect stdin to the command")
    .option("-t, --tty", "give the command a terminal; with -i, connect yours to it");

export const detachOption = (command: Command): Command =>
  command.addOption(
    new Option("--detach-keys <keys>", "keys that detach from a terminal and leave its command running")
      .argParser(detachKeys)
      .default(detachKeys(DEFAULT_DETACH_KEYS), DEFAULT_DETACH_KEYS),
  );

/** Returns the requested resources. Returns undefined if the user gave no limit; the server then uses its defaults. */
export const resourcesOf = ({ memory, cpus, pids, disk }: SandboxOptions) =>
  givenAny({ memoryMb: memory, cpus, pids, diskMb: disk });

/**
 * Converts the flags of a command to an exec request. If the user asks for a terminal, the request has the local
 * terminal's size and type.
 */
export const execOf = ({ env, cwd, user, timeout, stdin, tty }: ExecFlags) => ({
  env: tty ? { ...terminalEnv(), ...env } : env,
  cwd,
  user,
  timeoutMs: timeout,
  openStdin: tty ? undefined : stdin,
  tty: tty ? terminalSize() : undefined,
});

export function checkTerminal({ tty, stdin }: ExecFlags): void {
  if (tty && stdin) requireTerminal("Omit -t to pipe input to the command.");
}
