import { execFile } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { randomText } from "@holdfast/contract";
import { type KeeperBinaries, keeperBinaries } from "@holdfast/keeper";
import type { Layout } from "./layout.ts";
import { readReferences } from "./sandbox-notes.ts";

const VERSION_MS = 5_000;

interface Installed {
  version: string;
  /** Directory of the keeper; sandboxes see it as `/.holdfast`. */
  dir: string;
  /** The porter's binary; sandboxes never see it. */
  porter: string;
}

/**
 * Copies keeper and porter into a directory per version. A copy is never changed, so instances and running servers keep
 * their binaries when a new version is built. The keeper's directory also contains the mount point of the control
 * directory, so that `/.holdfast` inside a sandbox is a single read-only mount.
 */
export async function installBinaries(
  layout: Layout,
  { keeper, porter, version }: KeeperBinaries = keeperBinaries(),
): Promise<Installed> {
  const dir = join(layout.keepers, version);
  const porterDir = join(layout.porters, version);
  await install(keeper, "keeper", version, dir, ["control"]);
  await install(porter, "porter", version, porterDir, []);
  removeOld(layout, version);
  return { version, dir, porter: join(porterDir, "porter") };
}

/**
 * Copies a binary and runs the copy to check its version, so that an incomplete build is not installed as that version.
 */
async function install(binary: string, name: string, version: string, dir: string, below: string[]) {
  if (existsSync(dir)) return;
  const temporary = join(dir, "..", `.${randomText(12)}`);
  try {
    mkdirSync(temporary);
    for (const each of below) mkdirSync(join(temporary, each));
    const copy = join(temporary, name);
    copyFileSync(binary, copy);
    for (const path of [copy, temporary]) chmodSync(path, 0o755);
    const { stdout } = await promisify(execFile)(copy, ["--version"], { timeout: VERSION_MS });
    if (stdout.trim() !== version) {
      throw new Error(
        `the ${name} has version ${stdout.trim()} and should be ${version}: run \`node packages/keeper/build.mjs\``,
      );
    }
    renameSync(temporary, dir);
  } finally {
    rmSync(temporary, { recursive: true, force: true });
  }
}

function removeOld(layout: Layout, current: string): void {
  removeAllBut(layout.porters, (version) => version === current);
  const { keepers, unreadable } = readReferences(layout);
  if (unreadable > 0) return;
  removeAllBut(layout.keepers, (version) => version === current || keepers.has(version));
}

function removeAllBut(dir: string, isKept: (name: string) => boolean): void {
  for (const name of readdirSync(dir)) {
    if (!isKept(name)) rmSync(join(dir, name), { recursive: true, force: true });
  }
}
