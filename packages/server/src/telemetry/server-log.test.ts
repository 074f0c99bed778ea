import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NUMBERS, type Numbers } from "@holdfast/contract";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { LogQuery } from "../ports/telemetry.ts";
import { createLogger } from "./logger.ts";
import { ServerLog } from "./server-log.ts";

let state: string;
let directory: string;
const serverLogs: ServerLog[] = [];
beforeEach(() => {
  state = mkdtempSync(join(tmpdir(), "holdfast-logs-"));
  directory = join(state, "logs");
});
afterEach(async () => {
  for (const serverLog of serverLogs.splice(0)) await serverLog.close();
  rmSync(state, { recursive: true, force: true });
});

const signal = new AbortController().signal;
const asIs = (text: string) => text;

/** Creates a stored log, as the server uses it. */
function keeping(numbers: Partial<Numbers> = {}) {
  const serverLog = new ServerLog({ ...NUMBERS, ...numbers });
  serverLogs.push(serverLog);
  const log = createLogger({ level: "silent", serverLog });
  serverLog.open(directory);
  const find = (query: Partial<LogQuery> = {}) => serverLog.find({ limit: 100, ...query }, asIs, signal);
  const messages = async (query: Partial<LogQuery> = {}) =>
    (await find(query)).items.map(({ message }) => message);
  return { serverLog, log, find, messages };
}

const sizes = () => readdirSync(directory).map((name) => statSync(join(directory, name)).size);

