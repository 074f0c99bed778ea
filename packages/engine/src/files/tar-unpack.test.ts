import { describe, expect, it } from "vitest";
import { KeeperRefusal } from "../ports/index.ts";
import { archiveOf, type Entry, failure, inPieces, packed, unpacked } from "../testing/archives.ts";
import { MemoryFiles } from "../testing/memory-files.ts";

const from = async (files: MemoryFiles, entries: readonly Entry[], options = {}) =>
  unpacked(files, "/to", await archiveOf(entries), options);

describe("an unpacked archive", () => {
  it("is written below the directory, with missing parents, and counted", async () => {
    const files = new MemoryFiles();
    const made = await from(files, [
      { name: "a/b/c", content: "deep" },
      { name: "/rooted", content: "in" },
      { name: "./dotted", content: "in" },
      { name: "d/", type: "directory" },
      { name: "l", type: "symlink", linkname: "rooted" },
    ]);
    expect(made).toEqual({ files: 4, bytes: 8 });
    expect(files.text("/to/a/b/c")).toBe("deep");
    expect(files.text("/to/rooted")).toBe("in");
    expect(files.text("/to/dotted")).toBe("in");
    expect(files.nodes.get("/to/d")?.kind).toBe("directory");
  });

  it("has no setuid or setgid bits, and belongs to the given owner", async () => {
    const files = new MemoryFiles();
    const owner = { uid: 1000, gid: 1000 };
    files.owner = { uid: 0, gid: 0 };
    await from(
      files,
      [
        { name: "a", content: "a", mode: 0o6755, uid: 0, gid: 0 },
        { name: "d/", type: "directory", mode: 0o7777 },
        { name: "e/l", type: "symlink", linkname: "a" },
      ],
      { owner },
    );
    expect(files.nodes.get("/to/a")).toMatchObject({ mode: 0o755, ...owner });
    expect(files.nodes.get("/to/d")).toMatchObject({ mode: 0o1777, ...owner });
    for (const path of ["/to", "/to/e", "/to/e/l"]) expect(files.nodes.get(path)).toMatchObject(owner);
  });

  it("replaces content and mode of existing files, not their owner", async () => {
    const files = new MemoryFiles().file("/to/a", "old", { uid: 7, gid: 7, mode: 0o600 });
    await from(files, [{ name: "a", content: "new", mode: 0o644 }], { owner: { uid: 1000, gid: 1000 } });
    expect(files.text("/to/a")).toBe("new");
    expect(files.nodes.get("/to/a")).toMatchObject({ mode: 0o644, uid: 7, gid: 7 });
  });

  it("replaces links, never their targets", async () => {
    const files = new MemoryFiles()
      .file("/precious", "kept")
      .put("/to/a", "symlink", { target: "/precious" });
    await from(files, [
      { name: "a", content: "new" },
      { name: "b", type: "symlink", linkname: "/precious" },
      { name: "b", content: "newer" },
      { name: "a", type: "symlink", linkname: "b" },
    ]);
    expect(files.text("/precious")).toBe("kept");
    expect(files.text("/to/b")).toBe("newer");
    expect(files.nodes.get("/to/a")).toMatchObject({ kind: "symlink", target: "b" });
  });

  it("leaves an existing target directory unchanged", async () => {
    const entries: Entry[] = [
      { name: "./", type: "directory", mode: 0o700, mtime: new Date(5_000) },
      { name: "./a", content: "a" },
    ];
    const there = new MemoryFiles().put("/to", "directory", { mode: 0o1777, modifiedAt: 9 });
    await from(there, entries);
    expect(there.nodes.get("/to")).toMatchObject({ mode: 0o1777, modifiedAt: 9 });
    const missing = new MemoryFiles();
    await from(missing, entries);
    expect(missing.nodes.get("/to")).toMatchObject({ mode: 0o700, modifiedAt: 5_000 });
  });

  it("keeps modification times, also of directories", async () => {
    const files = new MemoryFiles();
    await from(files, [
      { name: "d/", type: "directory", mtime: new Date(1_000) },
      { name: "d/a", content: "a", mtime: new Date(2_000) },
      { name: "d/l", type: "symlink", linkname: "a", mtime: new Date(3_000) },
    ]);
    const times = ["/to/d", "/to/d/a", "/to/d/l"].map((path) => files.nodes.get(path)?.modifiedAt);
    expect(times).toEqual([1_000, 2_000, 3_000]);
    const touches = files.calls.filter((call) => call.startsWith("touch"));
    expect(touches.at(-1)).toBe("touch /to/d");
  });

  it("unpacks hard links as separate files", async () => {
    const files = new MemoryFiles();
    const made = await from(files, [
      { name: "a", content: "same", mode: 0o700, mtime: new Date(4_000) },
      { name: "b", type: "link", linkname: "a" },
      { name: "s", type: "symlink", linkname: "a" },
      { name: "t", type: "link", linkname: "s" },
    ]);
    expect(made).toEqual({ files: 4, bytes: 8 });
    expect(files.text("/to/b")).toBe("same");
    expect(files.nodes.get("/to/b")).toMatchObject({ kind: "file", mode: 0o700, modifiedAt: 4_000 });
    expect(files.nodes.get("/to/t")).toMatchObject({ kind: "symlink", target: "a" });
  });

  it("may contain a name twice; the last entry wins", async () => {
    const files = new MemoryFiles();
    files.fault = async (call) => {
      if (call === "write") await new Promise((resolve) => setTimeout(resolve, Math.random() * 10));
    };
    const twice = Array.from({ length: 40 }, (_, at) => ({ name: `f${at % 5}`, content: String(at) }));
    await from(files, twice);
    expect([0, 1, 2, 3, 4].map((at) => files.text(`/to/f${at}`))).toEqual(["35", "36", "37", "38", "39"]);
  });

  it("may be empty", async () => {
    const files = new MemoryFiles();
    expect(await unpacked(files, "/to", Buffer.alloc(0))).toEqual({ files: 0, bytes: 0 });
    expect(await unpacked(files, "/to", Buffer.alloc(10_240))).toEqual({ files: 0, bytes: 0 });
    expect(files.nodes.get("/to")?.kind).toBe("directory");
  });
});

