import { type DriveId, type FileChange, HoldfastError, NUMBERS, type SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { systemClock } from "../lib/clock.ts";
import type { EngineApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";
import { gathered, inPieces, packed } from "../testing/archives.ts";
import type { HostileDriver } from "../testing/hostile-driver.ts";
import { MemoryFiles } from "../testing/memory-files.ts";
import { codeOf, eventually, signal, testEngine } from "../testing/test-engine.ts";
import { driveFileApi } from "./file-api.ts";

const text = (content: string) => inPieces(Buffer.from(content));
const asleepOn = { wake: false };

describe("files of a sandbox in standby", () => {
  /** A sandbox with a drive at /work/data, and a link to it. */
  async function withDrive() {
    const all = await testEngine();
    const { engine, driver, create } = all;
    const { sandbox } = await create("box");
    await engine.drives.create({ name: "data" }, { signal });
    await engine.mounts.mount("box", { drive: "data", path: "/work/data" }, signal);
    await engine.sandboxes.standby("box", signal);
    const disk = new MemoryFiles()
      .put("/work/data", "directory")
      .file("/work/near", "on disk")
      .put("/link", "symlink", { target: "work/data" })
      .put("/up", "symlink", { target: "/work/../work" })
      .file("/home/user/a", "on disk");
    driver.files = async () => ({ files: disk, close: async () => undefined });
    return { ...all, disk, id: sandbox.id as SandboxId };
  }

  it("do not wake it when too many file calls are in progress: the call is refused", async () => {
    const { engine, driver } = await withDrive();
    driver.files = () => Promise.reject(new HoldfastError("too_many_file_calls"));
    const read = engine.files.read("box", "/home/user/a", { wake: true, offset: 0, length: null }, signal);
    expect(await codeOf(read)).toBe("too_many_file_calls");
    expect((await engine.sandboxes.get("box")).status).toBe("standby");
  });

  it.each(["/work/data", "/work/data/a", "/link", "/link/a", "/up/data/a"])(
    "are not read from its disk below a mounted drive: %s",
    async (path) => {
      const { engine, driver } = await withDrive();
      const range = { offset: 0, length: null };
      const { files } = engine;
      expect(await codeOf(files.stat("box", path, asleepOn, signal))).toBe("not_on_disk");
      expect(await codeOf(files.list("box", path, { ...asleepOn, limit: 10 }, signal))).toBe("not_on_disk");
      expect(await codeOf(files.read("box", path, { ...asleepOn, ...range }, signal))).toBe("not_on_disk");
      expect(await codeOf(files.search("box", path, { ...asleepOn, limit: 10 }, signal))).toBe("not_on_disk");
      expect(await codeOf(files.pack("box", path, asleepOn, signal))).toBe("not_on_disk");
      expect(driver.restores).toBe(0);
      await files.stat("box", path, { wake: true }, signal);
      expect(driver.restores).toBe(1);
    },
  );

  it("are read from its disk everywhere else", async () => {
    const { engine, driver } = await withDrive();
    const { files } = engine;
    expect(await files.stat("box", "/work/near", asleepOn, signal)).toMatchObject({ sizeBytes: 7 });
    expect((await files.list("box", "/work", { ...asleepOn, limit: 10 }, signal)).items).toHaveLength(2);
    const found = await files.search("box", "/home", { ...asleepOn, limit: 10, content: "disk" }, signal);
    expect(found.items.map(({ path }) => path)).toEqual(["/home/user/a"]);
    const archive = await gathered(await files.pack("box", "/home/user", asleepOn, signal));
    expect(archive.includes("on disk")).toBe(true);
    expect(driver.restores).toBe(0);
  });

  it.each(["/work", "/up", "/"])(
    "are not searched or packed if a drive below is missing: %s",
    async (path) => {
      const { engine } = await withDrive();
      const { files } = engine;
      expect(await codeOf(files.search("box", path, { ...asleepOn, limit: 10 }, signal))).toBe("not_on_disk");
      expect(await codeOf(files.pack("box", path, asleepOn, signal))).toBe("not_on_disk");
    },
  );

  it("release its disk when an archive was read or abandoned", async () => {
    const { engine, driver, disk } = await withDrive();
    let open = 0;
    const close = async () => {
      open -= 1;
      return undefined;
    };
    driver.files = async () => {
      open += 1;
      return { files: disk, close };
    };
    await gathered(await engine.files.pack("box", "/home", asleepOn, signal));
    expect(open).toBe(0);
    const left = (await engine.files.pack("box", "/home", asleepOn, signal))[Symbol.asyncIterator]();
    await left.next();
    expect(open).toBe(1);
    await left.return?.();
    expect(open).toBe(0);
    const controller = new AbortController();
    await engine.files.pack("box", "/home", asleepOn, controller.signal);
    controller.abort();
    expect(open).toBe(0);
  });
});

describe("a watch", () => {
  interface Watched {
    tell: (change: FileChange) => void;
    options: { recursive: boolean };
  }

  /** A keeper that reports the changes of the test until its link is closed. */
  function watchable(driver: HostileDriver, id: string): Watched[] {
    const watches: Watched[] = [];
    for (const link of driver.instances.get(id as SandboxId)?.links ?? []) {
      link.files.watch = async (_path, options, inner) => {
        const queue: FileChange[] = [];
        let wake = () => {};
        let end: { lost: string | null } | null = null;
        const finish = (lost: string | null) => {
          end ??= { lost };
          wake();
        };
        const tell = (change: FileChange) => {
          queue.push(change);
          wake();
        };
        watches.push({ options, tell });
        void link.closed.then(finish);
        inner.addEventListener("abort", () => finish(null));
        const next = async (): Promise<IteratorResult<FileChange>> => {
          const change = queue.shift();
          if (change !== undefined) return { done: false, value: change };
          if (end?.lost) throw new LinkLost(end.lost, "yes");
          if (end) return { done: true, value: undefined };
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
          return next();
        };
        const left = async () => {
          finish(null);
          return { done: true, value: undefined } as const;
        };
        return { [Symbol.asyncIterator]: () => ({ next, return: left }) };
      };
    }
    return watches;
  }

  const change = (path: string): FileChange => ({ kind: "created", path, directory: false });

  async function watching(numbers = {}, lifecycle = {}) {
    const all = await testEngine(numbers);
    const { sandbox } = await all.engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    const watches = watchable(all.driver, sandbox.id);
    const controller = new AbortController();
    const begun = all.engine.files.watch("box", "/home", { recursive: true }, controller.signal);
    const changes = (await begun)[Symbol.asyncIterator]();
    const tell = (each: FileChange) => watches[0]?.tell(each);
    return { ...all, id: sandbox.id as SandboxId, watches, changes, controller, tell };
  }

  it("reports changes, except those of the keeper's files", async () => {
    const { changes, tell, watches } = await watching();
    expect(watches[0]?.options).toEqual({ recursive: true });
    tell(change("/.holdfast/journals/x"));
    tell(change("/home/a"));
    expect(await changes.next()).toEqual({ done: false, value: change("/home/a") });
  });

  it("keeps its sandbox from idle suspension while it lasts", async () => {
    const { engine, controller } = await watching({ maintainEveryMs: 20 }, { idleStandbyMs: 1_000 });
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    controller.abort();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("standby"));
  });

  it("ends with an error when its sandbox is suspended on request, and can be started again", async () => {
    const { engine, driver, changes, id } = await watching();
    const next = changes.next();
    next.catch(() => undefined);
    expect(await engine.sandboxes.standby("box", signal)).toMatchObject({ status: "standby" });
    await expect(next).rejects.toMatchObject({
      code: "link_lost",
      message: expect.stringContaining("suspended"),
    });
    const again = await engine.files.watch("box", "/home", { recursive: false }, signal);
    expect(driver.restores).toBe(1);
    await again[Symbol.asyncIterator]().return?.();
    expect(driver.instances.get(id)?.alive).toBe(true);
  });

  it("ends with an error when its sandbox is deleted", async () => {
    const { engine, changes } = await watching();
    const next = changes.next();
    next.catch(() => undefined);
    await engine.sandboxes.remove("box", { graceMs: 0, signal });
    const error = await next.catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(HoldfastError);
    expect(["wrong_state", "sandbox_gone"]).toContain((error as HoldfastError).code);
  });

  it("can be closed while nothing changes, which frees its place", async () => {
    const { changes } = await watching();
    const next = changes.next();
    await changes.return?.();
    expect(await next).toMatchObject({ done: true });
  });

  it("ends with its signal, and with a lost link", async () => {
    const one = await watching();
    const next = one.changes.next();
    one.controller.abort(new Error("enough"));
    await expect(next).rejects.toThrow("enough");
    const other = await watching();
    const lost = other.changes.next();
    for (const link of other.driver.instances.get(other.id)?.links ?? []) link.drop("cut");
    await expect(lost).rejects.toMatchObject({ code: "link_lost" });
  });

  it("is rejected beyond the limits of the server and of the kernel", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    watchable(driver, sandbox.id);
    const begin = () => engine.files.watch("box", "/home", { recursive: true }, signal);
    const watches = await Promise.all(Array.from({ length: 256 }, begin));
    expect(await codeOf(begin())).toBe("too_many_watches");
    await watches[0]?.[Symbol.asyncIterator]().return?.();
    for (const link of driver.instances.get(sandbox.id as SandboxId)?.links ?? [])
      link.files.watch = async () => {
        throw new KeeperRefusal("system", "no space left on device", "ENOSPC");
      };
    expect(await codeOf(begin())).toBe("too_many_watches");
    expect(await codeOf(begin())).toBe("too_many_watches");
  });
});

