import { createHash } from "node:crypto";
import { request } from "node:http";
import { createConnection } from "node:net";
import { gzipSync } from "node:zlib";
import { type FileChange, HoldfastError } from "@holdfast/contract";
import { LinkLost } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { aFile, authorized, json, serve, until } from "../testing/double.ts";

const CHUNK = 1_048_576;
const path = "/v1/sandboxes/a/files?path=/home/user/a";

/** File access with the given bytes, read in chunks as from the keeper. */
const filesWith = (content: Buffer, sizeBytes = content.length) => ({
  read: async (_ref: string, _path: string, range: { offset: number; length: number | null }) => {
    const end = range.length === null ? content.length : range.offset + range.length;
    const part = content.subarray(range.offset, end);
    async function* body() {
      for (let at = 0; at < part.length; at += CHUNK) yield part.subarray(at, at + CHUNK);
    }
    return { stat: aFile(sizeBytes), body: body() };
  },
});

const small = Buffer.from("0123456789");
const large = Buffer.alloc(3 * CHUNK + 17, "abcdefghij");

describe("reading", () => {
  test.each([
    [small, undefined, 200, null, "0123456789"],
    [small, "bytes=2-4", 206, "bytes 2-4/10", "234"],
    [small, "bytes=7-", 206, "bytes 7-9/10", "789"],
    [small, "bytes=-3", 206, "bytes 7-9/10", "789"],
    [small, "bytes=-99", 206, "bytes 0-9/10", "0123456789"],
    [small, "bytes=5-99", 206, "bytes 5-9/10", "56789"],
    [small, "bytes=4-2", 200, null, "0123456789"],
    [small, "lines=1-2", 200, null, "0123456789"],
    [small, "bytes=0-1,3-4", 200, null, "0123456789"],
    [Buffer.alloc(0), undefined, 200, null, ""],
    [large, undefined, 200, null, large.toString()],
    [large, "bytes=1-3000000", 206, `bytes 1-3000000/${large.length}`, large.toString().slice(1, 3_000_001)],
  ])("%# a range is served exactly", async (content, range, status, contentRange, text) => {
    await using server = await serve({ files: filesWith(content) });
    const response = await server.fetch(path, { headers: range ? { range } : {} });
    expect(response.status).toBe(status);
    expect(response.headers.get("content-range")).toBe(contentRange);
    expect(response.headers.get("content-length")).toBe(String(text.length));
    expect((await response.text()) === text).toBe(true);
  });

  test.each(["bytes=10-", "bytes=99-100", "bytes=-0"])(
    "%s is outside the file and is refused",
    async (range) => {
      await using server = await serve({ files: filesWith(small) });
      const response = await server.fetch(path, { headers: { range } });
      expect(response.status).toBe(416);
      expect(await response.json()).toMatchObject({ error: { code: "range_not_satisfiable" } });
    },
  );

  test("a file without a size, as in /proc, is served completely", async () => {
    await using server = await serve({ files: filesWith(small, 0) });
    expect(await (await server.fetch(path)).text()).toBe("0123456789");
    await using other = await serve({ files: filesWith(large, 0) });
    expect((await (await other.fetch(path)).arrayBuffer()).byteLength).toBe(large.length);
  });

  test("a suffix range of a file without a size is refused", async () => {
    await using server = await serve({ files: filesWith(small, 0) });
    expect((await server.fetch(path, { headers: { range: "bytes=-3" } })).status).toBe(416);
  });

  test("a suffix range of a link is that of the file, not of the link", async () => {
    const link = async () => ({ ...aFile(4), kind: "symlink" as const, target: "long" });
    await using server = await serve({ files: { ...filesWith(small), stat: link } });
    const response = await server.fetch(path, { headers: { range: "bytes=-3" } });
    expect(await response.text()).toBe("789");
  });

  test.each([
    [0, new HoldfastError("permission_denied"), 403, "permission_denied"],
    [1, new LinkLost("the keeper is gone", "yes"), 503, "link_lost"],
  ])("a read that fails before its first byte is a typed error: %#", async (good, error, status, code) => {
    async function* body() {
      for (let sent = 0; sent < good; sent++) yield small;
      throw error;
    }
    await using server = await serve({ files: { read: async () => ({ stat: aFile(99), body: body() }) } });
    const response = await server.fetch(path);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { code, operation: "readFile" } });
  });

  test("a file that shrinks while it is read never looks complete", async () => {
    await using server = await serve({ files: filesWith(large, large.length + 1) });
    const response = await server.fetch(path);
    await expect(response.arrayBuffer()).rejects.toThrow();
  });

  test("a file that grows is served with its original length", async () => {
    await using server = await serve({ files: filesWith(large, large.length - 5) });
    expect((await (await server.fetch(path)).arrayBuffer()).byteLength).toBe(large.length - 5);
  });
});

