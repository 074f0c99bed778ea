import type { Drive, FileChange, Files, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

let server: TestServer;
let holdfast: Holdfast;
let box: Sandbox;
let drive: Drive;

beforeAll(async () => {
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify({ maintainEveryMs: 500 }) });
  holdfast = server.client();
  drive = await holdfast.drives.create({ name: "data" });
  box = await holdfast.sandboxes.create({ name: "box", mounts: [{ drive: "data", path: "/mnt/data" }] });
});
afterAll(async () => {
  await box.delete();
  await drive.delete();
  holdfast.close();
  await server[Symbol.asyncDispose]();
});

async function run(command: string, user?: string): Promise<string> {
  const { exitCode, stdout, stderr } = await box.exec(command, { user });
  if (exitCode !== 0) throw new Error(`${command}: ${stderr}`);
  return stdout;
}

async function gathered(chunks: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const chunk of chunks) pieces.push(chunk);
  return Buffer.concat(pieces);
}

/** Creates a tree with everything that an archive can contain, at a path of the sandbox. */
const planted = (path: string) =>
  run(`set -e
mkdir -p ${path}/deep/er ${path}/empty; cd ${path}
printf plain > plain; head -c 3000000 /dev/urandom > large; : > nothing
printf 'ü' > 'deep/ü and space'; printf x > deep/er/$(printf 'n%.0s' $(seq 200))
ln -s ../plain deep/link; ln -s /nowhere/at/all dangling; ln plain second
chmod 600 plain; chmod 755 large; chmod 700 empty; mkfifo pipe
touch -h -d '2001-02-03 04:05:06.789' plain deep/link; touch -d '1999-01-01' empty; touch -d '1998-01-01' deep`);

/** Returns attributes and contents of a tree, seen from inside, with times in the API's precision. */
const listingOf = async (path: string) => (await listed(path)).replaceAll(/(:\d\d\.\d{3})\d+$/gm, "$1");
const listed = (path: string) =>
  run(`cd ${path}; find . ! -type p ! -name second -printf '%P|%y|%m|%U:%G|%l|%TY-%Tm-%Td %TT\n' | sort
find . -type f ! -name second | sort | xargs -d '\n' sha256sum`);

describe.each([
  ["a sandbox", () => box.files, "/home/user", ""],
  ["a drive", () => drive.files, "/mnt/data", "/mnt/data"],
])("files of %s", (_, filesOf, inside, mountedAt) => {
  let files: Files;
  /** Converts a path inside the sandbox to a path of the file API. */
  const at = (path: string) => path.slice(mountedAt.length) || "/";

  beforeAll(async () => {
    files = filesOf();
    await run(`mkdir -p ${inside}/work && chown 1000:1000 ${inside} ${inside}/work`, "root");
    await planted(`${inside}/work/from`);
  });

  it("are the same after packing and unpacking elsewhere, including links and times", async () => {
    const archive = await gathered(await files.pack(at(`${inside}/work/from`)));
    const made = await files.unpack(at(`${inside}/work/to`), archive);
    expect(made.files).toBe(8);
    expect(await listingOf(`${inside}/work/to`)).toBe(await listingOf(`${inside}/work/from`));
    expect(await run(`cat ${inside}/work/to/second; test ! -e ${inside}/work/to/pipe`)).toBe("plain");
  });

  it("are packed in a format that tar reads and writes", async () => {
    const archive = await gathered(await files.pack(at(`${inside}/work/from`)));
    await files.write(at(`${inside}/work/a.tar`), archive);
    await run(`cd ${inside}/work && mkdir byTar && tar -xpf a.tar -C byTar`);
    expect(await listingOf(`${inside}/work/byTar`)).toBe(await listingOf(`${inside}/work/from`));
    await run(`cd ${inside}/work && tar -czf b.tgz -C from .`);
    const zipped = await files.readStream(at(`${inside}/work/b.tgz`));
    await expect(files.unpack(at(`${inside}/work/refused`), zipped)).rejects.toMatchObject({
      code: "invalid_request",
      message: expect.stringContaining("pipe"),
    });
    await run(`cd ${inside}/work && tar -czf b.tgz --format=gnu --exclude=./pipe -C from .`);
    await files.unpack(at(`${inside}/work/ofTar`), await files.readStream(at(`${inside}/work/b.tgz`)));
    const inSeconds = async (path: string) => (await listingOf(path)).replaceAll(/(:\d\d)\.\d+$/gm, "$1");
    expect(await inSeconds(`${inside}/work/ofTar`)).toBe(await inSeconds(`${inside}/work/from`));
  });

  it("are writable for commands after unpacking, whichever user packed them", async () => {
    await run(`cd ${inside}/work && mkdir rooted && echo mine > rooted/a`, "root");
    await files.unpack(
      at(`${inside}/work/given`),
      await gathered(await files.pack(at(`${inside}/work/rooted`))),
    );
    await run(`cd ${inside}/work/given && echo yours >> a && echo new > b`);
    expect((await files.stat(at(`${inside}/work/given/a`))).uid).toBe(1000);
  });

  it("are found by name and content", async () => {
    await run(`mkdir -p ${inside}/find/src/.hidden && cd ${inside}/find
echo 'a TODO here' > src/main.ts; echo 'a todo there' > src/.hidden/b.ts; ln -s .. src/up; echo TODO > notes.md`);
    const search = async (options: Parameters<Files["search"]>[1]) =>
      (await files.search(at(`${inside}/find`), options)).items.map(({ path }) =>
        path.slice(at(`${inside}/find`).length + 1),
      );
    expect(await search({ name: "*.ts" })).toEqual(["src/main.ts", "src/.hidden/b.ts"]);
    expect(await search({ content: "TODO" })).toEqual(["notes.md", "src/main.ts"]);
    expect(await search({ content: "^a todo", regex: true, ignoreCase: true })).toHaveLength(2);
    expect((await search({ name: "src/**", exclude: [".hidden"] })).sort()).toEqual([
      "src/main.ts",
      "src/up",
    ]);
  });

  it("of a large tree are searched within bounds, and no pattern blocks the server", async () => {
    await run(`mkdir -p ${inside}/big && cd ${inside}/big
for d in $(seq 10 109); do mkdir $d && seq 100 | split -a 2 -l 1 - $d/; done`);
    await files.write(at(`${inside}/big/trap`), "a".repeat(4_000));
    const began = Date.now();
    const all = await files.search(at(`${inside}/big`), { limit: 10_000 });
    expect(all).toMatchObject({ truncated: true, items: { length: 10_000 } });
    const some = await files.search(at(`${inside}/big`), { name: "{b?,2?}", limit: 5_000 });
    expect(some).toMatchObject({ truncated: false, items: { length: 26 * 100 + 10 } });
    const named = await files.search(at(`${inside}/big`), { content: "no such text" });
    expect(named.items).toEqual([]);
    await expect(
      files.search(at(`${inside}/big`), { name: "trap", content: "(a+)+b", regex: true }),
    ).rejects.toMatchObject({ code: "invalid_request" });
    expect(Date.now() - began).toBeLessThan(60_000);
  });

  it("changed by a command are reported to a watch", async () => {
    await run(`mkdir -p ${inside}/seen/below`);
    const controller = new AbortController();
    const { signal } = controller;
    const changes = await files.watch(at(`${inside}/seen`), { recursive: true, signal });
    const paths = new Set<string>();
    const reading = (async () => {
      for await (const { kind, path } of changes)
        paths.add(`${kind} ${path.slice(at(`${inside}/seen`).length)}`);
    })().catch(() => undefined);
    await run(
      `cd ${inside}/seen && echo 1 > below/a && mkdir made && sleep 0.2 && echo 2 > made/b && rm below/a`,
    );
    await expect
      .poll(() => [...paths], { timeout: 15_000 })
      .toEqual(
        expect.arrayContaining(["created /below/a", "created /made", "created /made/b", "removed /below/a"]),
      );
    controller.abort();
    await reading;
  });
});

