import { existsSync } from "node:fs";
import { aptInstall, canInstall } from "./apt.mjs";
import { hasCommand, run } from "./command.mjs";
import { SetupError, saying } from "./say.mjs";

const hasStaticLibc = async () => existsSync((await run("gcc", ["-print-file-name=libc.a"])).output);

/** Packages that the host needs, by their Debian names. */
const NEEDS = [
  { package: "gcc", why: "builds the keeper", met: () => hasCommand("gcc") },
  { package: "libc6-dev", why: "the keeper is linked statically", met: hasStaticLibc },
  {
    package: "mount",
    why: "sandboxes' file systems",
    met: () => hasCommand("mount") && hasCommand("umount"),
  },
  { package: "util-linux", why: "namespaces", met: () => hasCommand("nsenter") && hasCommand("unshare") },
];

const RUNTIMES = ["runc", "crun"].map((name) => ({
  package: name,
  why: "launches sandboxes",
  met: () => hasCommand(name),
}));

const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/**
 * Packages that only tests need: programs that tests run inside sandboxes, which see the host's /usr, and packages for
 * optional features of a server.
 */
const TEST_NEEDS = [
  { package: "python3", why: "programs of the tests", met: () => existsSync("/usr/bin/python3") },
  {
    package: "e2fsprogs",
    why: "sandboxes' own disks",
    met: () => hasCommand("mke2fs"),
  },
  {
    package: "chromium",
    why: "opens previews in a browser",
    met: () => BROWSERS.some((path) => existsSync(path)),
  },
];

/** Returns the missing packages. A server needs one of the two runtimes; the tests use both. */
async function missingNeeds(purpose) {
  const runtimes = RUNTIMES.filter(({ met }) => !met());
  const enough = purpose !== "test" && runtimes.length < RUNTIMES.length;
  const needs = purpose === "test" ? [...NEEDS, ...TEST_NEEDS] : NEEDS;
  const missing = [];
  for (const need of needs) if (!(await need.met())) missing.push(need);
  return [...missing, ...(enough ? [] : runtimes)];
}

export async function installHostPackages(_root, purpose) {
  if (process.platform !== "linux")
    throw new SetupError("Holdfast needs Linux: it uses namespaces and cgroups");
  const missing = await missingNeeds(purpose);
  if (missing.length === 0) return;
  const packages = missing.map((need) => need.package);
  const named = missing.map((need) => `${need.package} (${need.why})`).join(", ");
  const byHand = `missing on this host: ${named}. Install them; on Debian and its derivatives:\n  sudo apt-get install ${packages.join(" ")}`;
  if (!canInstall()) throw new SetupError(byHand);
  const failed = await saying(`installing from the distribution: ${named}`, () => aptInstall(packages));
  if (failed !== null) throw new SetupError(`${failed}\n${byHand}`);
  const still = (await missingNeeds(purpose)).map((need) => need.package);
  if (still.length > 0) throw new SetupError(`installed, but still not usable: ${still.join(", ")}`);
}
