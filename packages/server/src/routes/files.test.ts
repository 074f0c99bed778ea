import { createHash } from "node:crypto";
import { request } from "node:http";
import { createConnection } from "node:net";
import { HoldfastError } from "@holdfast/contract";
import { LinkLost } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { aFile, authorized, serve, until } from "../testing/double.ts";

const CHUNK = 1_048_576;
const path = "/v1/sandboxes/a/files?path=/home/user/a";

/** Files that hold the given bytes, read in chunks as the keeper would. */
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

  test.each(["bytes=10-", "bytes=99-100", "bytes=-0"])("%s lies outside and says so", async (range) => {
    await using server = await serve({ files: filesWith(small) });
    const response = await server.fetch(path, { headers: { range } });
    expect(response.status).toBe(416);
    expect(await response.json()).toMatchObject({ error: { code: "range_not_satisfiable" } });
  });

  test("a file without a size, as in /proc, is served whole", async () => {
    await using server = await serve({ files: filesWith(small, 0) });
    expect(await (await server.fetch(path)).text()).toBe("0123456789");
    await using other = await serve({ files: filesWith(large, 0) });
    expect((await (await other.fetch(path)).arrayBuffer()).byteLength).toBe(large.length);
  });

  test("the end of a file without a size can't be known, and nothing else is served for it", async () => {
    await using server = await serve({ files: filesWith(small, 0) });
    expect((await server.fetch(path, { headers: { range: "bytes=-3" } })).status).toBe(416);
  });

  test("the end of a file behind a link is the file's, not the link's", async () => {
    const link = async () => ({ ...aFile(4), kind: "symlink" as const, target: "long" });
    await using server = await serve({ files: { ...filesWith(small), stat: link } });
    const response = await server.fetch(path, { headers: { range: "bytes=-3" } });
    expect(await response.text()).toBe("789");
  });

  test.each([
    [0, new HoldfastError("permission_denied"), 403, "permission_denied"],
    [1, new LinkLost("the keeper is gone", "yes"), 503, "link_lost"],
  ])(
    "a body that breaks before a byte of it is sent is a typed error: %#",
    async (good, error, status, code) => {
      async function* body() {
        for (let sent = 0; sent < good; sent++) yield small;
        throw error;
      }
      await using server = await serve({ files: { read: async () => ({ stat: aFile(99), body: body() }) } });
      const response = await server.fetch(path);
      expect(response.status).toBe(status);
      expect(await response.json()).toMatchObject({ error: { code, operation: "readFile" } });
    },
  );

  test("a file that shrinks while it is read never looks complete", async () => {
    await using server = await serve({ files: filesWith(large, large.length + 1) });
    const response = await server.fetch(path);
    await expect(response.arrayBuffer()).rejects.toThrow();
  });

  test("a file that grows is served as long as it was", async () => {
    await using server = await serve({ files: filesWith(large, large.length - 5) });
    expect((await (await server.fetch(path)).arrayBuffer()).byteLength).toBe(large.length - 5);
  });
});

describe("reading from a sandbox that sleeps", () => {
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
  ])("may wake it, unless told not to: %j", async (query, wake) => {
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

  test("is refused with a code of its own where that can't be without waking it", async () => {
    const read = () => Promise.reject(new HoldfastError("not_on_disk"));
    await using server = await serve({ files: { read } });
    const response = await server.fetch(`${path}&wake=false`);
    expect(response.status).toBe(409);
    expect(await response.json()).toMatchObject({ error: { code: "not_on_disk", retryable: false } });
  });

  test.each(["wake=no", "wake=0", "wake="])("is not asked for with %s", async (query) => {
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

  test("an empty file can be written", async () => {
    await using server = await serve({
      files: { write: async (_ref, _path, body) => aFile((await digest(body)).size) },
    });
    expect((await server.fetch(path, { method: "PUT" })).status).toBe(200);
    expect(await (await server.fetch(path, { method: "PUT", body: "" })).json()).toMatchObject({
      sizeBytes: 0,
    });
  });

  test("an upload that breaks off is an error to the writer, not a short file", async () => {
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

  test.each(["half", ""])("an upload that stands still after %j is given up", async (sent) => {
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

  test("a refused upload gets its typed error, and the connection serves on", async () => {
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
