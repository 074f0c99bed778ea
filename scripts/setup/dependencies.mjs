import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "./command.mjs";
import { runningServers } from "./running-server.mjs";
import { SetupError, saying } from "./say.mjs";

/**
 * Fields of package.json that affect what is installed. Other fields, such as scripts, can change without a new
 * install.
 */
const INSTALLED_BY = [
  "name",
  "version",
  "bin",
  "workspaces",
  "dependencies",
  "devDependencies",
  "optionalDependencies",
  "peerDependencies",
  "overrides",
  "allowScripts",
];

const stampFile = (root) => join(root, "node_modules", ".holdfast-setup");

/**
 * Installs dependencies if the lock file or a package.json has changed since the last install. Refuses while a server
 * runs from this checkout.
 */
export async function installDependencies(root) {
  const wanted = dependencyStamp(root);
  if (readStamp(root) === wanted) return;
  const servers = runningServers(root);
  if (servers.length > 0) {
    throw new SetupError(
      `the dependencies have changed, but a server runs from this checkout (process ${servers.join(", ")}): stop it first (kill ${servers.join(" ")}), then try again. Its sandboxes keep running.`,
    );
  }
  rmSync(stampFile(root), { force: true });
  await saying("installing dependencies (npm)", () => install(root));
  if (!existsSync(join(root, "node_modules", ".bin", "node"))) {
    throw new SetupError(
      "npm left no Node in node_modules/.bin: is the install script of the package 'node' allowed?",
    );
  }
  writeFileSync(stampFile(root), wanted);
}

async function install(root) {
  const { ok, output } = await run("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], {
    cwd: root,
  });
  if (!ok) throw new SetupError(`"npm ci" failed:\n${output}`);
}

function dependencyStamp(root) {
  const hash = createHash("sha256").update(`${process.platform} ${process.arch}\0`);
  for (const file of ["package-lock.json", ".npmrc"])
    hash.update(`${file}\0`).update(readFileSync(join(root, file)));
  for (const file of packageFiles(root)) {
    const manifest = JSON.parse(readFileSync(join(root, file), "utf8"));
    hash.update(`${file}\0${JSON.stringify(INSTALLED_BY.map((field) => manifest[field] ?? null))}\0`);
  }
  return hash.digest("hex");
}

function packageFiles(root) {
  const packages = readdirSync(join(root, "packages")).map((name) => join("packages", name, "package.json"));
  return ["package.json", join("bench", "package.json"), ...packages.sort()].filter((file) =>
    existsSync(join(root, file)),
  );
}

function readStamp(root) {
  try {
    return readFileSync(stampFile(root), "utf8");
  } catch {
    return null;
  }
}
