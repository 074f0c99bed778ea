import type { CheckpointId, CreateSandbox, ExecId, SandboxId } from "@holdfast/contract";
import type { EngineApi } from "../ports/api.ts";
import { start } from "./sleeping-sandbox.ts";
import { signal, testEngine } from "./test-engine.ts";

export const save = (engine: EngineApi, ref: string, name?: string) =>
  engine.checkpoints.create(ref, name === undefined ? {} : { name }, signal);

export const fork = (engine: EngineApi, fromCheckpoint: string, input: CreateSandbox = {}) =>
  engine.sandboxes
    .create({ fromCheckpoint, ...input }, { wait: true, signal })
    .then(({ sandbox }) => sandbox);

/** Returns the id that an exec of the source sandbox has in the fork. `from` is its id in the source sandbox. */
export function nameIn({ forkedFrom }: Awaited<ReturnType<typeof fork>>, from: string): ExecId {
  const [id] = Object.entries(forkedFrom?.execs ?? {}).find(([, there]) => there === from) ?? [];
  if (id === undefined) throw new Error(`there is no ${from} in the fork`);
  return id as ExecId;
}

/** Creates a sandbox with a running command, and a checkpoint of it. */
export async function saved(numbers = {}) {
  const all = await testEngine(numbers);
  const { sandbox } = await all.create("box");
  const id = sandbox.id as SandboxId;
  const exec = await start(all.engine, "box", ["sleep"]);
  all.driver.instances.get(id)?.print(exec.id as ExecId, "before ");
  const checkpoint = await save(all.engine, "box", "one");
  return { ...all, id, exec, checkpoint, checkpointId: checkpoint.id as CheckpointId };
}

export const waited = (engine: EngineApi, id: string) => engine.execs.wait(id, { waitMs: 5_000, signal });

export async function textOf(engine: EngineApi, id: string): Promise<string> {
  let text = "";
  for await (const record of engine.execs.output(id, { follow: false, signal }))
    if (record.type === "stdout") text += Buffer.from(record.data).toString();
  return text;
}
