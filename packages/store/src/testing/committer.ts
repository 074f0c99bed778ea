/**
 * Commits sandboxes, sixteen at a time, until it is killed. The commits are durable against a crash of either the
 * server or the host. Prints each sandbox id once its commit was acknowledged.
 */
import { openStore } from "../store.ts";
import { sampleSandbox } from "./samples.ts";

const outlives = process.argv[3] === "server" ? "server" : "host";
const store = await openStore({ path: process.argv[2] ?? "" });

async function commitForEver(): Promise<never> {
  for (;;) {
    const record = sampleSandbox();
    await store.commit({
      changes: [{ kind: "sandbox.insert", record }],
      events: [{ at: 1, type: "sandbox.created", sandboxId: record.id, message: "made" }],
      counters: { created: 1 },
      outlives,
    });
    await new Promise<void>((resolve) => process.stdout.write(`${record.id}\n`, () => resolve()));
  }
}

await Promise.all(Array.from({ length: 16 }, commitForEver));
