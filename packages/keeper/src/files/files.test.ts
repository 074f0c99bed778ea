import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { FileAccess, Link } from "@holdfast/engine";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { bodyOf, collect, pause, sha256, soon, TestKeeper, until } from "../testing/test-keeper.ts";

let keeper: TestKeeper;
let link: Link;
let files: FileAccess;
let at: (name: string) => string;
let count = 0;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
  files = link.files;
  mkdirSync(keeper.files);
});
afterAll(() => keeper.stop());
beforeEach(() => {
  const directory = join(keeper.files, String(++count));
  mkdirSync(directory);
  at = (name) => join(directory, name);
});

const whole = { offset: 0, length: null };
const readText = async (path: string, range: { offset: number; length: number | null } = whole) =>
  (await collect((await files.read(path, range, soon())).body)).toString();

describe("a write", () => {
  test("creates the file with its mode, owner and parents", async () => {
    const stat = await files.write(
      at("a/b/c"),
      bodyOf("hello ", "world"),
      { parents: true, mode: 0o600 },
      soon(),
    );
    expect(stat).toMatchObject({ kind: "file", sizeBytes: 11, mode: 0o600, uid: 1000, gid: 1000 });
    expect(readFileSync(at("a/b/c"), "utf8")).toBe("hello world");
    expect(statSync(at("a")).uid).toBe(1000);
    const missing = files.write(at("x/y"), bodyOf(""), {}, soon());
    await expect(missing).rejects.toMatchObject({ reason: "system", errno: "ENOENT" });
  });

  test("shows the old content until it is whole, and keeps the mode", async () => {
    writeFileSync(at("file"), "old");
    chmodSync(at("file"), 0o640);
    const slow = async function* () {
      yield randomBytes(2_000_000);
      await pause(50);
      expect(readFileSync(at("file"), "utf8")).toBe("old");
      yield Buffer.from("end");
    };
    const stat = await files.write(at("file"), slow(), {}, soon());
    expect([stat.sizeBytes, stat.mode]).toEqual([2_000_003, 0o640]);
    expect(statSync(at("file")).size).toBe(2_000_003);
  });

  test("whose body fails leaves the old content and nothing else", async () => {
    writeFileSync(at("file"), "old");
    const failing = async function* () {
      yield randomBytes(3_000_000);
      throw new Error("the body broke");
    };
    await expect(files.write(at("file"), failing(), {}, soon())).rejects.toThrow("the body broke");
    await until("the unfinished file is gone", () => readdirSync(at("")).length === 1);
    expect(readFileSync(at("file"), "utf8")).toBe("old");
  });

  test("whose body hangs ends with its signal", async () => {
    const hanging = async function* () {
      yield Buffer.from("x");
      await new Promise(() => {});
    };
    const signal = AbortSignal.timeout(100);
    await expect(files.write(at("file"), hanging(), {}, signal)).rejects.toMatchObject({
      name: "TimeoutError",
    });
    await until("nothing is left", () => readdirSync(at("")).length === 0);
  });

  test("whose target becomes a directory leaves no unfinished file", async () => {
    const body = async function* () {
      yield Buffer.from("x");
      mkdirSync(at("taken"));
    };
    await expect(files.write(at("taken"), body(), {}, soon())).rejects.toMatchObject({ reason: "system" });
    await until("only the directory is left", () => readdirSync(at("")).length === 1);
  });

  test("of many tiny chunks and of none arrives whole", async () => {
    const tiny = Array.from({ length: 5000 }, (_, index) => `${index},`);
    await files.write(at("tiny"), bodyOf(...tiny), {}, soon());
    expect(readFileSync(at("tiny"), "utf8")).toBe(tiny.join(""));
    await files.write(at("empty"), bodyOf(), {}, soon());
    expect(statSync(at("empty")).size).toBe(0);
  });

  test("goes through a symbolic link to its target, and never through a planted temporary", async () => {
    writeFileSync(at("target"), "old");
    symlinkSync(at("target"), at("link"));
    for (let index = 0; index < 50; index++) symlinkSync(at("victim"), at(`.holdfast-${index}`));
    await files.write(at("link"), bodyOf("new"), {}, soon());
    expect(readFileSync(at("target"), "utf8")).toBe("new");
    expect((await files.stat(at("link"), { follow: false }, soon())).kind).toBe("symlink");
    expect(existsSync(at("victim"))).toBe(false);
  });
});

