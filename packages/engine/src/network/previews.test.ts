import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, world } from "./testing/world.ts";

const denied = (act: () => unknown) => {
  try {
    act();
    return "admitted";
  } catch (error) {
    return (error as { code: string }).code;
  }
};

async function opened(numbers = {}) {
  const made = await world(numbers);
  const { sandbox } = await made.create("one");
  return { ...made, sandbox };
}

describe("a preview", () => {
  it("has no token before one is asked for, where that is wanted, and tells one again", async () => {
    const { engine, create } = await world();
    await create("one");
    const { token } = await engine.previews.create("one", { port: 3000, name: "web" }, { token: false });
    expect([token, await engine.previews.tokens("one", "web")]).toEqual([null, []]);
    const made = await engine.previews.createToken("one", "web", {});
    expect(await engine.previews.token("one", "web", made.info.id)).toBe(made.token);
    expect(await codeOf(engine.previews.token("one", "web", "0123456789abcdef"))).toBe("preview_not_found");
  });

  it("opens one port of one sandbox to who has its token", async () => {
    const { engine, sandbox } = await opened();
    const { preview, token } = await engine.previews.create("one", { port: 3000, name: "web" });
    expect(preview).toMatchObject({ name: "web", port: 3000, public: false, expiresAt: null });
    expect(engine.previews.admit(token ?? "")).toMatchObject({ sandboxId: sandbox.id, port: 3000 });
    expect(engine.previews.admitPublic(sandbox.id as never, 3000)).toBeNull();
  });

  it("that is public needs none", async () => {
    const { engine, sandbox } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000, public: true });
    expect(token).toBeNull();
    expect(engine.previews.admitPublic(sandbox.id as never, 3000)).toMatchObject({ port: 3000 });
    expect(engine.previews.admitPublic(sandbox.id as never, 3001)).toBeNull();
  });

  it("is not opened by a token that was tampered with, made up, or is none", async () => {
    const { engine } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000 });
    const right = token ?? "";
    const turned = (at: number) =>
      `${right.slice(0, at)}${right[at] === "x" ? "y" : "x"}${right.slice(at + 1)}`;
    const wrong = [...Array(right.length).keys()].map(turned);
    for (const each of [
      ...wrong,
      "",
      "hfp_",
      right.slice(0, -1),
      `${right}A`,
      `${right} `,
      right.toUpperCase(),
    ])
      expect(denied(() => engine.previews.admit(each))).toBe("preview_denied");
    expect(denied(() => engine.previews.admit(right))).toBe("admitted");
  });

  it("is closed by its time, and what came in by it is cut", async () => {
    const { engine } = await opened({ maintainEveryMs: 20 });
    const { token } = await engine.previews.create("one", { port: 3000, tokenTtlMs: 1_000 });
    const { signal } = engine.previews.admit(token ?? "");
    await eventually(() => expect(signal.aborted).toBe(true));
    expect(denied(() => engine.previews.admit(token ?? ""))).toBe("preview_denied");
    const [known] = await engine.previews.tokens("one", (await engine.previews.list("one"))[0]?.name ?? "");
    expect(known).toMatchObject({ expired: true });
  });

  it("has tokens that don't outlive it", async () => {
    const { engine } = await opened();
    const { preview } = await engine.previews.create("one", { port: 3000, name: "web", ttlMs: 60_000 });
    const { info } = await engine.previews.createToken("one", "web", { ttlMs: 3_600_000 });
    expect(info.expiresAt).toBe(preview.expiresAt);
  });

  it("loses a token that is taken back, and only that", async () => {
    const { engine } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000, name: "web" });
    const second = await engine.previews.createToken("one", "web", {});
    const { signal } = engine.previews.admit(token ?? "");
    const first = (await engine.previews.tokens("one", "web")).find(({ id }) => id !== second.info.id);
    await engine.previews.removeToken("one", "web", first?.id ?? "");
    expect(signal.aborted).toBe(true);
    expect(denied(() => engine.previews.admit(token ?? ""))).toBe("preview_denied");
    expect(denied(() => engine.previews.admit(second.token))).toBe("admitted");
    expect(await codeOf(engine.previews.removeToken("one", "web", first?.id ?? ""))).toBe(
      "preview_not_found",
    );
  });

  it("that is removed, or is of another port by now, is opened by none of its tokens", async () => {
    const { engine } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000, name: "web" });
    await engine.previews.update("one", "web", { port: 3001 });
    expect(denied(() => engine.previews.admit(token ?? ""))).toBe("preview_denied");
    const next = await engine.previews.createToken("one", "web", {});
    expect(engine.previews.admit(next.token)).toMatchObject({ port: 3001 });
    await engine.previews.remove("one", "web");
    expect(denied(() => engine.previews.admit(next.token))).toBe("preview_denied");
    expect(await codeOf(engine.previews.get("one", "web"))).toBe("preview_not_found");
  });

  it("that is of another port by now has cut what it had let in to the one before", async () => {
    const { engine, sandbox } = await opened();
    await engine.previews.create("one", { port: 3000, name: "web", public: true });
    const grant = engine.previews.admitPublic(sandbox.id as never, 3000);
    await engine.previews.update("one", "web", { port: 3001 });
    expect(grant?.signal.aborted).toBe(true);
    expect(engine.previews.admitPublic(sandbox.id as never, 3001)?.signal.aborted).toBe(false);
  });

  it("that is over makes room, and gives up its name", async () => {
    const { engine, store } = await opened({ previewsPerSandbox: 1 });
    const first = await engine.previews.create("one", { port: 3000, name: "web", ttlMs: 1_000 });
    expect(await codeOf(engine.previews.create("one", { port: 3001 }))).toBe("too_many_previews");
    await eventually(() =>
      expect(denied(() => engine.previews.admit(first.token ?? ""))).toBe("preview_denied"),
    );
    const { preview } = await engine.previews.create("one", { port: 3001, name: "web" });
    expect(await engine.previews.list("one")).toEqual([preview]);
    expect(await store.previews()).toHaveLength(1);
  });

  it("is there for the next server, and gone with its sandbox", async () => {
    const { engine, restart, store } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000, name: "web" });
    await engine.stop();
    const next = await restart();
    const { signal } = next.previews.admit(token ?? "");
    expect(await next.previews.list("one")).toMatchObject([{ name: "web" }]);
    await remove(next, "one");
    expect(denied(() => next.previews.admit(token ?? ""))).toBe("preview_denied");
    await eventually(() => expect(signal.aborted).toBe(true));
    expect(await store.previews()).toEqual([]);
  });

  it("has a name of its own in its sandbox, and there are only so many", async () => {
    const { engine, create } = await opened({ previewsPerSandbox: 2, tokensPerPreview: 2 });
    await create("two");
    await engine.previews.create("one", { port: 3000, name: "web" });
    await engine.previews.create("two", { port: 3000, name: "web" });
    expect(await codeOf(engine.previews.create("one", { port: 1, name: "web" }))).toBe("preview_exists");
    const more = await Promise.allSettled([1, 2, 3].map((port) => engine.previews.create("one", { port })));
    expect(more.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    await engine.previews.createToken("one", "web", {});
    expect(await codeOf(engine.previews.createToken("one", "web", {}))).toBe("too_many_previews");
  });

  it("is told of in the timeline", async () => {
    const { engine } = await opened();
    await engine.previews.create("one", { port: 3000, name: "web" });
    await engine.previews.remove("one", "web");
    const types = ["preview.created", "preview.removed"] as const;
    const { items } = await engine.events({ ref: "one", types, limit: 10 });
    expect(items.map(({ type, data }) => [type, data])).toEqual([
      ["preview.created", { preview: "web", port: 3000, public: false }],
      ["preview.removed", { preview: "web", port: 3000, public: false }],
    ]);
  });
});
