import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { FaultyWorld } from "../support/faults/faulty-world.ts";

const PROGRAM = readFileSync(join(import.meta.dirname, "..", "support", "workloads", "web-program.py"));
const REQUESTS = 1_000;
const AT_ONCE = 50;
const PORT = 3000;
/** Far longer than any of these takes: a request that has not ended by then hangs. */
const HANGS_MS = 60_000;

it("a thousand requests through a port whose server is restarted and whose link is cut are each answered correctly or refused with a typed error", async () => {
  const numbers = { linkRetryMaxMs: 200, portAnswerMs: 10_000 };
  await using world = await FaultyWorld.make({ boxes: 1, seed: 7, numbers });
  const { server } = world;
  const client = world.client();
  const [box] = await world.boxes(client);
  const [keeper] = world.keepers;
  if (box === undefined || keeper === undefined) throw new Error("there is no sandbox");
  await box.files.write("/tmp/web.py", PROGRAM);
  const loop = await box.execs.start(`while :; do python3 /tmp/web.py ${PORT}; done`, { keepAwake: false });

  const ask = (path: string, init: RequestInit = {}) =>
    server.fetch(`/v1/sandboxes/${box.id}/ports/${PORT}${path}`, {
      ...init,
      signal: AbortSignal.timeout(HANGS_MS),
    });
  await expect.poll(async () => (await ask("/n/0")).status, { timeout: 20_000 }).toBe(200);

  const tally = { right: 0, restarts: 0, cuts: 0, errors: {} as Record<string, number> };
  let next = 0;
  const over = new AbortController();
  const restarting = (async () => {
    while (!over.signal.aborted) {
      await sleep(700);
      await ask("/die").catch(() => undefined);
      tally.restarts += 1;
    }
  })();
  const cutting = (async () => {
    while (!over.signal.aborted) {
      await sleep(350);
      keeper.reset("both");
      tally.cuts += 1;
    }
  })();
  const worker = async () => {
    for (let n = next++; n < REQUESTS; n = next++) {
      const isPost = n % 4 === 0;
      const init = isPost ? { method: "POST", body: `b${n}` } : {};
      const response = await ask(isPost ? "/echo" : `/n/${n}`, init);
      const text = await response.text();
      if (response.status === 200) {
        expect(text).toBe(isPost ? `got:b${n}` : `n:${n}`);
        tally.right += 1;
        continue;
      }
      const { error } = JSON.parse(text) as {
        error: { code: string; retryable: boolean; dispatched: string };
      };
      expect(error).toMatchObject({ retryable: true, dispatched: expect.stringMatching(/^(no|unknown)$/) });
      tally.errors[error.code] = (tally.errors[error.code] ?? 0) + 1;
      // No process listens while the program restarts.
      await sleep(20);
    }
  };
  try {
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  } finally {
    over.abort();
    await Promise.all([restarting, cutting]);
  }
  console.log(`ports under a storm: ${JSON.stringify(tally)}`);
  const refused = Object.values(tally.errors).reduce((sum, count) => sum + count, 0);
  expect(tally.right + refused).toBe(REQUESTS);
  expect(tally.right).toBeGreaterThan(0);
  expect(tally.cuts).toBeGreaterThan(2);

  // The port keeps serving, and the storm left nothing in the server or the keeper.
  keeper.heal();
  await expect.poll(async () => (await ask("/n/9")).status, { timeout: 20_000 }).toBe(200);
  await expect.poll(() => keeper.tally.open, { timeout: 20_000 }).toBeLessThanOrEqual(2);
  await loop.cancel();
  client.close();
}, 180_000);
