import { hasCommand, run } from "./command.mjs";

/** Whether packages of the distribution can be installed without asking anybody. */
export const canInstall = () => process.getuid() === 0 && hasCommand("apt-get");

export const apt = (args, options = {}) =>
  run("apt-get", ["-o", "DPkg::Lock::Timeout=120", ...args], {
    ...options,
    env: { DEBIAN_FRONTEND: "noninteractive" },
  });

/** Null when all are installed, else what apt had to say. The package lists are fetched only if they turn out too old. */
export function aptInstall(packages) {
  const install = () => apt(["install", "-y", "--no-install-recommends", ...packages]);
  if (install().ok) return null;
  const update = apt(["update"]);
  if (!update.ok) return update.output;
  const second = install();
  return second.ok ? null : second.output;
}
