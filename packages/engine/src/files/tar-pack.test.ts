import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, readlinkSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it, onTestFinished } from "vitest";
import { KeeperRefusal } from "../ports/index.ts";
import { failure, inPieces, packed, signal, unpacked } from "../testing/archives.ts";
import { MemoryFiles, type Node } from "../testing/memory-files.ts";
import { type TarEntry, tarHeader } from "./tar-header.ts";
import { packTree } from "./tar-pack.ts";

const NAMES = fc.oneof(
  fc.string({ unit: "grapheme", minLength: 1, maxLength: 12 }),
  fc.string({ unit: fc.constantFrom("a", "ä", " ", "\n", "=", "😀"), minLength: 1, maxLength: 60 }),
  fc.constantFrom("x".repeat(255), "PaxHeader", "-rf", "..."),
);
const isName = (name: string) =>
  name !== "." && name !== ".." && !/[/\0]/.test(name) && name.length <= 255 && name.isWellFormed();
const ATTRIBUTES = {
  mode: fc.integer({ min: 0, max: 0o1777 }),
  modifiedAt: fc.oneof(fc.integer({ min: 0, max: 4_102_444_800_000 }), fc.constant(1_700_000_000_000)),
};
const CONTENT = fc.oneof(
  fc.uint8Array({ maxLength: 2_000 }),
  fc.constantFrom(512, 513, 70_000).map((size) => new Uint8Array(size).fill(7)),
);
const FILE = fc.record({ kind: fc.constant("file" as const), content: CONTENT, ...ATTRIBUTES });
const DIRECTORY = fc.record({ kind: fc.constant("directory" as const), ...ATTRIBUTES });
const LINK = fc.record({
  kind: fc.constant("symlink" as const),
  target: fc
    .oneof(NAMES, fc.constantFrom("/etc/passwd", "../..", "t".repeat(300)))
    .filter((to) => !to.includes("\0")),
  modifiedAt: ATTRIBUTES.modifiedAt,
});
const TREE = fc.array(
  fc.tuple(
    fc.array(NAMES.filter(isName), { minLength: 1, maxLength: 4 }),
    fc.oneof(FILE, FILE, DIRECTORY, LINK),
  ),
  { maxLength: 12 },
);

/** Drops paths below a non-directory. */
function planted(tree: [string[], Partial<Node> & Pick<Node, "kind">][]): MemoryFiles {
  const files = new MemoryFiles().put("/from", "directory", { mode: 0o750, modifiedAt: 1_234_567 });
  for (const [names, { kind, ...facts }] of tree) {
    const path = join("/from", ...names);
    const above = names.map((_, end) => join("/from", ...names.slice(0, end)));
    const isFree = above.every((each) => (files.nodes.get(each)?.kind ?? "directory") === "directory");
    if (isFree && !files.nodes.has(path)) files.put(path, kind, facts);
  }
  return files;
}

const below = (files: MemoryFiles, top: string) =>
  [...files.nodes]
    .filter(([path]) => path === top || path.startsWith(`${top}/`))
    .map(([path, { content, ...facts }]) => [
      path.slice(top.length),
      { ...facts, content: Buffer.from(content) },
    ])
    .sort(([one], [other]) => (String(one) < String(other) ? -1 : 1));

