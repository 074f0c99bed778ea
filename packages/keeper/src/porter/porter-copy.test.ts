import { execFileSync, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { temporary, until } from "../testing/test-keeper.ts";
import { Porter } from "./porter.ts";

const porter = new Porter();
const PLENTY = 1_000_000_000;

let directory: string;
let from: string;
let to: string;
beforeEach(() => {
  directory = temporary();
  from = join(directory, "from");
  to = join(directory, "to");
  mkdirSync(from);
  mkdirSync(to);
});
afterEach(async () => {
  await porter.unmount(to);
  await porter.removeTree(directory);
});

/** Deadline of every copy. */
const soon = () => AbortSignal.timeout(60_000);
const copy = (names: readonly string[], maxBytes = PLENTY) =>
  porter.copy({ from, to, names, maxBytes }, soon());

const shell = (script: string, cwd = from): string =>
  execFileSync("sh", ["-ec", script], {
    cwd,
    encoding: "latin1",
    stdio: ["ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH, LC_ALL: "C" },
  });

/** Describes a tree without its access times, which reading changes. */
const listing = (path: string): string[] =>
  shell(String.raw`find . -printf '%P %y %#m %U:%G %T@ %l %n %s\0'`, path)
    .split("\0")
    .filter(Boolean)
    .toSorted();

/** Returns the allocated bytes of a tree, by the rule that the copy uses. */
const allocated = (path: string): number => {
  const inodes = new Map(
    shell(String.raw`find ${path} -printf '%i %b\n'`)
      .trim()
      .split("\n")
      .map((line) => line.split(" ") as [string, string]),
  );
  return [...inodes.values()].reduce((sum, blocks) => sum + Math.max(4_096, Number(blocks) * 512), 0);
};

const properties = (path: string) => {
  const { mode, uid, gid, size, rdev, nlink, mtimeNs, atimeNs } = lstatSync(path, { bigint: true });
  return { mode, uid, gid, size, rdev, nlink, mtimeNs, atimeNs };
};

/** Runs the fixture that accesses extended attributes, which Node can't. It is compiled once per test. */
function attributes(...args: string[]): string[] {
  const program = join(directory, "attributes");
  const source = fileURLToPath(new URL("../../fixtures/attributes.c", import.meta.url));
  if (!existsSync(program)) execFileSync("gcc", ["-D_GNU_SOURCE", "-o", program, source]);
  return execFileSync(program, args, { encoding: "utf8" }).split("\n").filter(Boolean).toSorted();
}

async function makeSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}.bound`);
  await once(server, "listening");
  renameSync(`${path}.bound`, path);
  server.close();
}

describe("a copy", () => {
  test("has types, modes, owners and times of everything, directories and the source's own included", async () => {
    mkdirSync(join(from, "tree"));
    const names = ["file", "folder", "locked", "link", "dangling", "fifo", "socket", "whiteout", ""];
    shell(
      `
      echo content > file; mkdir folder locked; echo inside | tee folder/inside > locked/inside
      ln -s folder link; ln -s "$(printf '/no\\nwhere')" dangling; mkfifo fifo; mknod whiteout c 0 0`,
      join(from, "tree"),
    );
    await makeSocket(join(from, "tree", "socket"));
    shell(
      `
      for name in *; do chown -h $((n += 1001)):$((n + 7)) $name; done
      chmod 6755 file; chmod 3711 folder; chmod 000 locked; chmod 640 fifo; chmod 700 socket; chmod 444 whiteout
      chmod 1777 .
      for name in * .; do
        touch -h -m -d "2001-02-03 04:05:0$((i += 1)).123456789" $name
        touch -h -a -d "1999-02-03 04:05:0$i.987654321" $name
      done`,
      join(from, "tree"),
    );
    const before = names.map((name) => properties(join(from, "tree", name)));
    expect(new Set(before.map(({ mtimeNs }) => mtimeNs)).size).toBe(names.length);
    expect(await copy(["tree"])).toEqual({ bytes: expect.any(Number) });
    expect(names.map((name) => properties(join(to, "tree", name)))).toEqual(before);
    const unread = names.filter((name) => name !== "link" && name !== "dangling");
    expect(unread.map((name) => properties(join(from, "tree", name)))).toEqual(
      before.filter((_, index) => unread.includes(names[index] ?? "?")),
    );
    expect(readFileSync(join(to, "tree", "locked", "inside"), "utf8")).toBe("inside\n");
    expect(readlinkSync(join(to, "tree", "dangling"))).toBe("/no\nwhere");
    expect(readlinkSync(join(to, "tree", "link"))).toBe("folder");
    expect(listing(join(to, "tree"))).toEqual(listing(join(from, "tree")));
  });

  test("has all extended attributes except the one that ties an overlay's index to its upper layer", async () => {
    mkdirSync(join(from, "dir"));
    writeFileSync(join(from, "file"), "#!/bin/sh\n", { mode: 0o755 });
    symlinkSync("file", join(from, "link"));
    shell("mknod node c 0 0; chown 5:6 file; setcap -n 100000 cap_net_raw+ep file");
    for (const name of ["file", "dir"]) attributes(join(from, name), "user.mine", `of ${name}`);
    for (const name of ["file", "dir", "link", "node"]) {
      attributes(join(from, name), "trusted.overlay.opaque", "y");
      attributes(join(from, name), "trusted.overlay.upper", "handle");
      attributes(join(from, name), "security.other", name.repeat(300));
    }
    attributes(join(from, "file"), "trusted.empty", "");
    const names = ["dir", "file", "link", "node"];
    const wanted = names.map((name) => attributes(join(from, name)));
    expect(wanted[1]?.map((line) => line.split("=")[0])).toContain("security.capability");
    await copy(names);
    expect(names.map((name) => attributes(join(to, name)))).toEqual(
      wanted.map((lines) => lines.filter((line) => !line.startsWith("trusted.overlay.upper="))),
    );
    expect(names.map((name) => attributes(join(from, name)))).toEqual(wanted);
  });

  test("has the hard links of the source, across names", async () => {
    mkdirSync(join(from, "one", "deep"), { recursive: true });
    mkdirSync(join(from, "two"));
    shell(`
      echo shared > one/deep/file; ln one/deep/file one/again; ln one/deep/file two/other; ln one/deep/file outside
      mkfifo one/fifo; ln one/fifo two/fifo; ln -s nowhere one/link; ln -P one/link two/link
      mknod one/gone c 0 0; ln one/gone two/gone; echo alone > two/alone`);
    await copy(["one", "two"]);
    const inode = (path: string) => lstatSync(join(to, path)).ino;
    expect(new Set(["one/deep/file", "one/again", "two/other"].map(inode)).size).toBe(1);
    for (const name of ["fifo", "link", "gone"]) expect(inode(`one/${name}`)).toBe(inode(`two/${name}`));
    expect(lstatSync(join(to, "one", "again")).nlink).toBe(3);
    expect(lstatSync(join(to, "two", "alone")).nlink).toBe(1);
    expect(readFileSync(join(to, "two", "other"), "utf8")).toBe("shared\n");
    expect(readlinkSync(join(to, "two", "link"))).toBe("nowhere");
  });

  test.each(["the same file system", "another file system"])(
    "to %s has data and holes where they were",
    async (where) => {
      const data = Buffer.from(Array.from({ length: 3_000_001 }, (_, index) => (index * 167) & 255));
      writeFileSync(join(from, "whole"), data);
      writeFileSync(join(from, "empty"), "");
      shell(
        "truncate -s 5G sparse; for at in 1 2000 4095; do dd if=whole of=sparse bs=1M seek=$at conv=notrunc; done",
      );
      shell(
        "truncate -s 1G hole; printf x > head; truncate -s 1G head; truncate -s 1G tail; printf x >> tail",
      );
      if (where === "another file system") spawnSync("mount", ["-t", "tmpfs", "none", to]);
      const names = ["empty", "head", "hole", "sparse", "tail", "whole"];
      expect(await copy(names, 20_000_000)).toEqual({ bytes: expect.any(Number) });
      for (const name of names) {
        expect(statSync(join(to, name)).size).toBe(statSync(join(from, name)).size);
        expect(statSync(join(to, name)).blocks).toBeLessThanOrEqual(statSync(join(from, name)).blocks + 16);
      }
      expect(readFileSync(join(to, "whole")).equals(data)).toBe(true);
      shell(
        `for at in 1 2000 4095; do dd if=${to}/sparse bs=1M skip=$at count=3 | head -c 3000001 | cmp - whole; done`,
      );
      shell(
        `cmp -n 100000 head ${to}/head; tail -c 100000 ${to}/tail > end; tail -c 100000 tail | cmp - end`,
      );
    },
  );

  test("counts what it allocates, and an empty file as a block", async () => {
    mkdirSync(join(from, "tree", "sub"), { recursive: true });
    for (let index = 0; index < 300; index++) {
      writeFileSync(join(from, "tree", "sub", `${index}`.padEnd(200, "n")), "");
    }
    writeFileSync(join(from, "tree", "file"), Buffer.alloc(40_000, 1));
    linkSync(join(from, "tree", "file"), join(from, "tree", "again"));
    expect(await copy(["tree"])).toEqual({ bytes: allocated(join(to, "tree")) });
  });

  test("has names of any bytes", async () => {
    const bytes = Array.from({ length: 255 }, (_, index) => index + 1).filter(
      (byte) => !"./".includes(String.fromCharCode(byte)),
    );
    const root = Buffer.from(`${from}/tree/`);
    mkdirSync(root);
    for (const byte of bytes) writeFileSync(Buffer.concat([root, Buffer.of(byte, byte)]), `${byte}`);
    for (const name of ["-rf", "...", "a\nb", "é".repeat(127), "%s%n"]) mkdirSync(join(from, "tree", name));
    await copy(["tree"]);
    expect(listing(join(to, "tree"))).toEqual(listing(join(from, "tree")));
    for (const byte of bytes) {
      expect(readFileSync(Buffer.concat([Buffer.from(`${to}/tree/`), Buffer.of(byte, byte)]), "utf8")).toBe(
        `${byte}`,
      );
    }
  });
});

describe("a tree deeper than any path can be", () => {
  const walking = (cwd: string, script: string): string =>
    execFileSync(process.execPath, ["-e", `const fs = require("node:fs"); ${script}`], {
      cwd,
      encoding: "utf8",
    });

  /** Creates a deep tree: every level has entries before and after the one that leads down, and its own time. */
  const dig = (levels: number, name: string, siblings: readonly string[]) =>
    walking(
      from,
      `fs.mkdirSync("tree");
      process.chdir("tree");
      for (let depth = 1; depth < ${levels}; depth++) {
        fs.mkdirSync("${name}");
        for (const beside of ${JSON.stringify(siblings)}) {
          fs.mkdirSync(beside);
          fs.writeFileSync(beside + "/file", String(depth));
        }
        fs.utimesSync(".", depth, depth);
        process.chdir("${name}");
      }`,
    );

  /** Describes a deep tree, one line per level: its time and its entries. */
  const outline = (path: string, name: string): string[] =>
    walking(
      path,
      `process.chdir("tree");
      for (;;) {
        const names = fs.readdirSync(".").sort();
        const files = names.filter((each) => each.length === 1).map((each) => fs.readFileSync(each + "/file", "utf8"));
        console.log(fs.statSync(".").mtimeMs, names.map((each) => each.length).join(), files.join());
        if (!names.includes("${name}")) break;
        process.chdir("${name}");
      }`,
    )
      .trim()
      .split("\n");

  /** Creates a directory on a tmpfs, where creating directories does not slow down after many removals. */
  const inMemory = () => {
    spawnSync("mount", ["-t", "tmpfs", "none", directory]);
    for (const path of [from, to]) mkdirSync(path);
  };
  afterEach(() => porter.unmount(directory));

  test.each([
    ["on a disk", 150],
    ["in memory", 3_000],
  ])("is copied whole %s, with few open files", (where, levels) => {
    if (where === "in memory") inMemory();
    const name = "n".repeat(255);
    dig(levels, name, ["a", "b", "z"]);
    const args = ["--nofile=100", porter.actionScript, "copy", from, to, `${PLENTY}`, "tree"];
    const { status, stderr } = spawnSync("prlimit", args, { encoding: "utf8" });
    expect([status, stderr]).toEqual([0, ""]);
    const lines = outline(to, name);
    expect(lines.slice(0, 2)).toEqual(["1000 1,1,255,1 1,1,1", "2000 1,1,255,1 2,2,2"]);
    expect(lines).toHaveLength(levels);
    expect(lines).toEqual(outline(from, name));
  });

  test("is refused if it is endless", async () => {
    inMemory();
    dig(16_385, "n", []);
    await expect(copy(["tree"])).rejects.toThrow(/too deep/);
    expect(existsSync(join(from, "tree", "n"))).toBe(true);
  });
});

describe("nothing but the tree is reached", () => {
  test("through a symbolic link", async () => {
    mkdirSync(join(directory, "elsewhere"));
    writeFileSync(join(directory, "elsewhere", "secret"), "");
    mkdirSync(join(from, "tree"));
    symlinkSync(join(directory, "elsewhere"), join(from, "tree", "inside"));
    symlinkSync("../elsewhere", join(from, "top"));
    await copy(["tree", "top"]);
    expect(lstatSync(join(to, "tree", "inside")).isSymbolicLink()).toBe(true);
    expect(lstatSync(join(to, "top")).isSymbolicLink()).toBe(true);
    await expect(
      porter.copy({ from: to, to: join(to, "top"), names: ["tree"], maxBytes: PLENTY }, soon()),
    ).rejects.toThrow();
    expect(readdirSync(join(directory, "elsewhere"))).toEqual(["secret"]);
  });

  test("through a mount, on a directory or a file, inside or at the top", async () => {
    mkdirSync(join(from, "tree", "deep", "mount"), { recursive: true });
    mkdirSync(join(from, "bound"));
    writeFileSync(join(from, "bound", "file"), "");
    const mounts = [join(from, "tree", "deep", "mount"), join(from, "bound", "file")];
    spawnSync("mount", ["-t", "tmpfs", "none", mounts[0] ?? ""]);
    spawnSync("mount", ["--bind", "/etc/hostname", mounts[1] ?? ""]);
    try {
      writeFileSync(join(mounts[0] ?? "", "secret"), "");
      for (const name of ["tree", "bound"]) await expect(copy([name])).rejects.toThrow(/a mount lies inside/);
      const top = { from: join(from, "tree", "deep"), to, names: ["mount"], maxBytes: PLENTY };
      await expect(porter.copy(top, soon())).rejects.toThrow(/a mount lies inside/);
      expect(shell("find . -name secret -o -size +0 -type f", to)).toBe("");
    } finally {
      for (const mount of mounts) await porter.unmount(mount);
    }
  });

  test("that is a device", async () => {
    for (const [name, type] of [
      ["null", "c 1 3"],
      ["disk", "b 7 0"],
      ["zero", "b 0 0"],
    ] as const) {
      mkdirSync(join(from, name));
      shell(`mknod ${name}/node ${type}`);
      await expect(copy([name])).rejects.toThrow(/device/);
      expect(readdirSync(join(to, name))).toEqual([]);
    }
  });
});

describe("a copy that fails", () => {
  /** Each case: a name, a script, the minimum size in bytes, and the overhead that a file system may add. */
  test.each([
    ["many empty files", "for i in $(seq 200); do : > tree/$i; done", 201 * 4_096, 0],
    ["many directories", "for i in $(seq 200); do mkdir tree/$i; done", 201 * 4_096, 0],
    ["one large file", "head -c 60000000 /dev/zero > tree/file", 60_000_000, 1_000_000],
  ])("because of %s is too large, and stays within the budget", async (_, script, least, more) => {
    shell(`mkdir tree; ${script}`);
    const before = listing(from);
    for (const budget of [0, 4_095, least >> 1, least - 1]) {
      expect(await copy(["tree"], budget)).toBe("too_much");
      if (budget < 4_096) expect(readdirSync(to)).toEqual([]);
      else expect(allocated(join(to, "tree"))).toBeLessThanOrEqual(budget + more);
      await porter.removeTree(join(to, "tree"));
    }
    expect(listing(from)).toEqual(before);
    expect(await copy(["tree"], least + more)).toEqual({ bytes: expect.any(Number) });
    expect(listing(join(to, "tree"))).toEqual(listing(join(from, "tree")));
  });

  test('because the source is missing returns "gone"', async () => {
    writeFileSync(join(from, "here"), "");
    expect(await copy(["here", "nowhere"])).toBe("gone");
    expect(readdirSync(to)).toEqual(["here"]);
    expect(await porter.copy({ from: join(from, "nowhere"), to, names: ["x"], maxBytes: 1 }, soon())).toBe(
      "gone",
    );
  });

  test("because the name exists leaves the existing entry unchanged", async () => {
    for (const name of ["file", "folder", "link"]) writeFileSync(join(to, name), "there before");
    writeFileSync(join(from, "file"), "new");
    mkdirSync(join(from, "folder"));
    symlinkSync("new", join(from, "link"));
    for (const name of ["file", "folder", "link"]) {
      await expect(copy([name])).rejects.toThrow(/File exists/);
      expect(readFileSync(join(to, name), "utf8")).toBe("there before");
    }
    unlinkSync(join(to, "file"));
    symlinkSync("/etc/holdfast-test-never", join(to, "file"));
    await expect(copy(["file"])).rejects.toThrow(/File exists/);
  });

  test("because a name is invalid creates nothing", async () => {
    writeFileSync(join(from, "file"), "");
    for (const name of ["", ".", "..", "a/b", "/etc"])
      await expect(copy(["file", name]), name).rejects.toThrow(/usage/);
    await expect(copy([])).rejects.toThrow(/usage/);
    await expect(copy(["file"], -1)).rejects.toThrow(/usage/);
    expect(readdirSync(to)).toEqual([]);
    await expect(
      porter.copy({ from, to: join(to, "no"), names: ["file"], maxBytes: 1 }, soon()),
    ).rejects.toThrow(/copy to/);
  });
});

describe("an overlay", () => {
  const lower = () => join(directory, "lower");
  const mounted = (name: string) => join(directory, name);
  /** A directory that was just unmounted may be busy for a moment, because of a mount namespace of another test. */
  const mountAt = async (name: string, layers: string) => {
    const target = mounted(name);
    const [upper, work] = [join(layers, "upper"), join(layers, "work")];
    mkdirSync(target, { recursive: true });
    await until(`${name} is mounted`, async () => {
      const mounting = porter.mountOverlay({
        marker: "holdfast:test",
        target,
        lower: [lower()],
        upper,
        work,
      });
      return mounting.then(
        () => true,
        (error) => {
          if (/busy/.test(String(error))) return false;
          throw error;
        },
      );
    });
  };

  beforeEach(async () => {
    mkdirSync(join(from, "upper"));
    mkdirSync(join(from, "work"));
    mkdirSync(lower());
    shell(
      `
      mkdir -p kept/below opaque removed; echo old | tee changed untouched gone kept/below/file opaque/hidden removed/file
      echo pair > first; ln first second; ln first third; echo twin > left; ln left right`,
      lower(),
    );
    await mountAt("one", from);
    shell(
      `
      echo new > changed; rm gone; rm -r removed; rm -r opaque; mkdir opaque; echo shown > opaque/shown
      echo changed > first; rm third; echo more >> kept/below/file; mkdir made; ln changed made/link
      chown 100000:100000 left; chmod 4711 changed`,
      mounted("one"),
    );
  });
  afterEach(async () => {
    for (const name of ["one", "two"]) await porter.unmount(mounted(name));
  });

  const contents = (name: string) =>
    shell('find . -type f | sort | while read -r file; do echo "$file: $(cat "$file")"; done', mounted(name));

  test("that is mounted can be copied, and its copy mounted beside it shows the same", async () => {
    expect(await copy(["upper", "work"])).toEqual({ bytes: expect.any(Number) });
    await mountAt("two", to);
    expect(contents("two")).toBe(contents("one"));
    // Until the overlay is unmounted, it counts its index entry as a link of files that it did not copy up itself.
    await porter.unmount(mounted("one"));
    await mountAt("one", from);
    expect(listing(mounted("two"))).toEqual(listing(mounted("one")));
    expect(readdirSync(mounted("two")).toSorted()).toEqual([
      "changed",
      "first",
      "kept",
      "left",
      "made",
      "opaque",
      "right",
      "second",
      "untouched",
    ]);
    expect(readdirSync(join(mounted("two"), "opaque"))).toEqual(["shown"]);
    for (const name of ["first", "second"]) {
      expect(readFileSync(join(mounted("two"), name), "utf8")).toBe("changed\n");
      expect(statSync(join(mounted("two"), name)).nlink).toBe(2);
    }
    expect(statSync(join(mounted("two"), "right")).uid).toBe(100_000);
  });

  test("and its copy change independently", async () => {
    await copy(["upper", "work"]);
    await mountAt("two", to);
    const before = [listing(mounted("one")), contents("one")];
    shell(
      `
      echo fork > second; echo fork > kept/below/new; mv kept/below/file made/moved; rm -r opaque; echo fork > right
      echo fork >> untouched; rm changed; mkdir removed gone`,
      mounted("two"),
    );
    expect([listing(mounted("one")), contents("one")]).toEqual(before);
    for (const name of ["first", "second"])
      expect(readFileSync(join(mounted("two"), name), "utf8")).toBe("fork\n");
    expect(readFileSync(join(mounted("two"), "left"), "utf8")).toBe("fork\n");
    const fork = contents("two");
    shell("echo source > second; rm -r kept", mounted("one"));
    expect(contents("two")).toBe(fork);
    await porter.unmount(mounted("two"));
    await mountAt("two", to);
    expect(contents("two")).toBe(fork);
  });

  test("copied detached lies over another copy of its lower layer, and shows the same files", async () => {
    const [elsewhere, upper] = [join(directory, "elsewhere"), join(to, "upper")];
    mkdirSync(elsewhere);
    await porter.copy({ from: directory, to: elsewhere, names: ["lower"], maxBytes: PLENTY }, soon());
    await porter.unmount(mounted("one"));
    await porter.copy({ from, to, names: ["upper"], maxBytes: PLENTY, detached: true }, soon());
    const overlaid = async (name: string, layers: { lower: string; upper: string; work: string }) => {
      mkdirSync(mounted(name), { recursive: true });
      mkdirSync(layers.work, { recursive: true });
      const { lower: below, ...rest } = layers;
      await porter.mountOverlay({ marker: "copy", target: mounted(name), lower: [below], ...rest });
      return contents(name);
    };
    const moved = { lower: join(elsewhere, "lower"), upper, work: join(to, "work") };
    const copied = await overlaid("two", moved);
    const original = await overlaid("one", {
      lower: lower(),
      upper: join(from, "upper"),
      work: join(from, "work"),
    });
    // The other names of a linked file that only one name of was changed show the image's file again.
    const withoutLinks = (text: string) => text.split("\n").filter((line) => !/second|third/.test(line));
    expect(withoutLinks(copied)).toEqual(withoutLinks(original));
    expect(copied).toContain("./kept/below/file: old");
    expect(copied).toContain("./untouched: old");
  });
});

test("an aborted copy writes nothing more", async () => {
  execFileSync("sh", ["-c", `head -c 1G /dev/zero > ${join(from, "big")}`]);
  const broken = new AbortController();
  const copying = porter.copy({ from, to, names: ["big"], maxBytes: PLENTY * 100 }, broken.signal);
  await expect.poll(() => existsSync(join(to, "big")), { interval: 1 }).toBe(true);
  broken.abort(new Error("no longer wanted"));
  await expect(copying).rejects.toThrow("no longer wanted");
  const size = () => statSync(join(to, "big")).blocks;
  const before = size();
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(size()).toBe(before);
  expect(before * 512).toBeLessThan(2 ** 30);
});