describe("a read", () => {
  test("returns the requested range", async () => {
    writeFileSync(at("file"), "0123456789");
    expect(await readText(at("file"))).toBe("0123456789");
    expect(await readText(at("file"), { offset: 3, length: 4 })).toBe("3456");
    expect(await readText(at("file"), { offset: 8, length: 100 })).toBe("89");
    expect(await readText(at("file"), { offset: 10, length: null })).toBe("");
    expect(await readText(at("file"), { offset: 99, length: 1 })).toBe("");
    writeFileSync(at("empty"), "");
    expect(await readText(at("empty"))).toBe("");
  });

  test("reads a file without a size", async () => {
    expect(await readText("/proc/self/status")).toContain("Name:\tkeeper");
  });

  test("of a file that shrinks ends early", async () => {
    writeFileSync(at("file"), randomBytes(8_000_000));
    const { body } = await files.read(at("file"), whole, soon());
    const chunks = body[Symbol.asyncIterator]();
    await chunks.next();
    truncateSync(at("file"), 1_000_000);
    let size = 0;
    for (let next = await chunks.next(); !next.done; next = await chunks.next()) size += next.value.length;
    expect(size).toBeLessThan(8_000_000);
  });

  test("of anything but a regular file is refused at once", async () => {
    spawnSync("mkfifo", [at("fifo")]);
    await expect(readText(at("fifo"))).rejects.toMatchObject({ reason: "not_regular" });
    await expect(readText("/dev/zero")).rejects.toMatchObject({ reason: "not_regular" });
    await expect(files.write(at("fifo"), bodyOf("x"), {}, soon())).rejects.toMatchObject({
      reason: "not_regular",
    });
    await expect(readText(at("nothing"))).rejects.toMatchObject({ reason: "system", errno: "ENOENT" });
    await expect(readText(`${at("x")}/../y`)).rejects.toMatchObject({ reason: "system", errno: "EINVAL" });
  });

  test("closes its handle however it ends", async () => {
    writeFileSync(at("file"), randomBytes(5_000_000));
    for (let index = 0; index < 100; index++) {
      const abort = new AbortController();
      const { body } = await files.read(at("file"), whole, abort.signal);
      const chunks = body[Symbol.asyncIterator]();
      if (index % 4 === 0) await chunks.return?.();
      if (index % 4 === 1) abort.abort();
      if (index % 4 === 2) for await (const _ of body) break;
      if (index % 4 === 3) expect((await collect(body)).length).toBe(5_000_000);
    }
    for (let index = 0; index < 100; index++) {
      const abort = new AbortController();
      const opening = files.read(at("file"), whole, abort.signal);
      await pause(0);
      abort.abort();
      await opening.catch(() => {});
    }
    // Handles of aborted requests are closed when their answers arrive, which is before the answer to this ping.
    await link.ping(soon());
    const open = Array.from({ length: 64 }, () => files.read(at("file"), { offset: 0, length: 1 }, soon()));
    for (const { body } of await Promise.all(open)) await collect(body);
  });
});

test("50 MB go in and come out unchanged", async () => {
  const data = randomBytes(50_000_000);
  const chunks = async function* () {
    for (let from = 0; from < data.length; from += 65_536) yield data.subarray(from, from + 65_536);
  };
  const stat = await files.write(at("big"), chunks(), {}, soon());
  expect(stat.sizeBytes).toBe(data.length);
  expect(sha256(readFileSync(at("big")))).toBe(sha256(data));
  const { body } = await files.read(at("big"), whole, soon());
  expect(sha256(await collect(body))).toBe(sha256(data));
});

describe("directories", () => {
  test("are listed with stats, up to a limit", async () => {
    writeFileSync(at("file"), "12345");
    mkdirSync(at("dir"));
    symlinkSync("file", at("link"));
    const { entries, truncated } = await files.list(at(""), { limit: 3 }, soon());
    const seen = entries.map(({ name, stat }) => [name, stat.kind, stat.target]).toSorted();
    expect(seen).toEqual([
      ["dir", "directory", ""],
      ["file", "file", ""],
      ["link", "symlink", "file"],
    ]);
    expect(truncated).toBe(false);
    const cut = await files.list(at(""), { limit: 2 }, soon());
    expect([cut.entries.length, cut.truncated]).toEqual([2, true]);
    await expect(files.list(at("file"), { limit: 2 }, soon())).rejects.toMatchObject({ errno: "ENOTDIR" });
  });

  test("of thousands of entries are listed whole", async () => {
    for (let index = 0; index < 3000; index++) writeFileSync(at(`a name that is not short ${index}`), "");
    const { entries, truncated } = await files.list(at(""), { limit: 10_000 }, soon());
    expect([new Set(entries.map((entry) => entry.name)).size, truncated]).toEqual([3000, false]);
  });

  test("are created, moved and removed", async () => {
    await files.mkdir(at("a/b/c"), { parents: true }, soon());
    await files.mkdir(at("a/b/c"), { parents: true }, soon());
    await expect(files.mkdir(at("a"), {}, soon())).rejects.toMatchObject({ errno: "EEXIST" });
    writeFileSync(at("a/b/c/file"), "x");
    await files.rename(at("a"), at("z"), { overwrite: false }, soon());
    expect(existsSync(at("z/b/c/file"))).toBe(true);
    writeFileSync(at("other"), "");
    const over = files.rename(at("z/b/c/file"), at("other"), { overwrite: false }, soon());
    await expect(over).rejects.toMatchObject({ errno: "EEXIST" });
    await files.rename(at("z/b/c/file"), at("other"), { overwrite: true }, soon());
    expect(readFileSync(at("other"), "utf8")).toBe("x");
    await files.chmod(at("other"), 0o600, soon());
    expect((await files.stat(at("other"), { follow: true }, soon())).mode).toBe(0o600);
    await expect(files.remove(at("z"), { recursive: false }, soon())).rejects.toMatchObject({
      errno: "ENOTEMPTY",
    });
    await files.remove(at("z"), { recursive: true }, soon());
    expect(existsSync(at("z"))).toBe(false);
  });

  test("of any depth are removed, whatever the names in them", async () => {
    for (const name of [".holdfast-gone-0", ".holdfast-gone-1", "deep"]) {
      mkdirSync(at(`tree/${name}/${"d/".repeat(200)}`), { recursive: true });
    }
    await files.remove(at("tree"), { recursive: true }, soon());
    expect(readdirSync(at(""))).toEqual([]);
  });
});

