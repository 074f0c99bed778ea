import { spawn, spawnSync } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { join, posix } from "node:path";
import type { FileChange } from "@holdfast/contract";
import type { FileAccess, Link } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Jail, Porter } from "../porter/porter.ts";
import { bodyOf, pause, soon, stopChild, TestKeeper, temporary, until } from "../testing/test-keeper.ts";

const porter = new Porter();
const END = "the last that happens";

/** Collects changes until a file of this name is created, as short lines: `created d a/b` for a directory. */
async function seenUntilEnd(changes: AsyncIterable<FileChange>, root: string): Promise<string[]> {
  const seen: string[] = [];
  for await (const { kind, path, directory } of changes) {
    const relative = posix.relative(root, path);
    if (relative === END) return seen;
    seen.push(`${kind} ${directory ? "d" : "f"} ${relative}`);
  }
  throw new Error(`the watch ended after ${seen.join(", ")}`);
}

/** Targets of the descriptors of a running process. */
const ofDescriptors = (pid: number, look: (fd: string) => string): string[] =>
  readdirSync(`/proc/${pid}/fd`).map((fd) => {
    try {
      return look(fd);
    } catch {
      return "";
    }
  });

const inotifyDescriptors = (pid: number): number =>
  ofDescriptors(pid, (fd) => readlinkSync(`/proc/${pid}/fd/${fd}`)).filter(
    (target) => target === "anon_inode:inotify",
  ).length;

const watchedBy = (pid: number): number =>
  ofDescriptors(pid, (fd) => readFileSync(`/proc/${pid}/fdinfo/${fd}`, "utf8"))
    .join("")
    .split("\n")
    .filter((line) => line.startsWith("inotify wd")).length;

/** Pseudo-random integers below a limit, the same for the same seed. */
function numbersFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return Math.floor((state / 2 ** 31) * below);
  };
}

let keeper: TestKeeper;
let link: Link;
let count = 0;
/** Mount point of a tmpfs for trees with thousands of directories. */
let memory: string;
beforeAll(async () => {
  memory = temporary();
  expect(spawnSync("mount", ["-t", "tmpfs", "none", memory]).status).toBe(0);
  // A private mount namespace, so that mounts of the host that change meanwhile do not affect the watch.
  keeper = await TestKeeper.start(["/usr/bin/unshare", "--mount", "--propagation", "private"]);
});
afterAll(async () => {
  await keeper.stop();
  await porter.unmount(memory);
  rmSync(memory, { recursive: true });
});
beforeEach(async () => {
  link = await keeper.connect();
});
afterEach(() => link.close());

/** Files served by a keeper, or by a jail. */
interface Served {
  files: FileAccess;
  /** `host` returns the path of a file on the host, `path` its path in requests. */
  host(path: string): string;
  path(path: string): string;
  /** Creates a directory that belongs to the served user. */
  make(path: string): void;
  close(): Promise<void>;
}

function keepers(): Promise<Served> {
  const directory = join(memory, String(++count));
  mkdirSync(directory);
  const close = () => Promise.resolve();
  const at = (path: string) => join(directory, path);
  const make = (path: string) => mkdirSync(at(path), { recursive: true });
  return Promise.resolve({ files: link.files, host: at, path: at, make, close });
}

async function jails(): Promise<Served> {
  const root = join(memory, String(++count));
  mkdirSync(root);
  spawnSync("chown", ["100000:100000", root]);
  const jail: Jail = await porter.openJail(root, { idBase: 100_000, idCount: 65_536 }, soon());
  const make = (path: string) => {
    mkdirSync(join(root, path), { recursive: true });
    spawnSync("chown", ["-R", "100000:100000", join(root, path.split("/")[0] ?? "")]);
  };
  return {
    files: jail,
    host: (path) => join(root, path),
    path: (path) => posix.join("/", path),
    make,
    close: () => jail.close(),
  };
}

