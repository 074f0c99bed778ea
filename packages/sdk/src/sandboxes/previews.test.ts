import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, NotFoundError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, aPreview, aToken, drop, json, refuse } from "../testing/faulty-server.ts";

const bench = useBench();
const base = "/v1/sandboxes/sbx_0000000000000000/previews";
const id = "prv_0000000000000000";
const { token, url, pathUrl, ...info } = aToken();
const opened = aPreview({ token, url, pathUrl });
const nothing: Answer = (_, response) => void response.writeHead(204).end();
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`);
const bodyOf = (at: number) => JSON.parse(String(bench.server.seen[at]?.body)) as Record<string, unknown>;

describe("a preview", () => {
  it("is created with the given options", async () => {
    const box = await bench.box();
    bench.server.answer(json(201, opened));
    const options = { name: "web", public: false, ttlMs: 60_000, tokenTtlMs: 30_000 };
    expect(await box.previews.create(3000, options)).toEqual(opened);
    expect(requests()).toEqual([`POST ${base}`]);
    expect(bodyOf(0)).toEqual({ port: 3000, ...options });
  });

  it("is created once after a lost response, with a new token", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(409, "preview_exists"), json(200, aPreview()), json(201, aToken()));
    expect(await box.previews.create(3000, { tokenTtlMs: 30_000 })).toEqual(opened);
    const { name } = bodyOf(0);
    expect(requests()).toEqual([
      `POST ${base}`,
      `POST ${base}`,
      `GET ${base}/${name}`,
      `POST ${base}/${name}/tokens`,
    ]);
    expect(bodyOf(1)).toEqual(bodyOf(0));
    expect(bodyOf(3)).toEqual({ ttlMs: 30_000 });
  });

  it("that is public needs no token, even after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(409, "preview_exists"), json(200, aPreview({ public: true })));
    expect(await box.previews.create(3000, { public: true })).toEqual(aPreview({ public: true }));
  });

  it("with a taken name fails, and reports whether it may be this one", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(409, "preview_exists"));
    const error = await failure(box.previews.create(3000, { name: "web" }));
    expect(error).toBeInstanceOf(ConflictError);
    expect(error.dispatched).toBe("no");
    bench.server.answer(drop, refuse(409, "preview_exists"));
    expect(await failure(box.previews.create(3000, { name: "web" }))).toMatchObject({
      code: "preview_exists",
      dispatched: "unknown",
    });
    bench.server.answer(refuse(429, "too_many_previews"));
    expect(await failure(box.previews.create(3000))).toBeInstanceOf(UnavailableError);
  });

  it("is found by id or name, and listed, with a retry after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(drop, json(200, aPreview()));
    expect(await box.previews.get("web")).toEqual(aPreview());
    bench.server.answer(drop, json(200, { items: [aPreview()] }));
    expect(await box.previews.list()).toEqual([aPreview()]);
    expect(requests()).toEqual([`GET ${base}/web`, `GET ${base}/web`, `GET ${base}`, `GET ${base}`]);
    bench.server.answer(refuse(404, "preview_not_found"));
    expect(await failure(box.previews.get("a/b"))).toBeInstanceOf(NotFoundError);
    expect(requests().at(-1)).toBe(`GET ${base}/a%2Fb`);
  });

  it("is deleted by id with retries, and by name once", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(404, "preview_not_found"));
    expect(await box.previews.delete(id)).toBeUndefined();
    expect(requests()).toEqual([`DELETE ${base}/${id}`, `DELETE ${base}/${id}`]);
    bench.server.answer(drop, nothing);
    expect(await failure(box.previews.delete("web"))).toBeInstanceOf(ConnectionError);
    bench.server.answer(refuse(404, "preview_not_found"));
    expect(await failure(box.previews.delete(id))).toBeInstanceOf(NotFoundError);
  });
});

describe("the tokens of a preview", () => {
  it("are created one at a time, without retries", async () => {
    const box = await bench.box();
    bench.server.answer(json(201, aToken()));
    expect(await box.previews.createToken("web", { ttlMs: 1_000 })).toEqual(aToken());
    expect(requests()).toEqual([`POST ${base}/web/tokens`]);
    expect(bodyOf(0)).toEqual({ ttlMs: 1_000 });
    bench.server.answer(drop, json(201, aToken()));
    expect((await failure(box.previews.createToken("web"))).dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(2);
  });

  it("are listed without their secrets", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, { items: [info] }));
    expect(await box.previews.tokens("web")).toEqual([info]);
    expect(requests()).toEqual([`GET ${base}/web/tokens`]);
  });

  it("are revoked, with retries after lost responses", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(404, "preview_not_found"));
    expect(await box.previews.deleteToken("web", info.id)).toBeUndefined();
    expect(requests().at(-1)).toBe(`DELETE ${base}/web/tokens/${info.id}`);
  });
});
