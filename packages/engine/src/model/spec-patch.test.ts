import { expect, it } from "vitest";
import { codeOf, remove, signal, world } from "./testing/world.ts";
import { changedSpec } from "./updated-spec.ts";

const spec = {
  image: "host",
  env: { A: "1", B: "2" },
  cwd: null,
  resources: { memoryMb: 64, cpus: 1, pids: 64 },
  lifecycle: { ttlMs: 60_000 },
  labels: { team: "a" },
};

it("what is not named stays, and null removes", () => {
  const change = changedSpec(spec, {
    env: { A: null, C: "3" },
    labels: { team: "b" },
    lifecycle: { ttlMs: null },
  });
  expect(change?.spec).toEqual({ ...spec, env: { B: "2", C: "3" }, labels: { team: "b" }, lifecycle: {} });
  expect(change?.what).toBe("labels (team), env (A, C), lifecycle (ttlMs)");
});

it("a change to what is so already is none", () => {
  expect(changedSpec(spec, { labels: { team: "a", other: null }, lifecycle: { ttlMs: 60_000 } })).toBeNull();
});

it("no more labels and variables than a sandbox can be created with", () => {
  const labels = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`l${index}`, "x"]));
  expect(() => changedSpec(spec, { labels })).toThrow("65 labels");
});

it("a sandbox is changed, says so, and is so after the next start", async () => {
  const { engine, create, restart } = await world();
  const { sandbox } = await create("one");
  const changed = await engine.sandboxes.update("one", {
    labels: { team: "b" },
    lifecycle: { ttlMs: 3_600_000 },
  });
  expect(changed).toMatchObject({ labels: { team: "b" }, lifecycle: { ttlMs: 3_600_000 }, status: "ready" });
  expect(Date.parse(changed.expiresAt ?? "")).toBe(Date.parse(sandbox.createdAt) + 3_600_000);
  const { items } = await engine.events({ ref: "one", types: ["sandbox.updated"], limit: 10 });
  expect(items.map(({ message }) => message)).toEqual(["Changed: labels (team), lifecycle (ttlMs)."]);
  await engine.stop();
  const next = await restart();
  expect(await next.sandboxes.get("one")).toMatchObject({ labels: { team: "b" } });
});

it("one that has lain unused is not deleted the moment that this gets a limit", async () => {
  const { engine, create } = await world();
  const { sandbox } = await create("one");
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const changed = await engine.sandboxes.update("one", { lifecycle: { idleTtlMs: 1_000 } });
  expect(Date.parse(changed.lastActivityAt)).toBeGreaterThan(Date.parse(sandbox.lastActivityAt));
  const { items } = await engine.cleanup({ dryRun: true, emergency: false });
  expect(items).toEqual([]);
});

it("changes at the same time don't undo each other", async () => {
  const { engine, create } = await world();
  await create("one");
  const keys = Array.from({ length: 12 }, (_, index) => `k${index}`);
  await Promise.all(keys.map((key) => engine.sandboxes.update("one", { labels: { [key]: "x" } })));
  expect(Object.keys((await engine.sandboxes.get("one")).labels).sort()).toEqual(keys.sort());
});

it("execs that start from then on have the new environment", async () => {
  const { engine, create, driver } = await world();
  await create("one");
  await engine.sandboxes.update("one", { env: { SECRET: "new" } });
  const { exec } = await engine.execs.start("one", { command: "true" }, { signal });
  const envs = [...driver.instances.values()].flatMap(({ execs }) =>
    [...execs.values()].flatMap(({ order }) => (order.id === exec.id ? [order.env] : [])),
  );
  expect(envs).toEqual([expect.objectContaining({ SECRET: "new" })]);
});

it("what is gone is not changed", async () => {
  const { engine, create } = await world();
  const { sandbox } = await create("one");
  await remove(engine, "one");
  expect(await codeOf(engine.sandboxes.update(sandbox.id, { labels: { a: "b" } }))).toBe("sandbox_gone");
});