describe("reading from a sandbox in standby", () => {
  const asked: unknown[] = [];
  const files = {
    ...filesWith(small),
    stat: async (_ref: string, _path: string, options: object) => {
      asked.push(options);
      return aFile(1);
    },
    list: async (_ref: string, path: string, options: object) => {
      asked.push(options);
      return { path, items: [], truncated: false };
    },
    read: async (ref: string, path: string, options: { offset: number; length: number | null }) => {
      asked.push(options);
      return filesWith(small).read(ref, path, options);
    },
  };

  test.each([
    ["", true],
    ["&wake=true", true],
    ["&wake=false", false],
  ])("may wake it unless wake=false: %j", async (query, wake) => {
    asked.length = 0;
    await using server = await serve({ files });
    for (const what of ["files", "files/stat", "files/list"]) {
      expect((await server.fetch(`/v1/sandboxes/a/${what}?path=/a${query}`)).status).toBe(200);
    }
    const range = { range: "bytes=-3" };
    expect(await (await server.fetch(`${path}${query}`, { headers: range })).text()).toBe("789");
    expect(asked).toEqual([
      { offset: 0, length: null, wake },
      { wake },
      { limit: 10_000, wake },
      { offset: 0, length: 0, wake },
      { offset: 7, length: 3, wake },
    ]);
  });

  test("is refused with its own code if it would need a wake", async () => {
    const read = () => Promise.reject(new HoldfastError("not_on_disk"));
    await using server = await serve({ files: { read } });
    const response = await server.fetch(`${path}&wake=false`);
    expect(response.status).toBe(409);
    expect(await response.json()).toMatchObject({ error: { code: "not_on_disk", retryable: false } });
  });

  test.each(["wake=no", "wake=0", "wake="])("is refused with %s", async (query) => {
    await using server = await serve({ files });
    expect((await server.fetch(`${path}&${query}`)).status).toBe(400);
  });
});