test("a mode is changed through a symbolic link, but never that of the keeper's own directory", async () => {
  writeFileSync(at("file"), "");
  mkdirSync(at("directory"));
  symlinkSync("file", at("to file"));
  symlinkSync(at("directory"), at("to directory"));
  symlinkSync(join(keeper.directory, "control"), at("to control"));
  await files.chmod(at("to file"), 0o4711, soon());
  await files.chmod(at("to directory"), 0o1777, soon());
  expect(statSync(at("file")).mode & 0o7777).toBe(0o4711);
  expect(statSync(at("directory")).mode & 0o7777).toBe(0o1777);
  await expect(files.chmod(at("to control"), 0o777, soon())).rejects.toMatchObject({
    reason: "reserved_path",
  });
  expect(statSync(join(keeper.directory, "control")).mode & 0o7777).toBe(0o700);
});

describe("a symbolic link", () => {
  test("is created with its exact target, owner and parents", async () => {
    await files.symlink(at("a/b/link"), "../no where/../x", { parents: true, uid: 5, gid: 6 }, soon());
    expect(readlinkSync(at("a/b/link"))).toBe("../no where/../x");
    const { uid, gid } = lstatSync(at("a/b/link"));
    expect([uid, gid, statSync(at("a/b")).uid]).toEqual([5, 6, 5]);
    await files.symlink(at("plain"), "/", {}, soon());
    expect(lstatSync(at("plain")).uid).toBe(1000);
    const missing = files.symlink(at("x/link"), "y", {}, soon());
    await expect(missing).rejects.toMatchObject({ errno: "ENOENT" });
  });

  test("replaces nothing, and is refused in the keeper's own directory", async () => {
    writeFileSync(at("file"), "kept");
    symlinkSync("nowhere", at("dangling"));
    for (const name of ["file", "dangling", ""]) {
      const taken = files.symlink(at(name), "other", { parents: true }, soon());
      await expect(taken, name).rejects.toMatchObject({ errno: "EEXIST" });
    }
    expect([readFileSync(at("file"), "utf8"), readlinkSync(at("dangling"))]).toEqual(["kept", "nowhere"]);
    const control = files.symlink(join(keeper.directory, "control", "link"), "/", {}, soon());
    await expect(control).rejects.toMatchObject({ reason: "reserved_path" });
  });
});

test("a time is set to the millisecond, of a symbolic link its own", async () => {
  writeFileSync(at("file"), "");
  symlinkSync("file", at("link"));
  const before = statSync(at("file")).atimeMs;
  await files.touch(at("file"), 1_234_567_890_123, soon());
  await files.touch(at("link"), 987_654_321_001, soon());
  await files.touch(at(""), 0, soon());
  const times = [statSync(at("file")), lstatSync(at("link")), statSync(at(""))].map(({ mtimeMs }) => mtimeMs);
  expect(times).toEqual([1_234_567_890_123, 987_654_321_001, 0]);
  expect(statSync(at("file")).atimeMs).toBe(before);
  expect((await files.stat(at("file"), { follow: true }, soon())).modifiedAt).toBe(1_234_567_890_123);
  await expect(files.touch(at("none"), 1, soon())).rejects.toMatchObject({ errno: "ENOENT" });
  expect(existsSync(at("none"))).toBe(false);
});

test("the keeper's own directory is not served", async () => {
  await expect(readText("/.holdfast/keeper")).rejects.toMatchObject({ reason: "reserved_path" });
});
