import { execFile } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { randomText } from "@holdfast/contract";
import { type KeeperBinaries, keeperBinaries } from "@holdfast/keeper";
import type { Layout } from "./layout.ts";
import { readReferences } from "./record.ts";

const VERSION_MS = 5_000;

export interface Installed {
  version: string;
  /** The keeper's directory, as sandboxes see it. */
  dir: string;
  /** The porter's binary; sandboxes never see it. */
  porter: string;
}

/**
 * Copies per version that are never written again: what an instance or a running server uses stays what it was, whatever
 * is built meanwhile. In the keeper's directory lies the mount point of the control directory, so that all of
 * `/.holdfast` inside is one read-only mount.
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

/** The copy itself says its version, so that of a build that is half done nothing gets a version's name. */
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
        `the ${name} is of version ${stdout.trim()} and should be ${version}: run \`node packages/keeper/build.mjs\``,
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
