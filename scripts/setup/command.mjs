import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { join } from "node:path";

/** System administration's directories are not always in an ordinary PATH. */
const SYSTEM = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/** The PATH without what this checkout's own packages put in front: their Node may vanish while they are installed. */
export const systemPath = () => {
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

/** Runs to the end, within a quarter of an hour. The output is kept, for when it is needed to explain a failure. */
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