describe("writing", () => {
  async function digest(body: AsyncIterable<Uint8Array>): Promise<{ size: number; sha: string }> {
    const hash = createHash("sha256");
    let size = 0;
    for await (const chunk of body) {
      hash.update(chunk);
      size += chunk.length;
    }
    return { size, sha: hash.digest("hex") };
  }

  test("a body far above the JSON limit is streamed, whatever its type", async () => {
    const content = Buffer.alloc(20 * CHUNK, "xyz");
    const seen: unknown[] = [];
    await using server = await serve({
      files: {
        write: async (_ref, path, body, options) => {
          seen.push({ path, ...(await digest(body)), ...options });
          return aFile(content.length);
        },
      },
    });
    const types: Record<string, string>[] = [{}, { "content-type": "application/json" }];
    for (const headers of types) {
      const response = await server.fetch(`${path}&mode=0755`, { method: "PUT", body: content, headers });
      expect(response.status).toBe(200);
      expect(await response.json()).toMatchObject({ sizeBytes: content.length });
    }
    const sha = createHash("sha256").update(content).digest("hex");
    const expected = { path: "/home/user/a", size: content.length, sha, mode: 0o755, parents: true };
    expect(seen).toEqual([expected, expected]);
  });

  test("accepts an empty file", async () => {
    await using server = await serve({
      files: { write: async (_ref, _path, body) => aFile((await digest(body)).size) },
    });
    expect((await server.fetch(path, { method: "PUT" })).status).toBe(200);
    expect(await (await server.fetch(path, { method: "PUT", body: "" })).json()).toMatchObject({
      sizeBytes: 0,
    });
  });

  test("an interrupted upload is an error for the writer, not a short file", async () => {
    let outcome = "none";
    await using server = await serve({
      files: {
        write: async (_ref, _path, body) => {
          outcome = await digest(body).then(
            () => "complete",
            () => "broken",
          );
          return aFile(0);
        },
      },
    });
    const upload = request(server.url + path, {
      method: "PUT",
      headers: { ...authorized, "content-length": "1000" },
    });
    upload.on("error", () => {});
    upload.write("half");
    await new Promise((resolve) => setTimeout(resolve, 50));
    upload.destroy();
    await until(() => outcome !== "none");
    expect(outcome).toBe("broken");
  });

  test.each(["half", ""])("an upload that stalls after %j is aborted", async (sent) => {
    let outcome = "none";
    await using server = await serve(
      {
        files: {
          write: async (_ref, _path, body) => {
            outcome = await digest(body).then(
              () => "complete",
              () => "broken",
            );
            return aFile(0);
          },
        },
      },
      { numbers: { httpStallMs: 100 } },
    );
    const upload = request(server.url + path, {
      method: "PUT",
      headers: { ...authorized, "content-length": "1000" },
    });
    upload.on("error", () => {});
    upload.flushHeaders();
    if (sent) upload.write(sent);
    await until(() => outcome !== "none");
    expect(outcome).toBe("broken");
  });

  test("a refused upload gets its typed error, and the connection stays usable", async () => {
    await using server = await serve({
      files: {
        write: async (_ref, _path, body) => {
          for await (const _ of body) throw new HoldfastError("disk_full");
          return aFile(0);
        },
        stat: async () => aFile(1),
      },
    });
    const { hostname, port } = new URL(server.url);
    const socket = createConnection(Number(port), hostname);
    const size = 5 * CHUNK;
    const key = `authorization: ${authorized.authorization}`;
    socket.write(`PUT ${path} HTTP/1.1\r\nhost: a\r\n${key}\r\ncontent-length: ${size}\r\n\r\n`);
    socket.write(Buffer.alloc(size));
    socket.write(
      `GET /v1/sandboxes/a/files/stat?path=/a HTTP/1.1\r\nhost: a\r\n${key}\r\nconnection: close\r\n\r\n`,
    );
    socket.setTimeout(2_000, () => socket.destroy(new Error("no answer")));
    const answers = (await socket.toArray()).join("");
    expect(answers.match(/HTTP\/1\.1 \d+/g)).toEqual(["HTTP/1.1 507", "HTTP/1.1 200"]);
    expect(answers).toContain('"code":"disk_full"');
  });
});

