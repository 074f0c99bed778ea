import { existsSync } from "node:fs";
import { aptInstall, canInstall } from "./apt.mjs";
import { hasCommand, run } from "./command.mjs";
import { SetupError, say } from "./say.mjs";

const hasStaticLibc = () => existsSync(run("gcc", ["-print-file-name=libc.a"]).output);

/** What the host has to bring, as Debian names it. */
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

/** What the tests run inside sandboxes, which see the host's /usr, and what serving can do without. */
const TEST_NEEDS = [
  { package: "python3", why: "tests' programs", met: () => existsSync("/usr/bin/python3") },
  {
    package: "e2fsprogs",
    why: "sandboxes' own disks",
    met: () => hasCommand("mke2fs"),
  },
  {
    package: "chromium",
    why: "opens previews as people do",
    met: () => BROWSERS.some((path) => existsSync(path)),
  },
];

/** Serving takes one runtime; the tests go through both. */
function missingNeeds(purpose) {
  const runtimes = RUNTIMES.filter(({ met }) => !met());
  const enough = purpose !== "test" && runtimes.length < RUNTIMES.length;
  const needs = purpose === "test" ? [...NEEDS, ...TEST_NEEDS] : NEEDS;
  return [...needs.filter(({ met }) => !met()), ...(enough ? [] : runtimes)];
}

export function installHostPackages(_root, purpose) {
  if (process.platform !== "linux")
    throw new SetupError("Holdfast runs on Linux: it needs its namespaces and cgroups");
  const missing = missingNeeds(purpose);
  if (missing.length === 0) return;
  const packages = missing.map((need) => need.package);
  const named = missing.map((need) => `${need.package} (${need.why})`).join(", ");
  const byHand = `missing on this host: ${named}. Install them, on Debian and its kin with:\n  sudo apt-get install ${packages.join(" ")}`;
  if (!canInstall()) throw new SetupError(byHand);
  say(`installing from the distribution: ${named}`);
  const failed = aptInstall(packages);
  if (failed !== null) throw new SetupError(`${failed}\n${byHand}`);
  const still = missingNeeds(purpose).map((need) => need.package);
  if (still.length > 0) throw new SetupError(`installed, but still not usable: ${still.join(", ")}`);
}