describe.each([
  ["a keeper", keepers],
  ["a jail", jails],
])("a watch of %s", (_, serve) => {
  let served: Served;
  beforeEach(async () => {
    served = await serve();
  });
  afterEach(() => served.close());

  const watch = async (path = "", recursive = true) => {
    const changes = await served.files.watch(served.path(path), { recursive }, soon());
    return () => {
      writeFileSync(served.host(join(path, END)), "");
      return seenUntilEnd(changes, served.path(path));
    };
  };

  test("reports creations, changes and removals with absolute paths", async () => {
    mkdirSync(served.host("old"));
    writeFileSync(served.host("old/file"), "x");
    const changes = await served.files.watch(served.path(""), { recursive: true }, soon());
    appendFileSync(served.host("old/file"), "y");
    const first = await changes[Symbol.asyncIterator]().next();
    expect(first.value).toEqual({ kind: "modified", path: served.path("old/file"), directory: false });
    mkdirSync(served.host("new"));
    unlinkSync(served.host("old/file"));
    rmdirSync(served.host("old"));
    writeFileSync(served.host(END), "");
    expect(await seenUntilEnd(changes, served.path(""))).toEqual([
      "created d new",
      "removed f old/file",
      "removed d old",
    ]);
  });

  test("reports a write by its final name only, and no temporary names", async () => {
    const seen = await watch();
    await served.files.write(served.path("file"), bodyOf("a", "b"), {}, soon());
    await served.files.write(served.path("file"), bodyOf("again"), {}, soon());
    served.make(`tree/${"d/".repeat(70)}`);
    await served.files.remove(served.path("tree"), { recursive: true }, soon());
    const reported = await seen();
    expect(reported.filter((line) => line.endsWith("file"))).toEqual(["created f file"]);
    expect(reported).toContain("created d tree");
    expect(reported.at(-1)).toBe("removed d tree");
    expect(reported.filter((line) => line.includes("holdfast"))).toEqual([]);
  });

  test("reports names that only resemble temporary ones", async () => {
    const seen = await watch();
    writeFileSync(served.host(".holdfast-notes"), "");
    expect(await seen()).toContain("created f .holdfast-notes");
  });

  test("reports all content of a directory that is created and filled at once", async () => {
    const seen = await watch();
    const made: string[] = [];
    for (let index = 0; index < 30; index++) {
      const path = join("fresh", String(index), "deep", "er");
      mkdirSync(served.host(path), { recursive: true });
      writeFileSync(served.host(join(path, "file")), "");
      made.push(join(path, "file"));
    }
    // The content is read and reported after the directory itself, and may follow later events.
    await pause(50);
    const reported = new Set(await seen());
    for (const path of made) expect(reported).toContain(`created f ${path}`);
    expect(reported).toContain("created d fresh/29/deep/er");
    appendFileSync(served.host("fresh/29/deep/er/file"), "more");
  });

  test("reports changes in directories that were created or moved later", async () => {
    for (const name of ["a/sub/leaf", "b"]) mkdirSync(served.host(name), { recursive: true });
    writeFileSync(served.host("a/sub/file"), "");
    const seen = await watch();
    renameSync(served.host("a/sub"), served.host("b/moved"));
    await pause(50);
    appendFileSync(served.host("b/moved/file"), "x");
    mkdirSync(served.host("b/moved/leaf/new"));
    await pause(50);
    writeFileSync(served.host("b/moved/leaf/new/file"), "");
    const reported = await seen();
    expect(reported[0]).toBe("removed d a/sub");
    for (const line of [
      "created d b/moved",
      "created f b/moved/file",
      "created d b/moved/leaf",
      "modified f b/moved/file",
      "created d b/moved/leaf/new",
      "created f b/moved/leaf/new/file",
    ]) {
      expect(reported, line).toContain(line);
    }
    expect(reported.filter((line) => line.includes("a/sub/"))).toEqual([]);
  });

  test("reports a file moved between directories as removed and created", async () => {
    for (const name of ["a", "b"]) served.make(name);
    writeFileSync(served.host("a/file"), "");
    const seen = await watch();
    await served.files.rename(served.path("a/file"), served.path("b/other"), { overwrite: false }, soon());
    expect(await seen()).toEqual(["removed f a/file", "created f b/other"]);
  });

  test("still watches two directories that were exchanged", async () => {
    for (const name of ["one", "two"]) mkdirSync(served.host(name));
    const seen = await watch();
    const exchange = `import ctypes,sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(libc.syscall(316, -100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2) and 1)`;
    const args = ["-c", exchange, served.host("one"), served.host("two")];
    expect(spawnSync("python3", args).status).toBe(0);
    await pause(50);
    for (const name of ["one", "two"]) writeFileSync(served.host(`${name}/in`), "");
    const reported = await seen();
    for (const name of ["one", "two"]) expect(reported).toContain(`created f ${name}/in`);
  });

  test("a non-recursive watch reports only direct entries", async () => {
    mkdirSync(served.host("sub"));
    const seen = await watch("", false);
    writeFileSync(served.host("sub/deep"), "");
    writeFileSync(served.host("file"), "");
    mkdirSync(served.host("sub2"));
    const reported = await seen();
    expect(reported).toContain("created f file");
    expect(reported).toContain("created d sub2");
    expect(reported.filter((line) => line.includes("sub/"))).toEqual([]);
  });

  test("a watch of a file reports that file only, also after it is replaced", async () => {
    writeFileSync(served.host("file"), "");
    const changes = await served.files.watch(served.path("file"), { recursive: false }, soon());
    const iterator = changes[Symbol.asyncIterator]();
    const next = async () => {
      const { value } = await iterator.next();
      expect(value.path).toBe(served.path("file"));
      return value.kind;
    };
    writeFileSync(served.host("neighbour"), "");
    appendFileSync(served.host("file"), "x");
    expect(await next()).toBe("modified");
    await served.files.write(served.path("file"), bodyOf("new"), {}, soon());
    expect(await next()).toBe("created");
    appendFileSync(served.host("file"), "x");
    expect(await next()).toBe("modified");
    unlinkSync(served.host("file"));
    expect(await next()).toBe("removed");
    writeFileSync(served.host("file"), "");
    expect(await next()).toBe("created");
    await iterator.return?.();
  });

  test("reports the removal of the watched path, and its replacement", async () => {
    mkdirSync(served.host("dir/sub"), { recursive: true });
    const seen = await watch("dir");
    // A process in the directory prevents the kernel from reporting the directory's end.
    const guest = spawn("sleep", ["60"], { cwd: served.host("dir") });
    await until("it is there", () => readlinkSync(`/proc/${guest.pid}/cwd`) === served.host("dir"));
    rmSync(served.host("dir"), { recursive: true });
    mkdirSync(served.host("dir/again"), { recursive: true });
    await pause(50);
    writeFileSync(served.host("dir/again/file"), "");
    const reported = await seen();
    expect(reported.slice(0, 3)).toEqual(["removed d sub", "removed d ", "created d "]);
    expect(reported).toContain("created d again");
    expect(reported).toContain("created f again/file");
    await stopChild(guest);
  });

  test("ends with a removal when its path leads nowhere any more", async () => {
    mkdirSync(served.host("above/dir"), { recursive: true });
    const changes = await served.files.watch(served.path("above/dir"), { recursive: true }, soon());
    renameSync(served.host("above"), served.host("elsewhere"));
    const reported: FileChange[] = [];
    for await (const change of changes) reported.push(change);
    expect(reported.at(-1)).toEqual({ kind: "removed", path: served.path("above/dir"), directory: true });
  });

  test("follows no link but the requested one", async () => {
    for (const name of ["real/sub", "other"]) mkdirSync(served.host(name), { recursive: true });
    symlinkSync("../../other", served.host("real/sub/link"));
    symlinkSync("real/", served.host("link"));
    const changes = await served.files.watch(served.path("link"), { recursive: true }, soon());
    writeFileSync(served.host("other/unseen"), "");
    writeFileSync(served.host("real/sub/seen"), "");
    writeFileSync(served.host(`real/${END}`), "");
    expect((await seenUntilEnd(changes, served.path("link")))[0]).toBe("created f sub/seen");
  });

  test("a watch of a missing or invalid path is refused", async () => {
    const missing = served.files.watch(served.path("nothing"), { recursive: true }, soon());
    await expect(missing).rejects.toMatchObject({ reason: "system", errno: "ENOENT" });
    const reserved = served.files.watch("/..", { recursive: true }, soon());
    await expect(reserved).rejects.toMatchObject({ reason: "system", errno: "EINVAL" });
  });

  test("ends with its signal without an error, with or without a pending read", async () => {
    for (const waits of [true, false]) {
      const abort = new AbortController();
      const changes = await served.files.watch(served.path(""), { recursive: true }, abort.signal);
      const next = waits ? changes[Symbol.asyncIterator]().next() : null;
      await pause(20);
      abort.abort(new Error("enough"));
      expect(await (next ?? changes[Symbol.asyncIterator]().next())).toEqual({
        value: undefined,
        done: true,
      });
    }
  });

  test("a watch with too many directories fails at once, or when they are created", async () => {
    const changes = await served.files.watch(served.path(""), { recursive: true }, soon());
    const made = spawnSync("sh", ["-c", `mkdir many && cd many && seq 8200 | xargs mkdir`], {
      cwd: served.host(""),
    });
    expect(made.status).toBe(0);
    const all = async () => {
      for await (const _ of changes);
    };
    await expect(all()).rejects.toMatchObject({ reason: "limit" });
    const again = served.files.watch(served.path(""), { recursive: true }, soon());
    await expect(again).rejects.toMatchObject({ reason: "limit" });
    rmSync(served.host("many"), { recursive: true });
    const seen = await watch();
    writeFileSync(served.host("fine"), "");
    expect(await seen()).toContain("created f fine");
  });

  test("an unread watch drops changes, reports an overflow, and continues", async () => {
    const changes = await served.files.watch(served.path(""), { recursive: true }, soon());
    const name = "n".repeat(200);
    for (let index = 0; index < 4_000; index++) {
      writeFileSync(served.host(`${name}${index}`), "");
      if (index % 500 === 0) await pause(10);
    }
    await pause(100);
    const iterator = changes[Symbol.asyncIterator]();
    let reported = 0;
    for (;;) {
      const { value } = await iterator.next();
      if (value.kind === "overflow") {
        expect(value).toEqual({ kind: "overflow", path: served.path(""), directory: true });
        break;
      }
      reported++;
    }
    expect(reported).toBeGreaterThan(500);
    expect(reported).toBeLessThan(4_000);
    writeFileSync(served.host("after"), "");
    for (;;) {
      const { value } = await iterator.next();
      if (value.path === served.path("after")) break;
    }
    await iterator.return?.();
  });
});

