import type { CreateDrive, DriveId, MountDrive, SandboxId } from "@holdfast/contract";
import type { EngineApi } from "../ports/api.ts";
import { signal, testEngine } from "./test-engine.ts";

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

/** Creates a sandbox and a drive. The drive is not mounted yet. */
export async function apart(numbers = {}) {
  const all = await testEngine(numbers);
  const { id: driveId } = await makeDrive(all.engine, "data");
  const { sandbox } = await all.create("box");
  const id = sandbox.id as SandboxId;
  /** Returns which directory is at a path inside the sandbox: a drive's, an empty read-only one, or neither. */
  const inside = (path = "/data") => all.driver.instances.get(id)?.mounts.get(path);
  return { ...all, id, driveId: driveId as DriveId, inside };
}

/** Creates a sandbox with a drive mounted in it. */
export async function mounted(numbers = {}) {
  const all = await apart(numbers);
  await mount(all.engine, "box");
  return all;
}