describe("an archive of a directory", () => {
  it("unpacks to the same tree: names, kinds, modes, times, contents and links", async () => {
    await fc.assert(
      fc.asyncProperty(TREE, fc.integer({ min: 1, max: 3_000 }), async (tree, size) => {
        const files = planted(tree);
        await unpacked(files, "/to", inPieces(await packed(files, "/from"), size));
        expect(below(files, "/to")).toEqual(below(files, "/from"));
      }),
      { numRuns: 200 },
    );
  });

  it("is readable by tar, whatever the names", async () => {
    const dir = mkdtempSync(join(tmpdir(), "holdfast-tar-"));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    const long = `${"d".repeat(120)}/${"ü".repeat(90)}`;
    const files = new MemoryFiles()
      .file("/from/plain", "text", { mode: 0o640, modifiedAt: 1_600_000_000_500 })
      .file(`/from/${long}`, "long")
      .file("/from/large", Buffer.alloc(200_000, "z"))
      .put("/from/empty", "directory", { mode: 0o700 })
      .put("/from/link", "symlink", { target: "y".repeat(150) });
    execFileSync("tar", ["-xf", "-", "-C", dir, "--no-same-owner"], { input: await packed(files, "/from") });
    expect(readFileSync(join(dir, "plain"), "utf8")).toBe("text");
    expect(statSync(join(dir, "plain")).mtimeMs).toBe(1_600_000_000_500);
    expect(statSync(join(dir, "plain")).mode & 0o777).toBe(0o640);
    expect(readFileSync(join(dir, long), "utf8")).toBe("long");
    expect(readFileSync(join(dir, "large"))).toHaveLength(200_000);
    expect(statSync(join(dir, "empty")).mode & 0o777).toBe(0o700);
    expect(readlinkSync(join(dir, "link"))).toBe("y".repeat(150));
  });

  it("leaves out special files, and never opens them", async () => {
    const files = new MemoryFiles().file("/from/a", "a");
    for (const kind of ["fifo", "socket", "device"] as const) files.put(`/from/${kind}`, kind);
    await unpacked(files, "/to", await packed(files, "/from"));
    expect(below(files, "/to").map(([path]) => path)).toEqual(["", "/a"]);
    expect(files.calls.filter((call) => call.startsWith("read"))).toEqual(["read /from/a"]);
  });

  it("leaves out skipped paths and everything below them", async () => {
    const files = new MemoryFiles().file("/a", "a").file("/proc/1/mem", "m");
    const archive = await packed(files, "/", (path) => path === "/proc");
    await unpacked(files, "/to", archive);
    expect([...files.nodes.keys()].filter((path) => path.startsWith("/to/"))).toEqual(["/to/a"]);
  });

  it("of one file contains that file", async () => {
    const files = new MemoryFiles().file("/from/a", "alone");
    await unpacked(files, "/to", await packed(files, "/from/a"));
    expect(files.text("/to/a")).toBe("alone");
  });

  it("is produced no faster than it is read", async () => {
    const files = new MemoryFiles();
    for (let i = 0; i < 200; i++) files.put(`/from/${i}`, "directory").file(`/from/${i}/f`, "f");
    const stat = await files.stat("/from", { follow: true });
    const archive = packTree({ files, path: "/from", stat, isSkipped: () => false, signal });
    files.calls.length = 0;
    await archive.next();
    expect(files.calls.length).toBeLessThan(20);
    await archive.return();
  });
});

describe("a tree that changes while it is packed", () => {
  const gone = () => new KeeperRefusal("system", "no such file", "ENOENT");

  it("lacks only files that are gone when their turn comes", async () => {
    const files = new MemoryFiles().file("/from/a", "a").file("/from/b", "b").file("/from/d/c", "c");
    files.fault = (call, path) => {
      if (path === "/from/a" && call === "read") throw gone();
      if (path === "/from/d" && call === "list") throw gone();
    };
    const archive = await packed(files, "/from");
    files.fault = () => undefined;
    await unpacked(files, "/to", archive);
    expect(below(files, "/to").map(([path]) => path)).toEqual(["", "/b"]);
  });

  it.each([10, 200_000])("ends with an error if a file of %i bytes shrinks", async (size) => {
    const files = new MemoryFiles().file("/from/a", Buffer.alloc(size));
    const read = files.read.bind(files);
    files.read = async (path, range) => {
      const { stat, body } = await read(path, range);
      return { stat: { ...stat, sizeBytes: stat.sizeBytes + 1 }, body };
    };
    const error = await failure(packed(files, "/from"));
    expect(error).toMatchObject({ code: "file_conflict" });
    expect(error.message).toContain("/from/a");
  });

  it.each([4, 90_000])("cuts a growing file to its size at opening: %i", async (sizeBytes) => {
    const files = new MemoryFiles().file("/from/a", Buffer.alloc(100_000, "a"));
    const [read, list] = [files.read.bind(files), files.list.bind(files)];
    files.list = async (path, options) => {
      const { entries, truncated } = await list(path, options);
      return {
        entries: entries.map(({ name, stat }) => ({ name, stat: { ...stat, sizeBytes: 2 } })),
        truncated,
      };
    };
    files.read = async (path, range) => {
      const { stat, body } = await read(path, range);
      return { stat: { ...stat, sizeBytes }, body };
    };
    const archive = await packed(files, "/from");
    await unpacked(new MemoryFiles(), "/to", archive).then(({ bytes }) => expect(bytes).toBe(sizeBytes));
  });

  it("ends with an error if a file can't be read", async () => {
    const files = new MemoryFiles().file("/from/a", "a");
    files.fault = (call) => {
      if (call === "piece") throw new KeeperRefusal("system", "input/output error", "EIO");
    };
    expect(await failure(packed(files, "/from"))).toMatchObject({ code: "system_error" });
  });
});

it("sizes and ids that do not fit ustar are in the pax header", () => {
  const entry: TarEntry = {
    name: "huge",
    kind: "file",
    mode: 0o644,
    uid: 5_000_000,
    gid: 6_000_000,
    sizeBytes: 20_000_000_000,
    modifiedAt: 0,
    target: "",
  };
  // The content is missing, so tar fails, but only after it has listed the header.
  const { stdout } = spawnSync("tar", ["-tvf", "-", "--numeric-owner"], { input: tarHeader(entry) });
  expect(stdout.toString()).toMatch(/5000000\/6000000\s+20000000000/);
});
