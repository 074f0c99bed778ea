import type { Command } from "commander";
import { cores, count, duration, label, megabytes, variable } from "./values.ts";

/** Options that several commands share, so that they read the same everywhere. */

export interface SandboxOptions {
  image?: string;
  memory?: number;
  cpus?: number;
  pids?: number;
  label?: Record<string, string>;
}

export const sandboxOptions = (command: Command): Command =>
  command
    .option("--image <name>", "image to start from (default: host)")
    .option("--memory <size>", "memory limit, such as 512m or 2g", megabytes)
    .option("--cpus <number>", "CPU limit in cores", cores)
    .option("--pids <number>", "limit on processes and threads", count)
    .option("--label <key=value>", "label, any number of times", label);

export interface ExecFlags {
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  timeout?: number;
  stdin?: boolean;
}

export const execOptions = (command: Command): Command =>
  command
    .option(
      "-e, --env <key=value>",
      "environment variable, any number of times; KEY alone passes it on",
      variable,
    )
    .option("--cwd <path>", "directory to run in")
    .option("--user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("--timeout <time>", "kill the command after this long, such as 30s or 5m", duration)
    .option("-i, --stdin", "pass our stdin on to the command");

export const resourcesOf = ({ memory, cpus, pids }: SandboxOptions) => {
  if (memory === undefined && cpus === undefined && pids === undefined) return undefined;
  return {
    ...(memory === undefined ? {} : { memoryMb: memory }),
    ...(cpus === undefined ? {} : { cpus }),
    ...(pids === undefined ? {} : { pids }),
  };
};

export const execOf = ({ env, cwd, user, timeout, stdin }: ExecFlags) => ({
  env,
  cwd,
  user,
  timeoutMs: timeout,
  openStdin: stdin,
});
