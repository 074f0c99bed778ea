import type { SandboxId } from "@holdfast/contract";
import type { EngineApi } from "../ports/api.ts";
import { signal, testEngine } from "./test-engine.ts";

export const start = async (engine: EngineApi, ref: string, argv: string[], more: object = {}) =>
  (await engine.execs.start(ref, { argv, ...more }, { signal })).exec;

export const eventsOf = async (engine: EngineApi, ref: string) =>
  (await engine.events({ ref, limit: 1000 })).items.map(({ type }) => type);

/** Creates a sandbox in standby with a running command. */
export async function asleep(numbers = {}) {
  const all = await testEngine(numbers);
  const { sandbox } = await all.create("box");
  const id = sandbox.id as SandboxId;
  const exec = await start(all.engine, "box", ["sleep"]);
  const info = await all.engine.sandboxes.standby("box", signal);
  return { ...all, id, exec, info };
}

/** Returns a promise that stays pending until the signal aborts, and then rejects with the signal's reason. */
export const aborted = (inner: AbortSignal) =>
  new Promise<void>((_, reject) => inner.addEventListener("abort", () => reject(inner.reason)));
