import type { CreateDrive, DriveId, MountDrive, SandboxId } from "@holdfast/contract";
import type { EngineApi } from "../api.ts";
import { signal, world } from "./world.ts";

export const makeDrive = async (engine: EngineApi, name: string, more: Partial<CreateDrive> = {}) =>
  (await engine.drives.create({ name, ...more }, { signal })).drive;

export const mount = (engine: EngineApi, ref: string, input: Partial<MountDrive> = {}) =>
  engine.mounts.mount(ref, { drive: "data", path: "/data", ...input }, signal);

export const removeDrive = (engine: EngineApi, ref: string, force = false) =>
  engine.drives.remove(ref, { force, signal });

export const mountsIn = async (engine: EngineApi, ref: string) =>
  (await engine.mounts.list(ref)).items.map(({ drive, path, state }) => `${drive} at ${path}: ${state}`);

export const driveEvents = async (engine: EngineApi, drive: string) =>
  (await engine.events({ drive, limit: 1000 })).items.map(({ type }) => type);

/** A sandbox and a drive, of which nothing is mounted yet. */
export async function apart(numbers = {}) {
  const all = await world(numbers);
  const { id: driveId } = await makeDrive(all.engine, "data");
  const { sandbox } = await all.create("box");
  const id = sandbox.id as SandboxId;
  /** What lies at a path inside: a drive's directory, an empty one that nobody can write to, or nothing of either. */
  const inside = (path = "/data") => all.driver.instances.get(id)?.mounts.get(path);
  return { ...all, id, driveId: driveId as DriveId, inside };
}

/** The same with the drive in the sandbox. */
export async function mounted(numbers = {}) {
  const all = await apart(numbers);
  await mount(all.engine, "box");
  return all;
}
