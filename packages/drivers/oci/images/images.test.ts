import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { newSandboxId } from "@holdfast/contract";
import type { Link } from "@holdfast/engine";
import { type Header, pack } from "tar-stream";
import { afterAll, beforeAll, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { type TestMachine, testMachine } from "../testing/test-machine.ts";

type Entry = Partial<Header> & { name: string; body?: string | Buffer };

const soon = () => AbortSignal.timeout(30_000);
let machine: TestMachine;
let outside: string;

beforeAll(async () => {
  machine = await testMachine();
  outside = mkdtempSync(join(tmpdir(), "holdfast-outside-"));
});
afterAll(async () => {
  rmSync(outside, { recursive: true });
  await machine.dispose();
});

async function tarOf(entries: readonly Entry[]): Promise<Buffer> {
  const archive = pack();
  for (const { body, ...header } of entries) archive.entry(header, body ?? "");
  archive.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of archive as unknown as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** The host's `sh` and `cat`, with the libraries that `sh` needs. */
function shell(): Entry[] {
  const libraries = execFileSync("ldd", ["/bin/sh"], { encoding: "utf8" }).match(/\/\S+/g) ?? [];
  return ["/bin/sh", "/bin/cat", ...new Set([...libraries])].map((path) => ({
    name: path.slice(1),
    mode: 0o755,
    uid: 0,
    gid: 0,
    body: readFileSync(path),
  }));
}

async function importOf(name: string, entries: readonly Entry[], encode = (tar: Buffer) => tar) {
  const bytes = encode(await tarOf(entries));
  const tar = (async function* () {
    for (let at = 0; at < bytes.length; at += 65_536) yield bytes.subarray(at, at + 65_536);
  })();
  return machine.driver.images.import(name, { tar }, soon());
}

async function inSandbox<Result>(image: string, act: (link: Link) => Promise<Result>): Promise<Result> {
  const sandboxId = newSandboxId();
  const order = orderFor(sandboxId, { image });
  try {
    const link = await machine.driver.connect(await machine.driver.launch(order, soon()), soon());
    return await act(link).finally(() => link.close());
  } finally {
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    await machine.driver.destroy(sandboxId, soon());
  }
}

test("the image 'host' exists from the start and can't be replaced or removed", async () => {
  expect(await machine.driver.images.list()).toMatchObject([{ name: "host", kind: "host" }]);
  await expect(importOf("host", shell())).rejects.toMatchObject({ code: "invalid_request" });
  await expect(machine.driver.images.remove("host", soon())).rejects.toMatchObject({
    code: "invalid_request",
  });
});

test("an imported image runs commands, with its files, owners, modes, links and times", async () => {
  const imported = await importOf(
    "mine",
    [
      { name: "data/", type: "directory", mode: 0o750, uid: 7, gid: 8, mtime: new Date(1_000_000_000_000) },
      {
        name: "data/file",
        body: "content\n",
        mode: 0o640,
        uid: 1000,
        gid: 1000,
        mtime: new Date(1_100_000_000_000),
      },
      { name: "data/hard", type: "link", linkname: "data/file" },
      { name: "data/soft", type: "symlink", linkname: "file", uid: 0, gid: 0 },
      ...shell(),
    ],
    gzipSync,
  );
  expect(imported).toMatchObject({ name: "mine", kind: "imported" });
  expect((await machine.driver.images.get("mine"))?.files).toBe(imported.files);
  await inSandbox("mine", async (link) => {
    expect(await run(link, "cat /data/soft /data/hard", "root")).toEqual({
      exitCode: 0,
      output: "content\ncontent\n",
    });
    const stat = (path: string, follow = false) => link.files.stat(path, { follow }, soon());
    expect(await stat("/data/file")).toMatchObject({ mode: 0o640, uid: 1000, modifiedAt: 1_100_000_000_000 });
    expect(await stat("/data")).toMatchObject({ mode: 0o750, uid: 7, gid: 8, modifiedAt: 1_000_000_000_000 });
    expect((await stat("/data/hard")).ino).toBe((await stat("/data/file")).ino);
    expect(await stat("/home/user")).toMatchObject({ kind: "directory", uid: 1000 });
    expect((await run(link, "while read line; do echo $line; done < /etc/passwd")).output).toContain(
      "user:x:1000:1000",
    );
  });
});

test("an image in use can't be removed; an unused image can", async () => {
  await importOf("used", shell());
  await inSandbox("used", async (link) => {
    await expect(machine.driver.images.remove("used", soon())).rejects.toMatchObject({
      code: "image_in_use",
    });
    await link.ping(soon());
  });
  await machine.driver.images.remove("used", soon());
  expect(await machine.driver.images.get("used")).toBeNull();
  await expect(machine.driver.images.remove("used", soon())).rejects.toMatchObject({
    code: "image_not_found",
  });
  expect(existsSync(join(machine.stateDir, "images", "used"))).toBe(false);
});

test("links in an archive can't lead outside of it, and devices are skipped", async () => {
  await importOf("hostile", [
    { name: `${outside.slice(1)}/`, type: "directory" },
    { name: "out", type: "symlink", linkname: outside },
    { name: "out/planted", body: "planted" },
    { name: "up", type: "symlink", linkname: "../../../../../../../../../.." },
    { name: `up${outside}/planted too`, body: "planted" },
    { name: "null", type: "character-device", devmajor: 1, devminor: 3 },
    { name: "disk", type: "block-device", devmajor: 8, devminor: 0 },
    { name: ".holdfast", type: "symlink", linkname: "/etc" },
    ...shell(),
  ]);
  expect(readdirSync(outside)).toEqual([]);
  await inSandbox("hostile", async (link) => {
    expect((await run(link, "test -e /null -o -e /disk; echo $?")).output).toBe("1\n");
    expect((await run(link, `cat ${outside}/planted*`)).output).toBe("plantedplanted");
  });
});

test("a file below a dangling link is refused", async () => {
  const entries: Entry[] = [
    { name: "out", type: "symlink", linkname: outside },
    { name: "out/planted", body: "x" },
  ];
  await expect(importOf("dangling", [...entries, ...shell()])).rejects.toMatchObject({
    code: "invalid_request",
  });
  expect(readdirSync(outside)).toEqual([]);
});

test.for([
  ["../escape", "invalid_request"],
  ["a/../../escape", "invalid_request"],
])("an entry named %s is refused", async ([name = "", code]) => {
  await expect(importOf("bad", [{ name, body: "x" }, ...shell()])).rejects.toMatchObject({ code });
  expect(await machine.driver.images.get("bad")).toBeNull();
});

test("a hard link to a file outside of the archive is refused", async () => {
  const entries: Entry[] = [{ name: "stolen", type: "link", linkname: "/etc/shadow" }, ...shell()];
  await expect(importOf("thief", entries)).rejects.toMatchObject({ code: "invalid_request" });
});

test.for<[string, Entry[], RegExp]>([
  ["no shell", [{ name: "etc/passwd", body: "" }], /no \/bin\/sh/],
  ["a shell that is not executable", [{ name: "bin/sh", body: "x", mode: 0o644 }], /not executable/],
  [
    "a shell that is not a program",
    [{ name: "bin/sh", body: "x".repeat(100), mode: 0o755 }],
    /not a program/,
  ],
  ["a shell without its loader", shell().slice(0, 1), /which does not exist/],
  [
    "a file at the path of a mount point",
    [...shell(), { name: "proc", body: "x" }],
    /\/proc is not a directory/,
  ],
])("an image with %s is refused with the reason", async ([, entries, reason]) => {
  await expect(importOf("incapable", entries)).rejects.toMatchObject({
    code: "image_incapable",
    message: expect.stringMatching(reason),
  });
  expect(await machine.driver.images.get("incapable")).toBeNull();
});

test.for<[string, (tar: Buffer) => Buffer]>([
  ["noise", () => Buffer.alloc(4_096, "noise")],
  ["half an archive", (tar) => tar.subarray(0, tar.length / 2)],
  ["half a compressed archive", (tar) => gzipSync(tar).subarray(0, 5_000)],
])("%s is refused as bad input, and leaves nothing behind", async ([, encode]) => {
  await expect(importOf("noise", shell(), encode)).rejects.toMatchObject({ code: "invalid_request" });
  expect((await machine.driver.images.list()).map(({ name }) => name)).not.toContain("noise");
});

test("an aborted import ends and leaves nothing behind", async () => {
  const abort = new AbortController();
  const never = (async function* () {
    yield await tarOf(shell().slice(0, 1)).then((tar) => tar.subarray(0, 100_000));
    await new Promise(() => {});
  })();
  const importing = machine.driver.images.import("never", { tar: never }, abort.signal);
  setTimeout(() => abort.abort(new Error("enough")), 50);
  await expect(importing).rejects.toThrow("enough");
  expect(await machine.driver.images.get("never")).toBeNull();
});

test("the next server finds the images of the previous one", async () => {
  await importOf("kept", shell());
  const { images } = (await machine.again()).driver;
  expect(await images.get("kept")).toEqual(await machine.driver.images.get("kept"));
});