describe("an invalid entry is rejected by name, and earlier entries stay", () => {
  const first: Entry = { name: "first", content: "1" };

  it.each<[string, Entry]>([
    ["invalid_path", { name: "../out", content: "x" }],
    ["invalid_path", { name: "a/../../out", content: "x" }],
    ["invalid_path", { name: "/../out", content: "x" }],
    ["invalid_path", { name: "d/..", type: "directory" }],
    ["invalid_path", { name: "l", type: "link", linkname: "../out" }],
    ["forbidden_path", { name: ".holdfast/x", content: "x" }],
    ["invalid_request", { name: "p", type: "fifo" }],
    ["invalid_request", { name: "p", type: "character-device" }],
    ["invalid_request", { name: "p", type: "block-device" }],
    ["invalid_request", { name: "p", type: "link", linkname: "nowhere" }],
    ["invalid_request", { name: ".", content: "x" }],
    ["file_conflict", { name: "dir", content: "x" }],
    ["file_conflict", { name: "dir", type: "symlink", linkname: "x" }],
    ["file_conflict", { name: "first/below", content: "x" }],
  ])("%s: %o", async (code, entry) => {
    const files = new MemoryFiles().put("/to/dir", "directory");
    const isReserved = (path: string) => path.startsWith("/to/.holdfast");
    const error = await failure(from(files, [first, entry, { name: "later", content: "2" }], { isReserved }));
    expect(error).toMatchObject({ code, dispatched: "yes" });
    const named = entry.type === "link" && code === "invalid_path" ? entry.linkname : entry.name;
    expect(error.message).toContain(named);
    expect(files.text("/to/first")).toBe("1");
    // Concurrent small files may have been written as well.
    const made = [...files.nodes.keys()].filter((path) => path !== "/to/later").sort();
    expect(made).toEqual(["/", "/to", "/to/dir", "/to/first"]);
  });

  it("a name with a NUL byte", async () => {
    const archive = await archiveOf([first, { name: "ok", pax: { path: "a\0b" }, content: "x" } as Entry]);
    const error = await failure(unpacked(new MemoryFiles(), "/to", archive));
    expect(error).toMatchObject({ code: "invalid_path" });
    expect(error.message).toContain("a\\u0000b");
  });

  it("a target that is a file", async () => {
    const files = new MemoryFiles().file("/to", "file");
    expect(await failure(from(files, [first]))).toMatchObject({ code: "file_conflict" });
    expect(files.text("/to")).toBe("file");
  });
});

