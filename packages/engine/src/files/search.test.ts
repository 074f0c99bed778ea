import type { FileSearch } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { systemClock } from "../lib/clock.ts";
import type { SearchOptions } from "../ports/api.ts";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";
import { failure, signal } from "../testing/archives.ts";
import { MemoryFiles } from "../testing/memory-files.ts";
import { searchFiles } from "./search.ts";

interface Wanted extends Partial<SearchOptions> {
  path?: string;
  isSkipped?: (path: string) => boolean;
  signal?: AbortSignal;
}

const search = (files: MemoryFiles, wanted: Wanted = {}): Promise<FileSearch> =>
  searchFiles({
    clock: systemClock,
    files,
    path: "/app",
    isSkipped: () => false,
    limit: 100,
    signal,
    ...wanted,
  });

const paths = ({ items }: FileSearch) => items.map(({ path }) => path);

const project = () =>
  new MemoryFiles()
    .file("/app/src/main.ts", "export const main = 1;\n// TODO: more\n")
    .file("/app/src/deep/part.ts", "// todo: less\nimport a from 'b';\n")
    .file("/app/src/.hidden.ts", "// TODO: hidden\n")
    .file("/app/README.md", "# App\r\n\r\nTODO list\r\n")
    .file("/app/node_modules/x/index.js", "// TODO: theirs\n")
    .file("/app/logo.png", Buffer.concat([Buffer.from("TODO\n"), Buffer.of(0, 1, 2)]))
    .put("/app/up", "symlink", { target: "/app" })
    .put("/app/pipe", "fifo")
    .file("/outside", "TODO: not here\n");

describe("a search", () => {
  it("finds everything below a directory, breadth first, without following links", async () => {
    const found = await search(project());
    expect(found).toMatchObject({ path: "/app", truncated: false });
    expect(paths(found)).toEqual([
      "/app/src",
      "/app/README.md",
      "/app/node_modules",
      "/app/logo.png",
      "/app/up",
      "/app/pipe",
      "/app/src/main.ts",
      "/app/src/deep",
      "/app/src/.hidden.ts",
      "/app/node_modules/x",
      "/app/src/deep/part.ts",
      "/app/node_modules/x/index.js",
    ]);
    expect(found.items.find(({ name }) => name === "up")).toMatchObject({ kind: "symlink", target: "/app" });
  });

  it.each([
    ["*.ts", ["/app/src/main.ts", "/app/src/deep/part.ts"]],
    [".*", ["/app/src/.hidden.ts"]],
    ["{README,main}.*", ["/app/README.md", "/app/src/main.ts"]],
    ["src/*.ts", ["/app/src/main.ts"]],
    ["src/**/*.ts", ["/app/src/main.ts", "/app/src/deep/part.ts"]],
    ["pip?", ["/app/pipe"]],
    ["nothing", []],
  ])("by name: %s", async (name, expected) => {
    expect(paths(await search(project(), { name }))).toEqual(expected);
  });

  it("returns the requested number of context lines, as far as they exist", async () => {
    const files = new MemoryFiles().file("/app/a", "1\r\n2\r\nneedle\r\n4\r\n5\r\nneedle\r\n");
    const found = await search(files, { content: "needle", contextLines: 2 });
    expect(found.items[0]?.lines).toEqual([
      { line: 3, text: "needle", before: ["1", "2"], after: ["4", "5"] },
      { line: 6, text: "needle", before: ["4", "5"], after: [] },
    ]);
  });

  it("by content returns the lines, and skips binary files", async () => {
    const files = project();
    const found = await search(files, { content: "TODO", exclude: ["node_modules"] });
    expect(found.items.map(({ path, lines }) => [path, lines])).toEqual([
      ["/app/README.md", [{ line: 3, text: "TODO list" }]],
      ["/app/src/main.ts", [{ line: 2, text: "// TODO: more" }]],
      ["/app/src/.hidden.ts", [{ line: 1, text: "// TODO: hidden" }]],
    ]);
    expect(files.calls).not.toContain("list /app/node_modules");
    expect(files.calls).not.toContain("read /app/pipe");
  });

  it("combines content and name, text or expression, with or without case", async () => {
    const files = project().file("/app/c", "a.c\nabc\n");
    expect(paths(await search(files, { content: "todo", name: "*.ts", ignoreCase: true }))).toEqual([
      "/app/src/main.ts",
      "/app/src/deep/part.ts",
    ]);
    expect((await search(files, { content: "a.c" })).items[0]?.lines).toEqual([{ line: 1, text: "a.c" }]);
    const lines = [
      { line: 1, text: "a.c" },
      { line: 2, text: "abc" },
    ];
    expect((await search(files, { content: "^a.c$", regex: true, name: "c" })).items[0]?.lines).toEqual(
      lines,
    );
  });

  it("of the root returns paths with a single slash", async () => {
    expect(paths(await search(project(), { path: "/", name: "app/README.md" }))).toEqual(["/app/README.md"]);
  });

  it("skips excluded and unreadable entries", async () => {
    const files = project().file("/app/secret/key", "TODO");
    files.fault = (call, path) => {
      if (path === "/app/README.md" && call === "read") throw new KeeperRefusal("system", "no", "EACCES");
      if (path === "/app/src/deep") throw new KeeperRefusal("system", "gone", "ENOENT");
      if (path === "/app/src/main.ts" && call === "piece") throw new KeeperRefusal("system", "no", "EIO");
    };
    const isSkipped = (path: string) => path === "/app/secret" || path === "/app/node_modules";
    const found = await search(files, { content: "todo", ignoreCase: true, isSkipped });
    expect(paths(found)).toEqual(["/app/src/.hidden.ts"]);
  });

  it("shows the part of a long line around the match", async () => {
    const line = `${"x".repeat(10_000)}needle${"y".repeat(10_000)}`;
    const found = await search(new MemoryFiles().file("/app/min.js", line), { content: "needle" });
    expect(found.items[0]?.lines?.[0]?.text).toMatch(/^x{64}needley+$/);
    expect(found.items[0]?.lines?.[0]?.text).toHaveLength(256);
  });
});

