import { expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

it("a hundred sandboxes, created four at a time and deleted, are counted exactly and leave nothing", async () => {
  await using server = await TestServer.start();
  const client = server.client();
  const todo = Array.from({ length: 100 }, (_, i) => i).values();
  const worker = async () => {
    for (const i of todo) {
      const box = await client.sandboxes.create({ name: `many-${i}`, resources: { memoryMb: 64, pids: 32 } });
      expect((await box.exec(["echo", String(i)])).stdout).toBe(`${i}\n`);
    }
  };
  await Promise.all([worker(), worker(), worker(), worker()]);
  const full = await client.stats();
  expect(full.sandboxes.ready).toBe(100);
  expect(full.totals).toMatchObject({
    created: 100,
    terminated: 0,
    failed: 0,
    execsStarted: 100,
    execsEnded: 100,
  });
  const { items } = await client.sandboxes.list({ limit: 1000 });
  expect(new Set(items.map(({ name }) => name)).size).toBe(100);
  const doomed = items.values();
  const remover = async () => {
    for (const { id } of doomed)
      expect((await (await client.sandboxes.get(id)).delete()).status).toBe("terminated");
  };
  await Promise.all([remover(), remover(), remover(), remover()]);
  const empty = await client.stats();
  expect(empty.totals).toMatchObject({ created: 100, terminated: 100, failed: 0 });
  expect(empty.sandboxes.ready).toBe(0);
  expect(server.leftovers()).toEqual([]);
  client.close();
});
