import { hasCommand, run } from "./command.mjs";

/**
 * Returns whether packages of the distribution can be installed without asking for a password: the user is root, and
 * apt exists.
 */
export const canInstall = () => process.getuid() === 0 && hasCommand("apt-get");

export const apt = (args, options = {}) =>
  run("apt-get", ["-o", "DPkg::Lock::Timeout=120", ...args], {
    ...options,
    env: { DEBIAN_FRONTEND: "noninteractive" },
  });

/**
 * Installs packages. Returns null if all of them are installed afterwards, else apt's output. The package lists are
 * updated only if the first attempt fails.
 */
export async function aptInstall(packages) {
  const install = () => apt(["install", "-y", "--no-install-recommends", ...packages]);
  if ((await install()).ok) return null;
  const update = await apt(["update"]);
  if (!update.ok) return update.output;
  const second = await install();
  return second.ok ? null : second.output;
}