describe("searching", () => {
  test("passes the query to the engine and its matches to the caller", async () => {
    const asked: unknown[] = [];
    const found = {
      path: "/app",
      items: [{ ...aFile(3), lines: [{ line: 1, text: "x" }] }],
      truncated: true,
    };
    const search = async (...all: unknown[]) => {
      asked.push(all.slice(0, 3));
      return found;
    };
    await using server = await serve({ files: { search }, driveFiles: { search } });
    const query =
      "path=/app&name=*.ts&content=a%20b&regex=true&ignoreCase=true&exclude=.git&exclude=dist&limit=7";
    const response = await server.fetch(`/v1/sandboxes/a/files/search?${query}&wake=false`);
    expect(await response.json()).toEqual(found);
    await server.fetch("/v1/drives/d/files/search?path=/&exclude=x");
    expect(asked).toEqual([
      [
        "a",
        "/app",
        {
          name: "*.ts",
          content: "a b",
          regex: true,
          ignoreCase: true,
          exclude: [".git", "dist"],
          limit: 7,
          wake: false,
        },
      ],
      ["d", "/", { exclude: ["x"], limit: 1_000, wake: true }],
    ]);
  });

  test.each(["", "path=/&name=", "path=/&content=", "path=/&limit=0", "path=/&regex=maybe"])(
    "is refused with the query %j",
    async (query) => {
      await using server = await serve({});
      expect((await server.fetch(`/v1/sandboxes/a/files/search?${query}`)).status).toBe(400);
    },
  );
});

describe("archives", () => {
  const tar = "/v1/sandboxes/a/files/tar?path=/home/user/my%20app";

  test("are sent while they are built, with a file name", async () => {
    async function* archive() {
      for (let at = 0; at < large.length; at += 1_000) yield large.subarray(at, at + 1_000);
    }
    const asked: unknown[] = [];
    const pack = async (...all: unknown[]) => {
      asked.push(all.slice(0, 3));
      return archive();
    };
    await using server = await serve({ files: { pack } });
    const response = await server.fetch(`${tar}&wake=false`);
    expect(response.headers.get("content-type")).toBe("application/x-tar");
    expect(response.headers.get("content-disposition")).toBe('attachment; filename="my_app.tar"');
    expect(Buffer.from(await response.arrayBuffer()).equals(large)).toBe(true);
    expect(asked).toEqual([["a", "/home/user/my app", { wake: false }]]);
  });

  test("that cannot start are a typed error, and interrupted ones never look complete", async () => {
    async function* archive(good: number) {
      for (let sent = 0; sent < good; sent++) yield large.subarray(0, CHUNK);
      throw new HoldfastError("file_not_found");
    }
    await using refused = await serve({ files: { pack: async () => archive(0) } });
    const response = await refused.fetch(tar);
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({
      error: { code: "file_not_found", operation: "packFiles" },
    });
    await using broken = await serve({ files: { pack: async () => archive(3) } });
    await expect((await broken.fetch(tar)).arrayBuffer()).rejects.toThrow();
  });

  test("are released when their caller leaves", async () => {
    let isLeft = false;
    async function* archive() {
      try {
        for (;;) yield large;
      } finally {
        isLeft = true;
      }
    }
    await using server = await serve({ files: { pack: async () => archive() } });
    const left = new AbortController();
    const response = await server.fetch(tar, { signal: left.signal });
    await response.body?.getReader().read();
    left.abort();
    await until(() => isLeft);
  });

  const unpacking = () => {
    const seen: string[] = [];
    const unpack = async (_ref: string, path: string, body: AsyncIterable<Uint8Array>) => {
      const pieces: Uint8Array[] = [];
      for await (const piece of body) pieces.push(piece);
      seen.push(createHash("sha256").update(Buffer.concat(pieces)).digest("hex"));
      return { path, files: 1, bytes: 2 };
    };
    return { seen, unpack };
  };

  test("are accepted plain or gzipped, whatever the headers say", async () => {
    const { seen, unpack } = unpacking();
    await using server = await serve({ files: { unpack } });
    const zipped = gzipSync(large);
    for (const [body, headers] of [
      [large, {}],
      [zipped, {}],
      [zipped, { "content-type": "application/gzip" }],
      [zipped, { "content-encoding": "gzip", "content-type": "application/x-tar" }],
      [large, { "content-type": "application/json" }],
    ] as const) {
      const response = await server.fetch(tar, { method: "PUT", body, headers });
      expect(await response.json()).toEqual({ path: "/home/user/my app", files: 1, bytes: 2 });
    }
    expect(new Set(seen)).toEqual(new Set([createHash("sha256").update(large).digest("hex")]));
    expect((await server.fetch(tar, { method: "PUT" })).status).toBe(200);
    expect((await server.fetch(tar, { method: "PUT", body: Buffer.of(0x1f) })).status).toBe(200);
  });

  test("with damaged compression are reported as such", async () => {
    const { unpack } = unpacking();
    await using server = await serve({ files: { unpack } });
    const zipped = gzipSync(large);
    const half = zipped.subarray(0, zipped.length / 2);
    const noise = Buffer.concat([zipped.subarray(0, 100), Buffer.alloc(5_000, "x")]);
    for (const body of [half, noise]) {
      const response = await server.fetch(tar, { method: "PUT", body });
      expect(response.status).toBe(400);
      expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
    }
  });
});

