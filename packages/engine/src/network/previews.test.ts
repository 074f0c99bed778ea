import { PREVIEW_ID_PATTERN, type PreviewId, type SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, testEngine } from "../testing/test-engine.ts";

const denied = (act: () => unknown) => {
  try {
    act();
    return "admitted";
  } catch (error) {
    return (error as { code: string }).code;
  }
};

async function opened(numbers = {}) {
  const made = await testEngine(numbers);
  const { sandbox } = await made.create("one");
  return { ...made, sandbox };
}

describe("a preview", () => {
  it("has no token on request, and returns an existing token again", async () => {
    const { engine, create } = await testEngine();
    await create("one");
    const { token } = await engine.previews.create("one", { port: 3000, name: "web" }, { token: false });
    expect([token, await engine.previews.tokens("one", "web")]).toEqual([null, []]);
    const made = await engine.previews.createToken("one", "web", {});
    expect(await engine.previews.token("one", "web", made.info.id)).toBe(made.token);
    expect(await codeOf(engine.previews.token("one", "web", "0123456789abcdef"))).toBe("preview_not_found");
  });

  it("opens one port of one sandbox to the bearer of its token", async () => {
    const { engine, sandbox } = await opened();
    const { preview, token } = await engine.previews.create("one", { port: 3000, name: "web" });
    expect(preview).toMatchObject({ name: "web", port: 3000, public: false, expiresAt: null });
    expect(engine.previews.admit(token ?? "")).toMatchObject({ sandboxId: sandbox.id, port: 3000 });
    expect(engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000)).toBeNull();
  });

  it("that is public needs no token", async () => {
    const { engine, sandbox } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000, public: true });
    expect(token).toBeNull();
    expect(engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000)).toMatchObject({ port: 3000 });
    expect(engine.previews.admitPublicPort(sandbox.id as SandboxId, 3001)).toBeNull();
  });

  it("rejects forged, unknown and malformed tokens", async () => {
    const { engine } = await opened();
    const { token } = await engine.previews.create("one", { port: 3000 });
    const right = token ?? "";
    const turned = (at: number, to: string) => `${right.slice(0, at)}${to}${right.slice(at + 1)}`;
    const last = right.length - 1;
    const wrong = [
      ...[...right].map((letter, at) => turned(at, letter === "x" ? "y" : "x")),
      // Three of these decode to the bytes of the right signature, because decoding ignores two bits of the last letter.
      ...[..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"].map((letter) =>
        turned(last, letter),
      ),
    ].filter((text) => text !== right);
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

  it("expires, and its connections are cut", async () => {
    const { engine } = await opened({ maintainEveryMs: 20 });
    const { token } = await engine.previews.create("one", { port: 3000, tokenTtlMs: 1_000 });
    const { signal } = engine.previews.admit(token ?? "");
    await eventually(() => expect(signal.aborted).toBe(true));
    expect(denied(() => engine.previews.admit(token ?? ""))).toBe("preview_denied");
    const [known] = await engine.previews.tokens("one", (await engine.previews.list("one"))[0]?.name ?? "");
    expect(known).toMatchObject({ expired: true });
  });

  it("has tokens that expire no later than itself", async () => {
    const { engine } = await opened();
    const { preview } = await engine.previews.create("one", { port: 3000, name: "web", ttlMs: 60_000 });
    const { info } = await engine.previews.createToken("one", "web", { ttlMs: 3_600_000 });
    expect(info.expiresAt).toBe(preview.expiresAt);
  });

  it("loses a revoked token, and only that", async () => {
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

  it("rejects its tokens after it was removed or moved to another port", async () => {
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

  it("cuts the connections to its old port when it moves to another", async () => {
    const { engine, sandbox } = await opened();
    await engine.previews.create("one", { port: 3000, name: "web", public: true });
    const grant = engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000);
    await engine.previews.update("one", "web", { port: 3001 });
    expect(grant?.signal.aborted).toBe(true);
    expect(engine.previews.admitPublicPort(sandbox.id as SandboxId, 3001)?.signal.aborted).toBe(false);
  });

  it("that is public and deleted cuts its own connections, not those of another preview of its port", async () => {
    const { engine, sandbox } = await opened();
    const ids = await Promise.all(
      ["a", "b"].map(async (name) => {
        const { preview } = await engine.previews.create("one", { port: 3000, name, public: true });
        return preview.id as PreviewId;
      }),
    );
    const [a, b] = ids.map((id) => engine.previews.admitPublic(id));
    const host = engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000);
    await engine.previews.remove("one", "a");
    expect([a, b, host].map((grant) => grant?.signal.aborted)).toEqual([true, false, false]);
    expect(ids.map((id) => engine.previews.admitPublic(id)?.previewId ?? null)).toEqual([null, ids[1]]);
    await engine.previews.update("one", "b", { public: false });
    expect([b, host].map((grant) => grant?.signal.aborted)).toEqual([true, true]);
    expect(engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000)).toBeNull();
  });

  it("keeps a public port's connections until the last of its previews has expired", async () => {
    const { engine, sandbox } = await opened({ maintainEveryMs: 20 });
    await engine.previews.create("one", { port: 3000, name: "a", public: true, ttlMs: 600_000 });
    await engine.previews.create("one", { port: 3000, name: "b", public: true, ttlMs: 1_000 });
    const host = engine.previews.admitPublicPort(sandbox.id as SandboxId, 3000);
    const { expiresAt } = await engine.previews.get("one", "a");
    expect(host?.expiresAt).toBe(Date.parse(expiresAt ?? ""));
    const b = engine.previews.admitPublic((await engine.previews.get("one", "b")).id as PreviewId);
    await eventually(() => expect(b?.signal.aborted).toBe(true));
    expect(host?.signal.aborted).toBe(false);
    await engine.previews.remove("one", "a");
    expect(host?.signal.aborted).toBe(true);
  });

  it("that is created again under its name keeps its id, and its earlier tokens stay revoked", async () => {
    const { engine, create } = await opened();
    await create("two");
    const first = await engine.previews.create("one", { port: 3000, name: "web" });
    await engine.previews.remove("one", "web");
    const again = await engine.previews.create("one", { port: 3000, name: "web", public: true });
    expect(again.preview.id).toBe(first.preview.id);
    expect(again.preview.id).toMatch(new RegExp(PREVIEW_ID_PATTERN));
    expect(denied(() => engine.previews.admit(first.token ?? ""))).toBe("preview_denied");
    const others = [
      await engine.previews.create("one", { port: 3000, name: "wed" }),
      await engine.previews.create("two", { port: 3000, name: "web" }),
      await engine.previews.create("one", { port: 3000 }),
    ];
    const ids = [first, ...others].map(({ preview }) => preview.id);
    expect(new Set(ids).size).toBe(ids.length);
    expect(await codeOf(engine.previews.create("one", { port: 1, name: "web" }))).toBe("preview_exists");
    expect(await engine.previews.get("one", "web")).toMatchObject({ port: 3000, public: true });
  });

  it("has the headers that were set last, also after a restart, and none once it has expired", async () => {
    const { engine, restart } = await opened();
    const headers = (value: string) => ({ request: { "x-a": value }, response: { "x-b": value } });
    const made = await engine.previews.create(
      "one",
      { port: 3000, name: "web" },
      { headers: headers("first") },
    );
    const id = made.preview.id as PreviewId;
    expect(engine.previews.admit(made.token ?? "").headers).toEqual(headers("first"));
    await engine.previews.update("one", "web", { public: true });
    expect(engine.previews.headersOf(id)).toEqual(headers("first"));
    await engine.previews.update("one", "web", { headers: headers("second") });
    await engine.stop();
    const next = await restart();
    expect(next.previews.admitPublic(id)?.headers).toEqual(headers("second"));
    await next.previews.remove("one", "web");
    expect(next.previews.headersOf(id)).toEqual({ request: {}, response: {} });
  });

  it("that expired frees its place and its name", async () => {
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

  it("survives a restart, and is deleted with its sandbox", async () => {
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

  it("has a unique name in its sandbox, and the number per sandbox is limited", async () => {
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

  it("is recorded in the timeline", async () => {
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
