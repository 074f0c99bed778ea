import { copyFileSync, existsSync, mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { isImageName, isSandboxId } from "@holdfast/contract";
import type { Layout } from "../machine/layout.ts";
import type { Copier, Sides } from "./copy-sandbox.ts";
import { NoRoomForBackup } from "./copy-trees.ts";

/** Files of a state directory that are copied unchanged. */
const PLAIN = ["admin.key", "ids.json"];

/**
 * Copies everything that belongs to no single sandbox or drive: keys, id range, keepers, images and archived journals.
 */
export async function copyShared(machine: Copier, sides: Sides, signal: AbortSignal): Promise<number> {
  const { from, to } = sides;
  for (const name of PLAIN) {
    const path = join(from.stateDir, name);
    if (existsSync(path)) copyFileSync(path, join(to.stateDir, name));
  }
  let bytes = await copyBelow(machine, sides, from.keepers, to.keepers, /^[0-9a-z]+$/, signal);
  for (const name of readdirSync(from.images).filter(isImageName))
    bytes += await copyImage(machine, sides, name, signal);
  if (existsSync(from.journals)) {
    const kept = readdirSync(from.journals).filter(isSandboxId);
    for (const id of kept) bytes += await copyOne(machine, sides, from.journals, to.journals, id, signal);
  }
  return bytes;
}

/**
 * Copies the given version of an image, or all versions if none is given. Skips versions that the target already has.
 */
export async function copyImage(
  machine: Copier,
  sides: Sides,
  name: string,
  signal: AbortSignal,
  version?: string,
): Promise<number> {
  const [source, target] = [imageDir(sides.from, name), imageDir(sides.to, name)];
  mkdirSync(target, { recursive: true, mode: 0o700 });
  const wanted = version === undefined ? /^(?!image\.json)[^.]/ : new RegExp(`^${RegExp.escape(version)}$`);
  const bytes = await copyBelow(machine, sides, source, target, wanted, signal);
  const record = join(source, "image.json");
  if (existsSync(record) && !existsSync(join(target, "image.json")))
    copyFileSync(record, join(target, "image.json"));
  return bytes;
}

const imageDir = ({ images }: Layout, name: string): string => join(images, name);

async function copyBelow(
  machine: Copier,
  sides: Sides,
  from: string,
  to: string,
  wanted: RegExp,
  signal: AbortSignal,
): Promise<number> {
  let bytes = 0;
  for (const name of readdirSync(from).filter((each) => wanted.test(each))) {
    if (existsSync(join(to, name))) continue;
    bytes += await copyOne(machine, sides, from, to, name, signal);
  }
  return bytes;
}

/** Copies one tree. Skips a tree that is removed during the copy, because no sandbox needs it. */
async function copyOne(
  { porter }: Copier,
  { maxBytes }: Sides,
  from: string,
  to: string,
  name: string,
  signal: AbortSignal,
): Promise<number> {
  const copied = await porter.copy({ from, to, names: [name], maxBytes: maxBytes() }, signal);
  if (copied === "too_much") throw new NoRoomForBackup();
  if (copied !== "gone") return copied.bytes;
  await porter.removeTree(join(to, name));
  return 0;
}