describe("a sandbox that is watched", () => {
  it("can be suspended; the watch then reports an overflow and the sandbox is awake again", async () => {
    await using other = await holdfast.sandboxes.create({ name: "watched" });
    const changes = (await other.files.watch("/home/user"))[Symbol.asyncIterator]();
    const seen: FileChange[] = [];
    const next = async () => seen.push((await changes.next()).value);
    const first = next();
    await other.standby();
    await first;
    expect(seen[0]).toMatchObject({ kind: "overflow" });
    expect((await other.refresh()).status).toBe("ready");
    await other.files.write("/home/user/a", "a");
    await next();
    expect(seen[1]).toMatchObject({ path: expect.stringContaining("/home/user/") });
    await changes.return?.();
  });

  it("is not suspended for idleness until the watch ends", async () => {
    await using other = await holdfast.sandboxes.create({ lifecycle: { idleStandbyMs: 2_000 } });
    const changes = (await other.files.watch("/home/user"))[Symbol.asyncIterator]();
    const waiting = changes.next();
    await new Promise((resolve) => setTimeout(resolve, 5_000));
    expect((await other.refresh()).status).toBe("ready");
    await other.files.write("/home/user/a", "a");
    await waiting;
    await changes.return?.();
    await expect.poll(async () => (await other.refresh()).status, { timeout: 45_000 }).toBe("standby");
  });
});

describe("a sandbox that sleeps", () => {
  it("is packed and searched from its disk, except for paths on a drive", async () => {
    await box.files.write("/home/user/asleep/a", "found asleep");
    await drive.files.write("/there", "on the drive");
    await box.standby();
    const quiet = { wake: false };
    const found = await box.files.search("/home/user/asleep", { ...quiet, content: "asleep" });
    expect(found.items.map(({ path }) => path)).toEqual(["/home/user/asleep/a"]);
    const archive = await gathered(await box.files.pack("/home/user/asleep", quiet));
    expect(archive.includes("found asleep")).toBe(true);
    for (const work of [
      () => box.files.readText("/mnt/data/there", quiet),
      () => box.files.list("/mnt/data", quiet),
      () => box.files.search("/mnt", quiet),
      () => box.files.pack("/mnt", quiet),
      () => box.files.pack("/", quiet),
    ])
      await expect(work()).rejects.toMatchObject({ code: "not_on_disk" });
    expect((await box.refresh()).status).toBe("standby");
    expect(await box.files.readText("/mnt/data/there")).toBe("on the drive");
    expect((await box.refresh()).status).toBe("ready");
  });
});