describe("a broken archive", () => {
  const whole = () =>
    archiveOf([
      { name: "a", content: "a".repeat(3_000) },
      { name: "b", content: "b".repeat(3_000) },
    ]);

  it.each([700, 3_500, 4_500, 7_000])(
    "cut after %i bytes is reported, with the number of files kept",
    async (at) => {
      const files = new MemoryFiles();
      const error = await failure(unpacked(files, "/to", (await whole()).subarray(0, at)));
      expect(error).toMatchObject({ code: "invalid_request" });
      expect(error.message).toMatch(/can't be read: .* Files unpacked so far are kept: [01]\./);
      expect(files.nodes.has("/to/b")).toBe(false);
      if (files.nodes.has("/to/a")) expect(files.text("/to/a")).toHaveLength(3_000);
    },
  );

  it("that is not a tar archive is rejected", async () => {
    const noise = Buffer.alloc(2_000, "nonsense");
    expect(await failure(unpacked(new MemoryFiles(), "/to", noise))).toMatchObject({
      code: "invalid_request",
    });
  });

  it("because its source fails reports the source's error", async () => {
    const bytes = await whole();
    for (const at of [0, 100, 2_000, 3_584, bytes.length]) {
      async function* source() {
        yield* inPieces(bytes.subarray(0, at));
        throw new Error("the caller has left");
      }
      await expect(unpacked(new MemoryFiles(), "/to", source())).rejects.toThrow("the caller has left");
    }
  });

  it("ends with its signal, even if no more data arrives", async () => {
    const bytes = await whole();
    for (const at of [0, 100, 2_000, 3_584]) {
      const controller = new AbortController();
      async function* source() {
        if (at > 0) yield bytes.subarray(0, at);
        setTimeout(() => controller.abort(new Error("enough")), 10);
        await new Promise(() => undefined);
      }
      const work = unpacked(new MemoryFiles(), "/to", source(), { signal: controller.signal });
      await expect(work).rejects.toThrow("enough");
    }
  });

  it("ends with the error of a failed write, and names the file", async () => {
    const files = new MemoryFiles();
    files.fault = (call, path) => {
      if (call === "write" && path === "/to/b")
        throw new KeeperRefusal("system", "no space left on device", "ENOSPC");
    };
    const error = await failure(unpacked(files, "/to", await whole()));
    expect(error).toMatchObject({ code: "disk_full" });
    expect(error.message).toContain("/to/b");
    expect(files.text("/to/a")).toHaveLength(3_000);
  });

  it("is read no faster than it is unpacked", async () => {
    const source = new MemoryFiles();
    for (let i = 0; i < 50; i++) source.file(`/from/${i}`, Buffer.alloc(60_000));
    const bytes = await packed(source, "/from");
    let given = 0;
    async function* pieces() {
      for await (const piece of inPieces(bytes, 10_000)) {
        given += piece.length;
        yield piece;
      }
    }
    const files = new MemoryFiles();
    let atFirstWrite = 0;
    files.fault = async (call) => {
      if (call !== "write" || atFirstWrite > 0) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
      atFirstWrite ||= given;
    };
    await unpacked(files, "/to", pieces());
    expect(atFirstWrite).toBeLessThan(bytes.length / 3);
    expect(given).toBe(bytes.length);
  });
});