describe("watching", () => {
  const url = "/v1/sandboxes/a/files/watch?path=/app";
  const change = (name: string): FileChange => ({ kind: "created", path: `/app/${name}`, directory: false });

  /** A watch that yields changes when the test releases them, until the signal aborts. */
  function watch(given: readonly (FileChange | Error)[], then: "wait" | "end" = "wait") {
    const calls: unknown[] = [];
    const captured: { signal: AbortSignal | null } = { signal: null };
    const files = {
      watch: async (ref: string, path: string, options: object, signal: AbortSignal) => {
        calls.push([ref, path, options]);
        captured.signal = signal;
        return (async function* () {
          for (const each of given) {
            if (each instanceof Error) throw each;
            yield each;
          }
          if (then === "wait")
            await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
        })();
      },
    };
    return { files, calls, captured };
  }

  const linesOf = (text: string) =>
    text
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => JSON.parse(line) as { type: string });
  const ndjson = { headers: { accept: "application/x-ndjson" } };

  test("reports its start, each change, and the reason for its end", async () => {
    const { files, calls } = watch([change("a"), change("b"), new HoldfastError("link_lost")]);
    await using server = await serve({ files, driveFiles: files });
    const response = await server.fetch(`${url}&recursive=true`, ndjson);
    expect(response.headers.get("content-type")).toContain("application/x-ndjson");
    expect(linesOf(await response.text())).toEqual([
      { type: "start", path: "/app" },
      { type: "change", ...change("a") },
      { type: "change", ...change("b") },
      { type: "end", error: expect.objectContaining({ code: "link_lost", retryable: true }) },
    ]);
    await (await server.fetch("/v1/drives/d/files/watch?path=/", ndjson)).text();
    expect(calls).toEqual([
      ["a", "/app", { recursive: true }],
      ["d", "/", { recursive: false }],
    ]);
  });

  test.each([undefined, "*/*", "text/event-stream"])(
    "is a stream of events, with Accept %s",
    async (accept) => {
      const { files } = watch([change("a"), new HoldfastError("wrong_state")]);
      await using server = await serve({ files });
      const response = await server.fetch(url, accept ? { headers: { accept } } : {});
      expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
      const events = (await response.text()).trim().split("\n\n");
      expect(events.map((event) => event.split("\n")[0])).toEqual([
        "event: start",
        "event: change",
        "event: end",
      ]);
      expect(events[1]).toBe(`event: change\ndata: ${JSON.stringify({ type: "change", ...change("a") })}`);
    },
  );

  test("that cannot start is an error response", async () => {
    const refuse = () => Promise.reject(new HoldfastError("too_many_watches"));
    await using server = await serve({ files: { watch: refuse } });
    const response = await server.fetch(url);
    expect(response.status).toBe(429);
    expect(await response.json()).toMatchObject({
      error: { code: "too_many_watches", operation: "watchFiles" },
    });
  });

  test("sends keepalives, and ends at its maximum age without an end record", async () => {
    const { files, captured } = watch([change("a")]);
    await using server = await serve({ files }, { numbers: { streamKeepaliveMs: 20, streamMaxMs: 200 } });
    const records = linesOf(await (await server.fetch(url, ndjson)).text()).map(({ type }) => type);
    expect(records.slice(0, 2)).toEqual(["start", "change"]);
    expect(new Set(records.slice(2))).toEqual(new Set(["keepalive"]));
    expect(captured.signal?.aborted).toBe(true);
  });

  test("ends when its caller leaves", async () => {
    const { files, captured } = watch([]);
    await using server = await serve({ files });
    const left = new AbortController();
    const response = await server.fetch(url, { ...ndjson, signal: left.signal });
    await response.body?.getReader().read();
    left.abort();
    await until(() => captured.signal?.aborted === true);
  });

  test("ends on shutdown with the reason", async () => {
    const { files } = watch([]);
    const server = await serve({ files });
    const response = await server.fetch(url, ndjson);
    const text = response.text();
    await server.app.close();
    expect(linesOf(await text).at(-1)).toMatchObject({ type: "end", error: { code: "shutting_down" } });
  });

  test("is read at the reader's pace, and ended if the reader stalls", async () => {
    let given = 0;
    const endless = async (_ref: string, _path: string, _options: object, signal: AbortSignal) =>
      (async function* () {
        for (; !signal.aborted; given++) yield change("x".repeat(200));
      })();
    await using server = await serve({ files: { watch: endless } }, { numbers: { httpStallMs: 200 } });
    const { hostname, port } = new URL(server.url);
    const socket = createConnection(Number(port), hostname);
    socket.pause();
    socket.on("error", () => {});
    socket.write(`GET ${url} HTTP/1.1\r\nhost: a\r\nauthorization: ${authorized.authorization}\r\n\r\n`);
    await until(() => given > 0);
    let before = -1;
    await until(() => {
      const isStill = given === before;
      before = given;
      return isStill;
    });
    expect(given).toBeLessThan(100_000);
    socket.destroy();
  });
});

