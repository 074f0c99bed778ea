import { spawn } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** System directories that may be missing from an ordinary user's PATH. */
const SYSTEM = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/**
 * Returns the PATH without node_modules directories, because their Node may disappear while dependencies are installed.
 */
const systemPath = () => {
  const entries = (process.env.PATH ?? "").split(":");
  return entries.filter((entry) => entry !== "" && !entry.includes("node_modules")).join(":");
};

export function hasCommand(name) {
  return [...systemPath().split(":"), ...SYSTEM].some((directory) => {
    try {
      accessSync(join(directory, name), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

const COMMAND_DEADLINE_MS = 15 * 60_000;
/** How long a command may take to end after SIGTERM, before it is killed. */
const END_MS = 5_000;
const OUTPUT_CHARS = 64 * 1024 * 1024;

/** The processes of the running commands. Each process leads its own process group. */
const running = new Set();
let isStopping = false;

/**
 * Runs a command for at most 15 minutes and captures its output, to explain a failure. The command gets a process group
 * of its own, so that all its processes can be ended with it.
 */
export function run(command, args, options = {}) {
  const env = { ...process.env, PATH: systemPath(), ...options.env };
  return new Promise((resolve) => {
    let output = "";
    const add = (text) => {
      if (output.length < OUTPUT_CHARS) output += text;
    };
    const stdio = ["ignore", "pipe", "pipe"];
    const child = spawn(command, args, { cwd: options.cwd, env, stdio, detached: true });
    running.add(child);
    const deadline = setTimeout(() => {
      add(`${command} did not end within 15 minutes\n`);
      signalGroup(child, "SIGKILL");
    }, COMMAND_DEADLINE_MS);
    const end = (ok) => {
      clearTimeout(deadline);
      running.delete(child);
      // While commands are being stopped, the promise stays pending. Otherwise the caller would report a failure,
      // although the command was stopped on purpose.
      if (!isStopping) resolve({ ok, output: output.trim() });
    };
    child.stdout.setEncoding("utf8").on("data", add);
    child.stderr.setEncoding("utf8").on("data", add);
    child.once("error", (error) => {
      add(`${error.message}\n`);
      end(false);
    });
    child.once("close", (code) => end(code === 0));
  });
}

/**
 * Ends all running commands, with the processes that they started. The caller must then end this process, because
 * promises of ended commands stay pending.
 */
export async function endCommands() {
  isStopping = true;
  const all = [...running];
  const ended = all.map((child) => new Promise((resolve) => child.once("exit", resolve)));
  for (const child of all) signalGroup(child, "SIGTERM");
  await Promise.race([Promise.all(ended), sleep(END_MS)]);
  // Also kills processes that have outlived the command that started them.
  for (const child of all) signalGroup(child, "SIGKILL");
}

function signalGroup({ pid }, signal) {
  try {
    if (pid !== undefined) process.kill(-pid, signal);
  } catch {
    // The error is ignored, because it means that no process of the group is left.
  }
}
