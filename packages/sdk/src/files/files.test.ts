import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, type FileChange, Holdfast, InvalidRequestError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { anError, aSandbox, drop, json, lines, refuse } from "../testing/faulty-server.ts";

const bench = useBench();

describe("files", () => {
  it("of any size are written and read byte-exact, also as streams", async () => {
    const box = await bench.box();
    const content = randomBytes(3_000_000);
    bench.server.answer(
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      (_, response) => void response.end(content),
    );
    await box.files.write("/a b", content, { mode: "0755" });
    await box.files.write(
      "/c",
      (async function* () {
        yield "text ";
        yield content;
      })(),
    );
    expect(bench.server.seen[0]?.body.equals(content)).toBe(true);
    expect(bench.server.seen[0]?.url.searchParams.get("path")).toBe("/a b");
    expect(bench.server.seen[1]?.body.equals(Buffer.concat([Buffer.from("text "), content]))).toBe(true);
    expect(Buffer.from(await box.files.read("/a b")).equals(content)).toBe(true);
  });

  it("are read by range, whole without one, and not requested for an empty range", async () => {
    const box = await bench.box();
    bench.server.answer((_, response) => void response.end("all of it"));
    for (const range of [{ offset: 3 }, { length: 2 }, { offset: 3, length: 2 }, { offset: 0 }, {}]) {
      await box.files.read("/a", range);
    }
    const asked = ["bytes=3-", "bytes=0-1", "bytes=3-4", undefined, undefined];
    expect(bench.server.seen.map(({ headers }) => headers.range)).toEqual(asked);
    bench.server.seen.length = 0;
    expect(await box.files.read("/a", { length: 0 })).toHaveLength(0);
    expect(await box.files.readText("/a", { offset: 3, length: 0 })).toBe("");
    for await (const _ of await box.files.readStream("/a", { length: 0 }))
      throw new Error("bytes of nothing");
    expect(bench.server.seen).toHaveLength(0);
  });

  it("reject invalid ranges", async () => {
    const box = await bench.box();
    for (const range of [{ length: -1 }, { offset: -3 }, { offset: 1.5 }, { length: Number.NaN }]) {
      const error = await failure(box.files.read("/a", range));
      expect(error).toBeInstanceOf(InvalidRequestError);
      expect(error).toMatchObject({ code: "invalid_request", dispatched: "no" });
      expect(await failure(box.files.readStream("/a", range))).toBeInstanceOf(InvalidRequestError);
    }
    expect(bench.server.seen).toHaveLength(0);
  });

  it.each([
    ["node:http", {}],
    ["fetch", { fetch: globalThis.fetch }],
  ])("as streams wait for a slow reader, with %s", async (_, transport) => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 1_000, ...transport });
    bench.server.answer(json(200, aSandbox()));
    const box = await hasty.sandboxes.get("box");
    bench.server.answer((_request, response) => {
      response.writeHead(200).write("one");
      setTimeout(() => response.end("two"), 50);
    });
    const stream = await box.files.readStream("/a");
    const longer = () => new Promise((resolve) => setTimeout(resolve, 1_500));
    await longer();
    let text = "";
    for await (const piece of stream) {
      text += Buffer.from(piece).toString();
      await longer();
    }
    expect(text).toBe("onetwo");
    hasty.close();
  });

  it("in memory are sent again after a lost response, streams are not", async () => {
    const box = await bench.box();
    bench.server.answer(drop, json(200, {}));
    await box.files.write("/a", randomBytes(2_000_000));
    expect(bench.server.seen).toHaveLength(2);
    bench.server.seen.length = 0;
    const stream = async function* () {
      yield "once";
    };
    bench.server.answer(drop, json(200, {}));
    expect(await failure(box.files.write("/a", stream()))).toBeInstanceOf(ConnectionError);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("whose upload is rejected early report the error and stop reading the source", async () => {
    const box = await bench.box();
    let pulled = 0;
    const endless = async function* () {
      for (;;) {
        pulled += 1;
        yield new Uint8Array(65_536);
      }
    };
    bench.server.early((_, response) => refuse(403, "permission_denied")({} as never, response));
    expect(await failure(box.files.write("/etc/x", endless()))).toMatchObject({ code: "permission_denied" });
    const before = pulled;
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(pulled - before).toBeLessThan(3);
  });

  it("are read without waking the sandbox on request, or fail with not_on_disk", async () => {
    const box = await bench.box();
    const asked = () => bench.server.seen.map(({ url }) => `${url.pathname} ${url.searchParams.get("wake")}`);
    bench.server.answer(json(200, {}));
    const { files } = box;
    const base = "/v1/sandboxes/sbx_0000000000000000/files";
    for (const [options, wake] of [
      [{ wake: false }, "false"],
      [{ wake: true }, "true"],
      [{}, null],
    ] as const) {
      bench.server.seen.length = 0;
      await files.read("/a", options);
      await files.readText("/a", options);
      for await (const _ of await files.readStream("/a", options));
      await files.list("/a", options);
      await files.stat("/a", options);
      await files.exists("/a", options);
      expect(asked()).toEqual(
        ["", "", "", "/list", "/stat", "/stat"].map((what) => `${base}${what} ${wake}`),
      );
    }
    bench.server.answer(refuse(409, "not_on_disk"));
    for (const what of ["read", "list", "stat", "exists"] as const) {
      const error = await failure(files[what]("/proc/1/stat", { wake: false }));
      expect(error).toBeInstanceOf(ConflictError);
      expect(error).toMatchObject({ code: "not_on_disk", retryable: false });
    }
  });

  it("that cannot be sent twice wait for a waking sandbox, however short the timeout", async () => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 50 });
    bench.server.answer(json(200, aSandbox()));
    const box = await hasty.sandboxes.get("box");
    bench.server.seen.length = 0;
    bench.server.answer((request, response) => {
      setTimeout(() => json(200, {})(request, response), 500);
    });
    const stream = async function* () {
      yield "once";
    };
    await Promise.all([box.files.move("/a", "/b"), box.files.remove("/c"), box.files.write("/d", stream())]);
    expect(bench.server.seen).toHaveLength(3);
    hasty.close();
  });

  it("that are missing do not exist, and other errors are thrown", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(404, "file_not_found"), refuse(404, "sandbox_not_found"));
    expect(await box.files.exists("/x")).toBe(false);
    expect(await failure(box.files.exists("/x"))).toMatchObject({ code: "sandbox_not_found" });
  });
});