describe("a search is marked as truncated at the limit", () => {
  it("of results, unless there are no more", async () => {
    const files = new MemoryFiles().file("/app/a", "").file("/app/b", "").file("/app/c", "");
    expect(await search(files, { limit: 2 })).toMatchObject({ truncated: true, items: { length: 2 } });
    expect(await search(files, { limit: 3 })).toMatchObject({ truncated: false, items: { length: 3 } });
  });

  it("of a directory's entries", async () => {
    const files = project();
    const list = files.list.bind(files);
    files.list = async (path, options) => ({ ...(await list(path, options)), truncated: true });
    expect(await search(files)).toMatchObject({ truncated: true });
  });

  it("of bytes of one file, whose beginning is searched", async () => {
    const large = Buffer.alloc(5 * 1_048_576, "line\n");
    large.write("first", 0);
    large.write("last!", large.length - 5);
    const files = new MemoryFiles().file("/app/large", large);
    expect(await search(files, { content: "first" })).toMatchObject({
      truncated: true,
      items: { length: 1 },
    });
    expect(await search(files, { content: "last!" })).toMatchObject({ truncated: true, items: [] });
  });

  it("of lines of one file", async () => {
    const files = new MemoryFiles().file("/app/a", "x\n".repeat(1_000));
    const { items } = await search(files, { content: "x" });
    expect(items[0]?.lines).toHaveLength(50);
  });

  it("of the length of a line for an expression", async () => {
    const files = new MemoryFiles().file("/app/min.js", `${"x".repeat(10_000)}needle`);
    const found = await search(files, { content: "need.e", regex: true });
    expect(found).toMatchObject({ truncated: true, items: [] });
  });
});

describe("a search that fails", () => {
  it.each([[{ content: "(", regex: true }], [{ content: "a{1000}{1000}{1000}", regex: true }]])(
    "reports the error in its pattern: %o",
    async (wanted) => {
      const files = new MemoryFiles().file("/app/a", "aaa");
      expect(await failure(search(files, wanted))).toMatchObject({ code: "invalid_request" });
    },
  );

  it("because its pattern takes forever ends, and delays nothing meanwhile", async () => {
    const files = new MemoryFiles().file("/app/a", `${"a".repeat(50)}!`);
    let turns = 0;
    const busy = setInterval(() => turns++, 10);
    const error = await failure(search(files, { content: "(a+)+$", regex: true }));
    clearInterval(busy);
    expect(error).toMatchObject({ code: "invalid_request" });
    expect(turns).toBeGreaterThan(50);
  });

  it("because its glob expands without bound ends too", async () => {
    const files = new MemoryFiles().file("/app/a", "");
    const error = await failure(search(files, { name: "{a,b}{a,b}{a,b}{a,b}".repeat(20) }));
    expect(error).toMatchObject({ code: "invalid_request" });
  });

  it("because there is no directory gets the same error as other calls", async () => {
    await expect(search(project(), { path: "/nowhere" })).rejects.toMatchObject({ errno: "ENOENT" });
    await expect(search(project(), { path: "/app/README.md" })).rejects.toMatchObject({ errno: "ENOTDIR" });
  });

  it("because of a lost link or an incomplete disk returns an error, not a partial result", async () => {
    const files = project();
    for (const error of [new LinkLost("gone", "yes"), new KeeperRefusal("not_on_disk", "elsewhere")]) {
      files.fault = (call, path) => {
        if (call === "list" && path === "/app/src") throw error;
      };
      await expect(search(files)).rejects.toBe(error);
    }
  });

  it("ends with its signal", async () => {
    const controller = new AbortController();
    const files = new MemoryFiles().file("/app/a", `${"a".repeat(50)}!`);
    files.fault = (call) => {
      if (call === "piece") setTimeout(() => controller.abort(new Error("enough")), 20);
    };
    const work = search(files, { content: "(a+)+$", regex: true, signal: controller.signal });
    await expect(work).rejects.toThrow("enough");
  });
});