describe("a keeper's watches", () => {
  let directory: string;
  beforeEach(() => {
    directory = join(memory, String(++count));
    mkdirSync(directory);
  });

  test("a repeated change is reported once until it is read", async () => {
    writeFileSync(join(directory, "file"), "");
    const changes = await link.files.watch(directory, { recursive: false }, soon());
    for (let index = 0; index < 300; index++) {
      appendFileSync(join(directory, "file"), "x");
      chmodSync(join(directory, "file"), 0o600 + (index % 2));
    }
    await link.ping(soon());
    writeFileSync(join(directory, END), "");
    expect(await seenUntilEnd(changes, directory)).toEqual(["modified f file"]);
  });

  test("events dropped by the kernel are reported, and new directories are found", async () => {
    const changes = await link.files.watch(directory, { recursive: true }, soon());
    process.kill(keeper.pid, "SIGSTOP");
    const depth = Number(readFileSync("/proc/sys/fs/inotify/max_queued_events", "utf8"));
    for (let index = 0; index < depth; index += 2) {
      writeFileSync(join(directory, "file"), "x");
      unlinkSync(join(directory, "file"));
    }
    mkdirSync(join(directory, "missed", "deep"), { recursive: true });
    process.kill(keeper.pid, "SIGCONT");
    await until("the directory is found", async () => {
      await link.ping(soon());
      return watchedBy(keeper.pid) >= 4;
    });
    const iterator = changes[Symbol.asyncIterator]();
    const file = join(directory, "missed", "deep", "file");
    let overflows = 0;
    for (let path = ""; path !== file; ) {
      const { value } = await iterator.next();
      path = value.path;
      // Other mounts on this host may cause extra overflows before the kernel's own one is reported.
      if (value.kind === "overflow") appendFileSync(file, String(++overflows));
    }
    expect(overflows).toBeGreaterThan(0);
    await iterator.return?.();
  });

  test("leave no descriptor after their end or the end of their link", async () => {
    expect(inotifyDescriptors(keeper.pid)).toBe(0);
    mkdirSync(join(directory, "sub"));
    const watches = await Promise.all(
      [directory, join(directory, "sub"), directory].map((path) =>
        link.files.watch(path, { recursive: true }, soon()),
      ),
    );
    expect(inotifyDescriptors(keeper.pid)).toBe(1);
    expect(watchedBy(keeper.pid)).toBe(3);
    for (const changes of watches) await changes[Symbol.asyncIterator]().return?.();
    await link.ping(soon());
    expect(inotifyDescriptors(keeper.pid)).toBe(0);
    await link.files.watch(directory, { recursive: true }, soon());
    const waiting = new AbortController();
    link.files.watch(directory, { recursive: true }, waiting.signal).catch(() => {});
    waiting.abort();
    expect(inotifyDescriptors(keeper.pid)).toBe(1);
    link.close();
    await until("it is closed", () => inotifyDescriptors(keeper.pid) === 0);
    expect(readlinkSync(`/proc/${keeper.pid}/cwd`)).toBe("/");
  });

  test("of one link each report the same changes", async () => {
    mkdirSync(join(directory, "sub"));
    const all = await link.files.watch(directory, { recursive: true }, soon());
    const part = await link.files.watch(join(directory, "sub"), { recursive: false }, soon());
    writeFileSync(join(directory, "sub", "file"), "x");
    writeFileSync(join(directory, "sub", END), "");
    writeFileSync(join(directory, END), "");
    expect(await seenUntilEnd(part, join(directory, "sub"))).toEqual(["created f file", "modified f file"]);
    expect(await seenUntilEnd(all, directory)).toContain("modified f sub/file");
  });

  test("a lost link ends one with the error that other calls get", async () => {
    const changes = await link.files.watch(directory, { recursive: true }, soon());
    const next = changes[Symbol.asyncIterator]().next();
    link.close();
    await expect(next).rejects.toMatchObject({ name: "LinkLost" });
    expect(await changes[Symbol.asyncIterator]().next()).toEqual({ value: undefined, done: true });
  });

  test("a return ends a pending read", async () => {
    const changes = await link.files.watch(directory, { recursive: true }, soon());
    const iterator = changes[Symbol.asyncIterator]();
    const next = iterator.next();
    await pause(20);
    await iterator.return?.();
    expect(await next).toEqual({ value: undefined, done: true });
  });

  test("are limited per link, and refused for the keeper's own directory", async () => {
    const control = link.files.watch(join(keeper.directory, "control"), { recursive: true }, soon());
    await expect(control).rejects.toMatchObject({ reason: "reserved_path" });
    const many = Array.from({ length: 32 }, () => link.files.watch(directory, { recursive: false }, soon()));
    await Promise.all(many);
    const surplus = link.files.watch(directory, { recursive: false }, soon());
    await expect(surplus).rejects.toMatchObject({ reason: "limit" });
  });

  test("above the keeper's own directory do not report its content", async () => {
    const changes = await link.files.watch(keeper.directory, { recursive: true }, soon());
    writeFileSync(join(keeper.directory, "control", "journals", "planted"), "");
    unlinkSync(join(keeper.directory, "control", "journals", "planted"));
    writeFileSync(join(keeper.directory, END), "");
    expect(await seenUntilEnd(changes, keeper.directory)).toEqual([]);
    unlinkSync(join(keeper.directory, END));
  });

  test.each([1, 2, 3, 4])("watch every directory exactly once after any history (seed %i)", async (seed) => {
    const random = numbersFrom(seed);
    const known = [""];
    const pick = () => known[random(known.length)] ?? "";
    const below = (path: string) => known.filter((each) => each !== "" && `${each}/`.startsWith(`${path}/`));
    const forget = (path: string) => {
      for (const each of below(path)) known.splice(known.indexOf(each), 1);
    };
    const make = (path: string) => {
      mkdirSync(join(directory, path));
      known.push(path);
    };
    const move = (from: string, to: string) => {
      renameSync(join(directory, from), join(directory, to));
      const moved = below(from).map((each) => to + each.slice(from.length));
      forget(from);
      known.push(...moved);
    };
    const changes = await link.files.watch(directory, { recursive: true }, soon());
    for (let step = 0; step < 600; step++) {
      const [path, other, fresh] = [pick(), pick(), `n${step}`];
      const act = path === "" ? 0 : random(30);
      if (act < 18) make(join(path, fresh));
      else if (act < 29 && !`${other}/`.startsWith(`${path}/`)) move(path, join(other, fresh));
      else if (act === 29 && below(path).length < 30) {
        rmSync(join(directory, path), { recursive: true });
        forget(path);
      }
      if (random(20) === 0) await pause(random(3));
    }
    expect(known.length).toBeGreaterThan(20);
    await until("all are watched, and the one above", () => watchedBy(keeper.pid) === known.length + 1);
    await pause(50);
    const iterator = changes[Symbol.asyncIterator]();
    const missing = new Set(known.map((path) => join(directory, path, "found")));
    for (const path of missing) writeFileSync(path, "");
    while (missing.size > 0) {
      const { value } = await iterator.next();
      missing.delete(value.path);
      // If the unread changes overflowed the queue, the last ones are repeated with a reader.
      if (value.kind === "overflow") for (const path of missing) appendFileSync(path, "again");
    }
    await iterator.return?.();
  });

  test("report mounts over a watched directory, and their removal", async () => {
    const [outer, inner] = [join(directory, "dir"), join(directory, "dir", "inner")];
    mkdirSync(inner, { recursive: true });
    const watches = [
      await link.files.watch(outer, { recursive: true }, soon()),
      await link.files.watch(inner, { recursive: false }, soon()),
    ].map((changes) => changes[Symbol.asyncIterator]());
    const inside = (...argv: string[]) =>
      expect(spawnSync("nsenter", ["-t", `${keeper.pid}`, "-m", ...argv]).status).toBe(0);
    let files = 0;
    /** Creates a file at every overflow, until one is seen. */
    const overflowed = async (iterator: AsyncIterator<FileChange>) => {
      for (const made = new Set<string>(); ; ) {
        const { kind, path } = (await iterator.next()).value;
        if (made.has(path)) return expect(kind).toBe("created");
        expect(kind === "overflow" || path.startsWith(`${inner}/`)).toBe(true);
        if (kind !== "overflow") continue;
        made.add(join(inner, String(++files)));
        writeFileSync(join(`/proc/${keeper.pid}/root`, inner, String(files)), "");
      }
    };
    for (const argv of [["mount", "-t", "tmpfs", "none"], ["umount"]]) {
      inside(...argv, inner);
      for (const iterator of watches) await overflowed(iterator);
    }
    for (const iterator of watches) await iterator.return?.();
  });

  test("of a large tree do not delay other answers", async () => {
    const made = spawnSync("sh", ["-c", "for a in $(seq 60); do mkdir -p $(seq -f $a/%g 100); done"], {
      cwd: directory,
    });
    expect(made.status).toBe(0);
    let open = false;
    const opening = link.files.watch(directory, { recursive: true }, soon()).then((changes) => {
      open = true;
      return changes;
    });
    let pings = 0;
    while (!open) {
      await link.ping(soon());
      pings++;
    }
    expect(pings).toBeGreaterThan(10);
    expect(watchedBy(keeper.pid)).toBe(6_062);
    await (await opening)[Symbol.asyncIterator]().return?.();
    expect(existsSync(directory)).toBe(true);
  });
});