describe("a search", () => {
  it("sends exactly the given options", async () => {
    const box = await bench.box();
    const found = { path: "/app", items: [], truncated: false };
    bench.server.answer(json(200, found));
    expect(
      await box.files.search("/app", {
        name: "*.ts",
        content: "a b",
        regex: true,
        ignoreCase: false,
        exclude: [".git", "dist"],
        limit: 5,
        wake: false,
      }),
    ).toEqual(found);
    await box.files.search("/");
    const [first, second] = bench.server.seen.map(({ url }) => url);
    expect(first?.pathname).toBe("/v1/sandboxes/sbx_0000000000000000/files/search");
    expect(first?.search).toBe(
      "?path=%2Fapp&name=*.ts&content=a%20b&regex=true&ignoreCase=false&exclude=.git&exclude=dist&limit=5&wake=false",
    );
    expect(second?.search).toBe("?path=%2F");
  });
});

describe("an archive", () => {
  const tar = { "content-type": "application/x-tar" };

  it("is downloaded as a stream, and fails if it is cut", async () => {
    const box = await bench.box();
    const content = randomBytes(300_000);
    bench.server.answer(
      (_, response) => void response.writeHead(200, tar).end(content),
      (_, response) => {
        response.writeHead(200, tar).write(content, () => response.socket?.destroy());
      },
    );
    const gather = async () => {
      const pieces: Uint8Array[] = [];
      for await (const piece of await box.files.pack("/app")) pieces.push(piece);
      return Buffer.concat(pieces);
    };
    expect((await gather()).equals(content)).toBe(true);
    expect(await failure(gather())).toBeInstanceOf(ConnectionError);
    expect(bench.server.seen[0]?.url.pathname).toMatch(/\/files\/tar$/);
  });

  it("is uploaded as bytes, with retries, or as a stream, once", async () => {
    const box = await bench.box();
    const made = { path: "/app", files: 2, bytes: 3 };
    bench.server.answer(drop, json(200, made));
    const content = randomBytes(10_000);
    expect(await box.files.unpack("/app", content)).toEqual(made);
    expect(bench.server.seen.map(({ method, body }) => [method, body.equals(content)])).toEqual([
      ["PUT", true],
      ["PUT", true],
    ]);
    bench.server.seen.length = 0;
    bench.server.answer(drop, json(200, made));
    const stream = async function* () {
      yield content;
    };
    expect(await failure(box.files.unpack("/app", stream()))).toBeInstanceOf(ConnectionError);
    expect(bench.server.seen).toHaveLength(1);
  });
});