const quiet = { debug() {}, info() {}, warn() {}, error() {}, child: () => quiet };

/** A drive in memory with its file access. */
function drive() {
  const files = new MemoryFiles();
  files.owner = { uid: 0, gid: 0 };
  const opened = { now: 0, ever: 0 };
  const gone = new AbortController();
  const close = async () => {
    opened.now -= 1;
  };
  const given = { clock: systemClock, numbers: NUMBERS, log: quiet, stopping: signal };
  const open = async (ref: string) => {
    if (ref !== "data") throw new HoldfastError("drive_not_found");
    opened.now += 1;
    opened.ever += 1;
    return { driveId: "drv_1" as DriveId, files, gone: gone.signal, close };
  };
  const api = driveFileApi(given as unknown as EngineContext, { files: open });
  return { api, files, opened, gone };
}

describe("files of a drive", () => {
  it("belong to the user that commands run as; existing files keep their owner", async () => {
    const { api, files } = drive();
    files.file("/theirs", "old", { uid: 33, gid: 33 });
    await api.write("data", "/a/b", text("new"), { parents: true }, signal);
    await api.write("data", "/theirs", text("new"), { parents: true }, signal);
    await api.mkdir("data", "/c/d", { parents: true }, signal);
    const archive = await packed(new MemoryFiles().file("/from/x", "x").file("/from/theirs", "y"), "/from");
    await api.unpack("data", "/", inPieces(archive), signal);
    for (const path of ["/a", "/a/b", "/c", "/c/d", "/x"])
      expect(files.nodes.get(path)).toMatchObject({ uid: 1000, gid: 1000 });
    expect(files.nodes.get("/theirs")).toMatchObject({ uid: 33, gid: 33 });
  });

  it("may have any name, and include no reserved ones", async () => {
    const { api } = drive();
    await api.write("data", "/.holdfast/proc", text("mine"), { parents: true }, signal);
    await api.write("data", "/proc/x", text("mine"), { parents: true }, signal);
    const found = await api.search("data", "/", { wake: true, limit: 10, content: "mine" }, signal);
    expect(found.items.map(({ path }) => path)).toEqual(["/.holdfast/proc", "/proc/x"]);
  });

  it("are closed however the call ends", async () => {
    const { api, files, opened } = drive();
    const options = { wake: true };
    await api.write("data", "/a", text("a"), { parents: true }, signal);
    await gathered((await api.read("data", "/a", { ...options, offset: 0, length: null }, signal)).body);
    await gathered(await api.pack("data", "/", options, signal));
    expect(await codeOf(api.stat("data", "/b", options, signal))).toBe("file_not_found");
    expect(await codeOf(api.unpack("data", "/", text("nonsense".repeat(100)), signal))).toBe(
      "invalid_request",
    );
    expect(await codeOf(api.watch("data", "/", { recursive: true }, signal))).toBe("system_error");
    files.watch = async () => (async function* () {})();
    const watch = await api.watch("data", "/", { recursive: true }, signal);
    expect(await codeOf(watch[Symbol.asyncIterator]().next())).toBe("link_lost");
    expect(opened).toEqual({ now: 0, ever: 7 });
    expect(await codeOf(api.stat("other", "/a", options, signal))).toBe("drive_not_found");
  });
});

