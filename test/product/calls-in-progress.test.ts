import type { Holdfast } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

const soon = { timeout: 45_000, interval: 50 };
/** More than a keeper can have open. */
const READS = 200;

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

it("more reads of files than a keeper can have open are all answered", async () => {
  const box = await client.sandboxes.create();
  const content = "x".repeat(2_000_000);
  await box.files.write("/home/user/large", content);
  const reads = await Promise.all(
    Array.from({ length: READS }, async () => (await box.files.read("/home/user/large")).length),
  );
  expect(reads).toEqual(Array.from({ length: READS }, () => content.length));
  expect(await box.verify()).toMatchObject({ ok: true });
  await box.delete();
}, 120_000);

it("a standby is refused while a caller waits for an exec, with the exec's id, and the caller gets its result", async () => {
  const box = await client.sandboxes.create();
  const post = (path: string, body: object) =>
    server.fetch(`/v1/sandboxes/${box.id}/${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  const id = "awaited";
  const command = "until [ -e /tmp/go ]; do sleep 0.05; done; echo done";
  const wait = post("execs", { id, command, waitMs: 120_000 });
  await vi.waitFor(async () => expect((await client.execs.get(id)).info.status).toBe("running"), soon);
  const refusal = await post("standby", {});
  expect(refusal.status).toBe(409);
  expect(await refusal.json()).toMatchObject({
    error: { code: "sandbox_busy", execId: id, dispatched: "no" },
  });
  await box.files.write("/tmp/go", "");
  const answer = await wait;
  expect(answer.status).toBe(200);
  expect(await answer.json()).toMatchObject({ status: "exited", stdout: "done\n" });
  await box.delete();
}, 180_000);

it("a sandbox ends at its TTL: its name is free, and it is found by id as terminated", async () => {
  const first = await client.sandboxes.create({ name: "brief", lifecycle: { ttlMs: 5_000 } });
  const endsAt = Date.parse(first.info.expiresAt ?? "");
  await vi.waitFor(() => expect(Date.now()).toBeGreaterThan(endsAt), soon);
  const again = await client.sandboxes.create({ name: "brief" });
  expect(again.id).not.toBe(first.id);
  await vi.waitFor(
    async () => expect((await client.sandboxes.get(first.id)).info.status).toBe("terminated"),
    soon,
  );
  await again.delete();
}, 120_000);
