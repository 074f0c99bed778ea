import { newSandboxId } from "@holdfast/contract";
import { expect, test } from "vitest";
import { Operations } from "./operations.ts";

const never = new AbortController().signal;
const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Runs operations that run until they are superseded, and notes when each one runs. */
function noted() {
  const operations = new Operations();
  const id = newSandboxId();
  const happened: string[] = [];
  let running = 0;
  let most = 0;
  const start = (name: string, signal = never) =>
    operations
      .run(id, signal, async (ended, superseded) => {
        most = Math.max(most, ++running);
        happened.push(`${name} begins`);
        const signals = AbortSignal.any([ended, superseded]);
        if (!signals.aborted) await new Promise((resolve) => signals.addEventListener("abort", resolve));
        // An aborted operation still takes a while to end.
        await turn();
        running--;
        happened.push(`${name} ends`);
        signals.throwIfAborted();
      })
      .catch((error: unknown) => String(error));
  return { operations, id, happened, start, most: () => most };
}

test("of two callers that wait for the same operation, the second supersedes the first one's operation", async () => {
  const { operations, id, happened, start, most } = noted();
  const all = ["one", "two", "three", "four"].map((name) => start(name));
  for (let i = 0; i < 20; i++) await turn();
  expect(most()).toBe(1);
  expect(happened.filter((each) => each.endsWith("begins"))).toHaveLength(4);
  expect(operations.has(id)).toBe(true);
  // The last one is known, so a stop reaches it.
  await operations.supersede(id, never);
  for (const outcome of await Promise.all(all)) expect(outcome).toContain("a later operation");
  await turn();
  expect(operations.has(id)).toBe(false);
});

test("a caller that leaves while it waits starts nothing, and does not delay the others", async () => {
  const { operations, happened, start } = noted();
  const first = start("one");
  const left = await start("two", AbortSignal.abort(new Error("left")));
  expect(left).toContain("left");
  expect(await first).toContain("a later operation");
  expect(happened).toEqual(["one begins", "one ends"]);
  await operations.end(new Error("closed"));
});

test("all operations are ended together, and each one is awaited", async () => {
  const operations = new Operations();
  const ended: number[] = [];
  const runs = [1, 2, 3].map((number) =>
    operations
      .run(newSandboxId(), never, async (signal) => {
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        await turn();
        ended.push(number);
        signal.throwIfAborted();
      })
      .catch((error: unknown) => String(error)),
  );
  await operations.end(new Error("the driver was closed"));
  expect(ended).toEqual([1, 2, 3]);
  expect(await Promise.all(runs)).toEqual(Array.from({ length: 3 }, () => "Error: the driver was closed"));
});
