import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { join } from "node:path";

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

/** Runs a command for at most 15 minutes and captures its output, to explain a failure. */
export function run(command, args, options = {}) {
  const env = { ...process.env, PATH: systemPath(), ...options.env };
  const { status, error, stdout, stderr } = spawnSync(command, args, {
    cwd: options.cwd,
    env,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    timeout: COMMAND_DEADLINE_MS,
    killSignal: "SIGKILL",
    maxBuffer: 64 * 1024 * 1024,
  });
  return {
    ok: status === 0,
    output: `${stdout ?? ""}${stderr ?? ""}${error ? `${error.message}\n` : ""}`.trim(),
  };
}