it("file calls on a drive end with an error when the drive is deleted", async () => {
  const { api, files, opened, gone } = drive();
  files.file("/a", Buffer.alloc(300_000));
  files.watch = async (_path: string, _options: object, inner: AbortSignal) => {
    const aborted = new Promise<IteratorResult<FileChange>>((resolve) => {
      inner.addEventListener("abort", () => resolve({ done: true, value: undefined }));
    });
    return { [Symbol.asyncIterator]: () => ({ next: () => aborted }) };
  };
  const archive = (await api.pack("data", "/", { wake: true }, signal))[Symbol.asyncIterator]();
  await archive.next();
  const watch = (await api.watch("data", "/", { recursive: true }, signal))[Symbol.asyncIterator]();
  const change = codeOf(watch.next());
  expect(opened.now).toBe(2);
  gone.abort(new HoldfastError("drive_deleting"));
  expect(await change).toBe("drive_deleting");
  expect(opened.now).toBe(0);
});

it("paths are checked before anything is sent", async () => {
  const { engine, create } = await testEngine();
  await create("box");
  const calls = (files: EngineApi["files"], path: string) => [
    () => files.search("box", path, { wake: true, limit: 1 }, signal),
    () => files.pack("box", path, { wake: true }, signal),
    () => files.unpack("box", path, text(""), signal),
    () => files.watch("box", path, { recursive: false }, signal),
  ];
  for (const call of calls(engine.files, "/a/../b"))
    expect(await codeOf((async () => call())())).toBe("invalid_path");
  for (const call of calls(engine.files, "/.holdfast"))
    expect(await codeOf((async () => call())())).toBe("forbidden_path");
});
