/** Commits until it is killed, sixteen at a time, and prints the id of each sandbox once its commit was acknowledged. */
import { openStore } from "../store.ts";
import { sampleSandbox } from "./samples.ts";

const store = await openStore({ path: process.argv[2] ?? "" });

async function commitForEver(): Promise<never> {
  for (;;) {
    const record = sampleSandbox();
    await store.commit({
      changes: [{ kind: "sandbox.insert", record }],
      events: [{ at: 1, type: "sandbox.created", sandboxId: record.id, message: "made" }],
      counters: { created: 1 },
    });
    await new Promise<void>((resolve) => process.stdout.write(`${record.id}\n`, () => resolve()));
  }
}

await Promise.all(Array.from({ length: 16 }, commitForEver));