describe("the stored log", () => {
  test("returns its lines, newest first, with their subjects", async () => {
    const { log, find } = keeping();
    log.child({ part: "engine" }).info({ sandbox: "sbx_1", exec: "exe_1", n: 1 }, "one");
    log.error({ driveId: "drv_1", requestId: "req_1", err: new Error("no") }, "two");
    const { items, nextCursor } = await find();
    expect(nextCursor).toBeNull();
    expect(items).toMatchObject([
      { level: "error", message: "two", driveId: "drv_1", requestId: "req_1", sandboxId: null },
      {
        level: "info",
        message: "one",
        sandboxId: "sbx_1",
        execId: "exe_1",
        fields: { n: 1, part: "engine" },
      },
    ]);
    expect(items[0]?.fields).toMatchObject({ err: { message: "no" } });
    expect(Math.abs(Date.parse(items[0]?.at ?? "") - Date.now())).toBeLessThan(60_000);
  });

  test("is found by sandbox, exec, drive, request, level, text and time", async () => {
    const { log, messages } = keeping();
    log.info({ sandbox: "sbx_1" }, "of the one");
    log.warn({ sandboxId: "sbx_2", exec: "exe_1" }, "of the other");
    log.error({ drive: "drv_1", cause: { message: "no SPACE left" } }, "of a drive");
    log.info({ requestId: "req_1" }, "of a request about sbx_1");
    expect(await messages({ sandboxId: "sbx_1" })).toEqual(["of the one"]);
    expect(await messages({ sandboxId: "sbx_2" })).toEqual(["of the other"]);
    expect(await messages({ execId: "exe_1" })).toEqual(["of the other"]);
    expect(await messages({ driveId: "drv_1" })).toEqual(["of a drive"]);
    expect(await messages({ requestId: "req_1" })).toEqual(["of a request about sbx_1"]);
    expect(await messages({ level: "warn" })).toEqual(["of a drive", "of the other"]);
    expect(await messages({ text: "Space" })).toEqual(["of a drive"]);
    expect(await messages({ text: "OF THE" })).toEqual(["of the other", "of the one"]);
    const soon = Date.now() + 1_000;
    expect(await messages({ since: soon })).toEqual([]);
    expect(await messages({ until: soon })).toHaveLength(4);
    expect(await messages({ until: soon - 3_600_000 })).toEqual([]);
  });

  test("is read page by page, over several files, without gap or repetition", async () => {
    const { log, find } = keeping({ logFileBytes: 2_000, logFiles: 1_000 });
    for (let n = 0; n < 200; n++) log.info({ n }, `line ${n}`);
    const seen: string[] = [];
    let pages = 0;
    for (let cursor: string | undefined; ; pages++) {
      const { items, nextCursor } = await find({ cursor, limit: 7 });
      seen.push(...items.map(({ message }) => message));
      // Lines written meanwhile are newer and do not match.
      log.info({}, "later");
      if (nextCursor === null) break;
      cursor = nextCursor;
    }
    expect(seen).toEqual(Array.from({ length: 200 }, (_, n) => `line ${199 - n}`));
    expect(pages).toBeGreaterThan(20);
    expect(sizes().length).toBeGreaterThan(5);
  });

  test("returns every line of a file that is read in chunks", async () => {
    const { log, find } = keeping();
    for (let n = 0; n < 5_000; n++) log.info({ n, text: "é".repeat(n % 100) }, `line ${n}`);
    const { items } = await find({ limit: 10_000 });
    const seen = items.map(({ fields }) => fields.n);
    expect(seen).toEqual(Array.from({ length: 5_000 }, (_, n) => 4_999 - n));
    expect(sizes()[0]).toBeGreaterThan(600_000);
  });

  test("limits the cost of one query, with a cursor to search the rest", async () => {
    const { log, find } = keeping({ logFileBytes: 4_000, logFiles: 1_000 });
    log.info({ sandbox: "sbx_1" }, "long ago");
    for (let n = 0; n < 300; n++) log.info({ n }, "something else");
    const first = await find({ sandboxId: "sbx_1" });
    expect(first.items).toEqual([]);
    expect(first.nextCursor).not.toBeNull();
    let found = first;
    while (found.items.length === 0 && found.nextCursor !== null)
      found = await find({ sandboxId: "sbx_1", cursor: found.nextCursor });
    expect(found.items.map(({ message }) => message)).toEqual(["long ago"]);
  });

  test("stays within its size limit, and keeps the latest lines", async () => {
    const { log, messages } = keeping({ logFileBytes: 3_000, logFiles: 3 });
    for (let n = 0; n < 500; n++) {
      log.info({ n }, `line ${n}`);
      if (n % 10 === 0) await messages({ limit: 1 });
    }
    expect((await messages({ limit: 1 }))[0]).toBe("line 499");
    expect(sizes()).toHaveLength(3);
    for (const size of sizes()) expect(size).toBeLessThanOrEqual(3_000);
  });

  test("is readable only by the server", async () => {
    const { log, messages } = keeping();
    log.info({}, "one");
    await messages();
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    for (const name of readdirSync(directory))
      expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600);
  });

  test("continues after an earlier server, even one that died in the middle of a line", async () => {
    const before = keeping();
    before.log.info({}, "before");
    await before.serverLog.close();
    const [name = ""] = readdirSync(directory);
    appendFileSync(join(directory, name), '{"level":30,"time":17');
    const after = keeping();
    after.log.info({}, "after");
    expect(await after.messages()).toEqual(["after", "before"]);
    expect(readFileSync(join(directory, name), "utf8").trimEnd().split("\n")).toHaveLength(2);
  });

  test("contains the lines logged before it was opened", async () => {
    const serverLog = new ServerLog(NUMBERS);
    serverLogs.push(serverLog);
    createLogger({ level: "silent", serverLog }).info({}, "early");
    serverLog.open(directory);
    const { items } = await serverLog.find({ limit: 10 }, asIs, signal);
    expect(items.map(({ message }) => message)).toEqual(["early"]);
  });

  test("contains the lines logged at process exit", async () => {
    const { serverLog, log } = keeping();
    log.info({}, "first");
    await serverLog.find({ limit: 1 }, asIs, signal);
    log.error({}, "last words");
    // Simulates process exit during a write that no caller waits for.
    process.listeners("exit").at(-1)?.call(process, 0);
    const [name = ""] = readdirSync(directory);
    const lines = readFileSync(join(directory, name), "utf8").trimEnd().split("\n");
    expect(lines.map((line) => JSON.parse(line).msg)).toEqual(["first", "last words"]);
    await serverLog.close();
    const again = readFileSync(join(directory, name), "utf8").trimEnd().split("\n");
    expect(again.map((line) => JSON.parse(line).msg)).toEqual(["first", "last words"]);
  });

  test("skips content of its files that is not a log line", async () => {
    const { serverLog, log } = keeping();
    log.info({}, "one");
    await serverLog.close();
    const [name = ""] = readdirSync(directory);
    appendFileSync(join(directory, name), 'nonsense\n{"time":"x"}\n[]\nnull\n');
    const again = keeping();
    again.log.info({}, "two");
    expect(await again.messages()).toEqual(["two", "one"]);
  });

  test("does not harm the server if it cannot be written, reports dropped lines, and continues", async () => {
    writeFileSync(directory, "a file where a directory should be");
    const { log, messages } = keeping();
    log.info({}, "lost");
    await new Promise((resolve) => setTimeout(resolve, 50));
    rmSync(directory);
    await expect
      .poll(
        async () => {
          log.info({}, "kept");
          return messages().catch(() => []);
        },
        { timeout: 10_000 },
      )
      .toContain("kept");
    const said = await messages();
    expect(said.at(-1)).toBe("lines of this log were left out");
    expect(said).not.toContain("lost");
  });

  test("drops lines on a full disk, keeps no partial line, and continues when there is space", async () => {
    mkdirSync(directory);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=60k", "holdfast-logs", directory]);
    try {
      const { serverLog, log, messages } = keeping({ logFileBytes: 8_192, logFiles: 100 });
      for (let n = 0; n < 500; n++) {
        log.info({ text: "x".repeat(100) }, `line ${n}`);
        if (n % 40 === 0) await messages({ limit: 1 });
      }
      expect(sizes().reduce((sum, size) => sum + size, 0)).toBeLessThanOrEqual(65_536);
      for (const name of readdirSync(directory))
        expect(readFileSync(join(directory, name), "utf8")).toMatch(/^$|\n$/);
      // Old files are removed, which makes room for the buffered lines and for later ones.
      for (const name of readdirSync(directory).slice(0, 7)) rmSync(join(directory, name));
      await expect
        .poll(
          async () => {
            log.info({}, "room again");
            return messages();
          },
          { timeout: 10_000 },
        )
        .toContain("room again");
      await serverLog.close();
      const said = readdirSync(directory).flatMap((name) => {
        const lines = readFileSync(join(directory, name), "utf8").split("\n");
        expect(lines.pop()).toBe("");
        return lines.map((line) => (JSON.parse(line) as { msg: string }).msg);
      });
      expect(said).toContain("lines of this log were left out");
    } finally {
      await serverLogs.splice(0)[0]?.close();
      execFileSync("umount", [directory]);
    }
  });

  test("is disabled if its size limit is zero", async () => {
    const { log, find } = keeping({ logFiles: 0 });
    log.info({}, "one");
    await expect(find()).rejects.toMatchObject({ code: "not_supported" });
    expect(() => readdirSync(directory)).toThrow();
  });

  test("refuses an invalid cursor, and too many concurrent queries", async () => {
    const { find } = keeping();
    for (const cursor of ["", "1", "a.b", "1.2.3", "-1.0"])
      await expect(find({ cursor })).rejects.toMatchObject({ code: "invalid_request" });
    const answers = await Promise.allSettled(Array.from({ length: 10 }, () => find()));
    const refused = answers.filter(({ status }) => status === "rejected");
    expect(refused.length).toBeGreaterThan(0);
    expect(refused[0]).toMatchObject({ reason: { code: "too_many_readers" } });
    expect((await find()).items).toEqual([]);
  });
});

describe("a line", () => {
  test("is returned without host paths, and is not found by them", async () => {
    const { serverLog, log } = keeping();
    log.info({ file: "/srv/state/x", deep: { list: ["at /srv/state/y"] } }, "opened '/srv/state/z'");
    const scrub = (text: string) => text.replaceAll(/\/srv\/state\/\w/g, "<host path>");
    const { items } = await serverLog.find({ limit: 10 }, scrub, signal);
    expect(items).toMatchObject([
      {
        message: "opened '<host path>'",
        fields: { file: "<host path>", deep: { list: ["at <host path>"] } },
      },
    ]);
    expect((await serverLog.find({ limit: 10, text: "srv" }, scrub, signal)).items).toEqual([]);
  });

  test("is stored from level info on, whatever the level of stderr", async () => {
    const { log, messages } = keeping();
    log.debug({}, "whispered");
    log.info({}, "said");
    expect(await messages()).toEqual(["said"]);
  });

  test("that is too long is dropped, and the drop is reported", async () => {
    const { log, messages } = keeping();
    log.info({ text: "x".repeat(100_000) }, "endless");
    log.info({}, "short");
    expect(await messages()).toEqual(["short", "lines of this log were left out"]);
  });
});