describe("a watch", () => {
  const start = { type: "start", path: "/app" };
  const change = (name: string): FileChange => ({ kind: "created", path: `/app/${name}`, directory: false });
  const changeRecord = (name: string) => ({ type: "change", ...change(name) });
  const end = (status: number, code: string) => ({ type: "end", error: anError(status, code) });
  const overflow: FileChange = { kind: "overflow", path: "/app", directory: true };
  const keepalive = { type: "keepalive" };

  it("starts when the server reports it, and yields each change", async () => {
    const box = await bench.box();
    let greet = () => {};
    bench.server.answer((_, response) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" }).flushHeaders();
      greet = () => void response.write(`${JSON.stringify(start)}\n${JSON.stringify(changeRecord("a"))}\n`);
    });
    let begun = false;
    const watching = box.files.watch("/app", { recursive: true }).finally(() => {
      begun = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(begun).toBe(false);
    greet();
    for await (const each of await watching) {
      expect(each).toEqual(change("a"));
      break;
    }
    const { url, headers } = bench.server.seen[0] ?? {};
    expect(`${url?.pathname}${url?.search}`).toBe(
      "/v1/sandboxes/sbx_0000000000000000/files/watch?path=%2Fapp&recursive=true",
    );
    expect(headers?.accept).toBe("application/x-ndjson");
  });

  it("continues across lost connections, ended streams and standby, and reports an overflow", async () => {
    const box = await bench.box();
    bench.server.answer(
      lines([start, changeRecord("a")], "cut"),
      drop,
      lines([start, keepalive, changeRecord("b")], "close"),
      lines([start, changeRecord("c"), end(503, "link_lost")]),
      refuse(503, "starting"),
      lines([start, changeRecord("d")], "silence"),
    );
    const seen: FileChange[] = [];
    for await (const each of await box.files.watch("/app")) {
      seen.push(each);
      if (each.path === "/app/d") break;
    }
    expect(seen).toEqual([change("a"), overflow, change("b"), overflow, change("c"), overflow, change("d")]);
  });

  it("ends with errors that are not retryable", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(404, "file_not_found"));
    expect(await failure(box.files.watch("/app"))).toMatchObject({ code: "file_not_found" });
    bench.server.answer(lines([start, changeRecord("a"), end(409, "wrong_state")]));
    const changes = (await box.files.watch("/app"))[Symbol.asyncIterator]();
    expect(await changes.next()).toEqual({ done: false, value: change("a") });
    expect(await failure(changes.next())).toMatchObject({ code: "wrong_state", status: 409 });
  });

  it("gives up on a server that only sends a start, and ends with its signal", async () => {
    const box = await bench.box();
    bench.server.answer(lines([start], "close"));
    const greeted = (async () => {
      for await (const each of await box.files.watch("/app")) expect(each).toEqual(overflow);
    })();
    expect(await failure(greeted)).toBeInstanceOf(ConnectionError);
    bench.server.answer(lines([start], "silence"));
    const controller = new AbortController();
    const changes = (await box.files.watch("/app", { signal: controller.signal }))[Symbol.asyncIterator]();
    const next = changes.next();
    controller.abort(new Error("enough"));
    await expect(next).rejects.toThrow("enough");
  });
});
