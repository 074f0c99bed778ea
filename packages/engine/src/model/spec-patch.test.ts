import { describe, expect, it } from "vitest";
import { codeOf, remove, signal, testEngine } from "../testing/test-engine.ts";
import { changedSpec, withFixedEnd } from "./spec-patch.ts";

const spec = {
  image: "host",
  env: { A: "1", B: "2" },
  cwd: null,
  resources: { memoryMb: 64, cpus: 1, pids: 64 },
  lifecycle: { ttlMs: 60_000 },
  labels: { team: "a" },
};

it("a patch leaves absent keys unchanged, and null removes a key", () => {
  const change = changedSpec(spec, {
    env: { A: null, C: "3" },
    labels: { team: "b" },
    lifecycle: { ttlMs: null },
  });
  expect(change?.spec).toEqual({ ...spec, env: { B: "2", C: "3" }, labels: { team: "b" }, lifecycle: {} });
  expect(change?.what).toBe("labels (team), env (A, C), lifecycle (ttlMs)");
});

it("a patch without an effect is null", () => {
  expect(changedSpec(spec, { labels: { team: "a", other: null }, lifecycle: { ttlMs: 60_000 } })).toBeNull();
});

describe("the end of a sandbox's life", () => {
  const hour = 3_600_000;
  const at = { createdAt: 1_000_000, now: 1_000_000 + 2 * hour };

  it("counts from the creation, or from the update", () => {
    expect(withFixedEnd({ labels: { a: "b" } }, at)).toEqual({ labels: { a: "b" } });
    expect(withFixedEnd({ lifecycle: { ttlMs: 3 * hour, maxExecs: 9 } }, at)).toEqual({
      lifecycle: { ttlMs: 3 * hour, maxExecs: 9 },
    });
    expect(withFixedEnd({ lifecycle: { ttlMs: null } }, at)).toEqual({ lifecycle: { ttlMs: null } });
    expect(withFixedEnd({ lifecycle: { expiresInMs: hour } }, at)).toEqual({
      lifecycle: { ttlMs: 3 * hour },
    });
  });

  it("cannot be a moment that has passed, more than a year after the creation, or two moments", () => {
    expect(() => withFixedEnd({ lifecycle: { ttlMs: 2 * hour } }, at)).toThrow("is 7200 s old");
    expect(() => withFixedEnd({ lifecycle: { ttlMs: hour } }, at)).toThrow("would delete it at once");
    expect(() => withFixedEnd({ lifecycle: { expiresInMs: 31_536_000_000 } }, at)).toThrow("366 days");
    expect(() => withFixedEnd({ lifecycle: { ttlMs: 9 * hour, expiresInMs: hour } }, at)).toThrow("not both");
  });

  it("is moved by an update, and one that has passed deletes nothing", async () => {
    const { engine, create } = await testEngine();
    await create("one");
    await new Promise((resolve) => setTimeout(resolve, 1_100));
    expect(await codeOf(engine.sandboxes.update("one", { lifecycle: { ttlMs: 1_000 } }))).toBe(
      "invalid_request",
    );
    expect(await engine.sandboxes.get("one")).toMatchObject({ status: "ready", expiresAt: null });
    const before = Date.now();
    const { expiresAt } = await engine.sandboxes.update("one", { lifecycle: { expiresInMs: 60_000 } });
    expect(Date.parse(expiresAt ?? "")).toBeGreaterThanOrEqual(before + 60_000);
    expect(Date.parse(expiresAt ?? "")).toBeLessThanOrEqual(Date.now() + 60_000);
  });
});

it("a patch can't exceed the number of labels and variables that a create allows", () => {
  const labels = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`l${index}`, "x"]));
  expect(() => changedSpec(spec, { labels })).toThrow("65 labels");
});

it("an update changes the sandbox, records an event, and survives a restart", async () => {
  const { engine, create, restart } = await testEngine();
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

it("a new idle limit counts from the update, so it does not delete an idle sandbox at once", async () => {
  const { engine, create } = await testEngine();
  const { sandbox } = await create("one");
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const changed = await engine.sandboxes.update("one", { lifecycle: { idleTtlMs: 1_000 } });
  expect(Date.parse(changed.lastActivityAt)).toBeGreaterThan(Date.parse(sandbox.lastActivityAt));
  const { items } = await engine.cleanup({ dryRun: true, emergency: false });
  expect(items).toEqual([]);
});

it("concurrent updates do not undo each other", async () => {
  const { engine, create } = await testEngine();
  await create("one");
  const keys = Array.from({ length: 12 }, (_, index) => `k${index}`);
  await Promise.all(keys.map((key) => engine.sandboxes.update("one", { labels: { [key]: "x" } })));
  expect(Object.keys((await engine.sandboxes.get("one")).labels).sort()).toEqual(keys.sort());
});

it("execs that start after an update have the new environment", async () => {
  const { engine, create, driver } = await testEngine();
  await create("one");
  await engine.sandboxes.update("one", { env: { SECRET: "new" } });
  const { exec } = await engine.execs.start("one", { command: "true" }, { signal });
  const envs = [...driver.instances.values()].flatMap(({ execs }) =>
    [...execs.values()].flatMap(({ order }) => (order.id === exec.id ? [order.env] : [])),
  );
  expect(envs).toEqual([expect.objectContaining({ SECRET: "new" })]);
});

it("an update of a deleted sandbox is refused", async () => {
  const { engine, create } = await testEngine();
  const { sandbox } = await create("one");
  await remove(engine, "one");
  expect(await codeOf(engine.sandboxes.update(sandbox.id, { labels: { a: "b" } }))).toBe("sandbox_gone");
});