test("drives have the same calls, under their own operation ids", async () => {
  const asked: unknown[][] = [];
  const note =
    (answer: unknown) =>
    async (...all: unknown[]) => {
      asked.push(all.filter((each) => !(each instanceof AbortSignal)).slice(0, 2));
      return answer as never;
    };
  const driveFiles = {
    ...filesWith(small),
    stat: note(aFile(1)),
    list: note({ path: "/", items: [], truncated: false }),
    write: note(aFile(1)),
    mkdir: note(aFile(1)),
    move: note(aFile(1)),
    remove: note(undefined),
  };
  await using server = await serve({ driveFiles });
  const at = (rest: string) => `/v1/drives/data/files${rest}`;
  expect(await (await server.fetch(at("?path=/a"), { headers: { range: "bytes=-3" } })).text()).toBe("789");
  expect((await server.fetch(at("/stat?path=/a"))).status).toBe(200);
  expect((await server.fetch(at("/list?path=/"))).status).toBe(200);
  expect((await server.fetch(at("?path=/b"), { method: "PUT", body: "x" })).status).toBe(200);
  expect((await server.fetch(at("/mkdir"), json({ path: "/c" }))).status).toBe(200);
  expect((await server.fetch(at("/move"), json({ from: "/b", to: "/d" }))).status).toBe(200);
  expect((await server.fetch(at("?path=/d"), { method: "DELETE" })).status).toBe(204);
  expect(asked).toEqual([
    ["data", "/a"],
    ["data", "/"],
    ["data", "/b"],
    ["data", "/c"],
    ["data", "/b"],
    ["data", "/d"],
  ]);
  await using missing = await serve({
    driveFiles: { stat: () => Promise.reject(new HoldfastError("drive_not_found")) },
  });
  const response = await missing.fetch(at("/stat?path=/a"));
  expect(response.status).toBe(404);
  expect(await response.json()).toMatchObject({
    error: { code: "drive_not_found", operation: "statDriveFile" },
  });
});
