import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it, vi } from "vitest";
import type { EngineApi, OutputOptions, OutputRecord } from "../ports/api.ts";
import { LinkLost } from "../ports/index.ts";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

const sleep = (engine: EngineApi, id: string) =>
  engine.execs.start("one", { id, argv: ["sleep"] }, { signal });
const outcome = (engine: EngineApi, id: string) => engine.execs.wait(id, { waitMs: 10_000, signal });

async function collect(engine: EngineApi, id: string, options: Partial<OutputOptions> = {}) {
  const records: OutputRecord[] = [];
  for await (const record of engine.execs.output(id, { follow: false, signal, ...options }))
    records.push(record);
  const text = records
    .map((record) => ("data" in record ? Buffer.from(record.data).toString() : ""))
    .join("");
  return { records, text, last: records.at(-1) };
}

async function boxed(numbers: Parameters<typeof testEngine>[0] = {}) {
  const made = await testEngine(numbers);
  const { sandbox } = await made.create("one");
  const instance = made.driver.instances.get(sandbox.id as SandboxId);
  if (instance === undefined) throw new Error("there is no instance");
  return { ...made, sandboxId: sandbox.id as SandboxId, instance };
}

describe("execs beyond what a sandbox may run at a time", () => {
  const one = { execsPerSandbox: 1, execsQueuedPerSandbox: 2 };

  it("are queued in the order they came, and refused when the queue is full", async () => {
    const { engine, instance } = await boxed(one);
    const states = [];
    for (const id of ["a", "b", "c"]) states.push((await sleep(engine, id)).exec.status);
    expect(states).toEqual(["running", "queued", "queued"]);
    expect(await codeOf(sleep(engine, "d"))).toBe("too_many_execs");
    expect(await engine.stats()).toMatchObject({ execsRunning: 1, execsQueued: 2 });
    instance.end("a" as ExecId, 0, "");
    await eventually(async () => expect((await engine.execs.get("b")).status).toBe("running"));
    expect((await engine.execs.get("c")).status).toBe("queued");
    instance.end("b" as ExecId, 0, "");
    await eventually(async () => expect((await engine.execs.get("c")).status).toBe("running"));
    instance.end("c" as ExecId, 3, "");
    expect(await outcome(engine, "c")).toMatchObject({ exitCode: 3 });
  });

  it("can be followed by id while queued, and never run when cancelled before their turn", async () => {
    const { engine, instance } = await boxed(one);
    await sleep(engine, "a");
    await sleep(engine, "b");
    expect(await sleep(engine, "b")).toMatchObject({ followed: true, exec: { status: "queued" } });
    expect(await engine.execs.cancel("b", signal)).toMatchObject({ status: "cancelled", dispatched: "no" });
    instance.end("a" as ExecId, 0, "");
    await outcome(engine, "a");
    expect(instance.execs.has("b" as ExecId)).toBe(false);
  });

  it("end as refused when their turn does not come in time", async () => {
    const { engine } = await boxed({ ...one, execQueueMs: 50 });
    await sleep(engine, "a");
    await sleep(engine, "b");
    expect(await outcome(engine, "b")).toMatchObject({
      status: "refused",
      dispatched: "no",
      cause: { code: "queue_timeout" },
    });
  });

  it("stay queued across a restart of the server", async () => {
    const { engine, instance, restart } = await boxed(one);
    await sleep(engine, "a");
    await sleep(engine, "b");
    await engine.stop();
    const next = await restart();
    await eventually(async () => expect((await next.execs.get("a")).status).toBe("running"));
    expect((await next.execs.get("b")).status).toBe("queued");
    instance.end("a" as ExecId, 0, "");
    await eventually(async () => expect((await next.execs.get("b")).status).toBe("running"));
    instance.end("b" as ExecId, 5, "");
    expect(await outcome(next, "b")).toMatchObject({ exitCode: 5 });
  });

  it("end with the sandbox and report that they never ran", async () => {
    const { engine } = await boxed(one);
    await sleep(engine, "a");
    await sleep(engine, "b");
    await remove(engine, "one");
    expect(await engine.execs.get("b")).toMatchObject({ status: "cancelled", dispatched: "no" });
  });
});

describe("an exec", () => {
  it("ends although the announcement of its end was lost on a link that stays up", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    instance.end("a" as ExecId, 7, "", "exited", { silently: true });
    expect(await outcome(engine, "a")).toMatchObject({ status: "exited", exitCode: 7 });
    expect((await engine.stats()).links).toMatchObject({ up: 1, lost: 0 });
  });

  it("reports correctly whether it ran, although its journal could not be kept", async () => {
    const { engine, driver } = await boxed();
    await sleep(engine, "a");
    driver.journals.archive = () => Promise.reject(new Error("no room"));
    await remove(engine, "one");
    expect(await engine.execs.get("a")).toMatchObject({ status: "cancelled", dispatched: "yes" });
  });

  it("is cancelled only after a restarted server knows whether it left the queue", async () => {
    const { engine, driver, instance, restart } = await boxed({ execsPerSandbox: 1, linkWaitMs: 50 });
    await sleep(engine, "a");
    await sleep(engine, "b");
    instance.end("a" as ExecId, 0, "");
    await eventually(async () => expect((await engine.execs.get("b")).status).toBe("running"));
    await engine.stop();
    driver.faults.connect = () => Promise.reject(new Error("no link"));
    const next = await restart();
    expect(await codeOf(next.execs.cancel("b", signal))).toBe("link_lost");
    driver.faults = {};
    await eventually(async () => expect((await next.execs.get("b")).status).toBe("running"));
    expect(await next.execs.cancel("b", signal)).toMatchObject({ status: "cancelled", dispatched: "yes" });
  });
});

describe("output", () => {
  it("is read from disk after the keeper died, as far as it was written", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    instance.print("a" as ExecId, "so far\n");
    instance.die();
    const lost = await outcome(engine, "a");
    expect(lost).toMatchObject({ status: "lost", dispatched: "yes", stdout: "so far\n", truncated: true });
    const { text, last } = await collect(engine, "a");
    expect(text).toBe("so far\n");
    expect(last).toMatchObject({ type: "end", exec: { status: "lost", truncated: true } });
  });

  it("and outcome are read from the journal if the command ended before its keeper died without a link", async () => {
    const { engine, instance, driver } = await boxed();
    await sleep(engine, "a");
    driver.faults.connect = () => Promise.reject(new Error("no link"));
    for (const link of [...instance.links]) link.drop("cut");
    instance.end("a" as ExecId, 6, "all of it\n");
    instance.die();
    expect(await outcome(engine, "a")).toMatchObject({
      status: "exited",
      exitCode: 6,
      stdout: "all of it\n",
      truncated: false,
    });
  });

  it("is reported as truncated if its journal has lost records", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    instance.end("a" as ExecId, 0, "all of it\n");
    expect(await outcome(engine, "a")).toMatchObject({ stdout: "all of it\n", truncated: false });
    instance.die();
    const journal = instance.journals.get("a" as ExecId);
    if (journal) journal.records = [];
    expect(await outcome(engine, "a")).toMatchObject({ exitCode: 0, stdout: "", truncated: true });
  });

  it("can be read after the sandbox was deleted until its retention ends, and is then removed completely", async () => {
    const { engine, instance, driver, sandboxId, store } = await boxed({
      execRetentionMs: 1_500,
      retentionEveryMs: 50,
    });
    await sleep(engine, "a");
    instance.end("a" as ExecId, 0, "kept\n");
    await outcome(engine, "a");
    await remove(engine, "one");
    expect(driver.directories.size).toBe(0);
    expect((await collect(engine, "a")).text).toBe("kept\n");
    expect((await engine.execs.list(sandboxId, { limit: 10 })).items.map(({ id }) => id)).toEqual(["a"]);
    await eventually(async () => expect(await codeOf(engine.execs.get("a"))).toBe("exec_not_found"));
    await eventually(() => expect([...driver.archivedJournals]).toEqual([]));
    expect(driver.journalFiles.has(sandboxId)).toBe(false);
    expect(await store.retainedExecs(sandboxId)).toEqual([]);
  });

  it("of execs that the keeper forgot is kept, and the oldest is dropped when there are too many", async () => {
    const { engine, instance, driver, sandboxId } = await boxed({
      execsInKeeper: 2,
      execsKeptPerSandbox: 100,
    });
    const ids = Array.from({ length: 180 }, (_, i) => `run-${i}`);
    for (const id of ids) {
      await sleep(engine, id);
      instance.end(id as ExecId, 0, `${id}\n`);
      await outcome(engine, id);
    }
    expect(instance.execs.size).toBeLessThan(70);
    expect((await collect(engine, "run-90")).text).toBe("run-90\n");
    await eventually(async () => expect(await codeOf(engine.execs.get("run-0"))).toBe("exec_not_found"));
    await eventually(() => expect(driver.journalFiles.get(sandboxId)?.size).toBeLessThanOrEqual(164));
    expect((await collect(engine, "run-179")).text).toBe("run-179\n");
  });

  it("of one stream can be read alone, and a cursor of another exec is refused", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    instance.end("a" as ExecId, 0, "out\n");
    await outcome(engine, "a");
    expect((await collect(engine, "a", { stream: "stderr" })).text).toBe("");
    const { last } = await collect(engine, "a", { stream: "stdout" });
    expect(last).toMatchObject({ type: "end", exec: { truncated: false } });
    await sleep(engine, "b");
    const { records } = await collect(engine, "b");
    expect(await codeOf(collect(engine, "a", { cursor: records[0]?.cursor }))).toBe("bad_cursor");
  });

  it("ends for a reader although a child of the ended exec keeps writing", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    const { records } = await collect(engine, "a");
    instance.end("a" as ExecId, 3, "done\n");
    await outcome(engine, "a");
    instance.onRead = (id) => instance.print(id, "still here\n");
    const { last, text } = await collect(engine, "a", { follow: true, cursor: records[0]?.cursor });
    expect(text.startsWith("done\n")).toBe(true);
    expect(last).toMatchObject({ type: "end", exec: { exitCode: 3, truncated: false } });
  });

  it("of one stream sends keepalives while only the other stream has output", async () => {
    const { engine, instance } = await boxed({ streamKeepaliveMs: 30 });
    await sleep(engine, "a");
    const talking = setInterval(() => instance.print("a" as ExecId, "x"), 5);
    const seen: string[] = [];
    for await (const { type } of engine.execs.output("a", { follow: true, stream: "stderr", signal })) {
      seen.push(type);
      if (seen.length === 4) break;
    }
    clearInterval(talking);
    expect(seen).toEqual(["start", "keepalive", "keepalive", "keepalive"]);
  });

  it("stops without an end record after its maximum duration, and continues from its last cursor", async () => {
    const { engine, instance } = await boxed({ streamKeepaliveMs: 20, streamMaxMs: 100 });
    await sleep(engine, "a");
    instance.print("a" as ExecId, "one ");
    const first = await collect(engine, "a", { follow: true });
    expect(first.last?.type).toBe("keepalive");
    expect(await engine.stats()).toMatchObject({ readers: 0, readersCut: { wedged: 0, expired: 1 } });
    instance.end("a" as ExecId, 0, "two");
    const second = await collect(engine, "a", { follow: true, cursor: first.last?.cursor });
    expect(first.text + second.text).toBe("one two");
    expect(second.last?.type).toBe("end");
  });

  it("has a limit on concurrent readers, and each releases its place", async () => {
    const { engine } = await boxed({ readersPerExec: 1, streamKeepaliveMs: 20 });
    await sleep(engine, "a");
    const reader = engine.execs.output("a", { follow: true, signal })[Symbol.asyncIterator]();
    await reader.next();
    expect((await engine.stats()).readers).toBe(1);
    expect(await codeOf(collect(engine, "a"))).toBe("too_many_readers");
    await reader.return?.();
    expect((await engine.stats()).readers).toBe(0);
    expect((await collect(engine, "a")).records[0]?.type).toBe("start");
  });
});

describe("an exec that is being stored", () => {
  it("is not sent over any link before it is stored, and never runs if storing fails", async () => {
    const { engine, instance, store } = await boxed();
    const commit = store.commit.bind(store);
    const storing = Promise.withResolvers<void>();
    store.commit = async (order) => {
      if (!order.changes.some(({ kind }) => kind === "exec.insert")) return commit(order);
      await storing.promise;
      throw new Error("no space");
    };
    const start = codeOf(sleep(engine, "a"));
    for (const link of [...instance.links]) link.drop("cut");
    await eventually(() => expect(instance.links.size).toBe(1));
    await new Promise((resolve) => setTimeout(resolve, 50));
    const again = codeOf(sleep(engine, "a"));
    storing.resolve();
    expect(await start).toBe("internal");
    expect(await again).toBe("internal");
    expect(instance.execs.has("a" as ExecId)).toBe(false);
  });
});

describe("a timeout that the keeper did not enforce", () => {
  it("is enforced by the server, with the outcome timed_out", async () => {
    const { engine } = await boxed({ execTimeoutGraceMs: 20 });
    await engine.execs.start("one", { id: "a", argv: ["sleep"], timeoutMs: 30 }, { signal });
    expect(await outcome(engine, "a")).toMatchObject({ status: "timed_out", cause: { code: "timeout" } });
  });

  it("is not enforced early because the time of day was set forward", async () => {
    const { engine } = await boxed({ execTimeoutGraceMs: 20 });
    const minute = 60_000;
    await engine.execs.start("one", { id: "long", argv: ["sleep"], timeoutMs: minute }, { signal });
    vi.useFakeTimers({ toFake: ["Date"], now: Date.now() + 10 * minute });
    try {
      await engine.execs.start("one", { id: "short", argv: ["sleep"], timeoutMs: 100 }, { signal });
      expect(await outcome(engine, "short")).toMatchObject({ status: "timed_out" });
      expect((await engine.execs.get("long")).status).toBe("running");
    } finally {
      vi.useRealTimers();
    }
  });
});

describe("stdin without offsets", () => {
  it("is appended once and in order although links break", async () => {
    const { engine, instance } = await boxed();
    await engine.execs.start(
      "one",
      { id: "a", argv: ["sleep"], stdin: "first ", openStdin: true },
      { signal },
    );
    const write = (text: string, end = false) =>
      engine.execs.writeStdin("a", { offset: null, data: Buffer.from(text), end }, signal);
    const writes = [write("second "), write("third "), write("last", true)];
    for (const link of [...instance.links]) link.drop("cut");
    await Promise.all(writes);
    expect(instance.stdin("a" as ExecId)).toBe("first second third last");
  });

  it("is written before later writes with an offset", async () => {
    const { engine, instance } = await boxed();
    const text = "the text that came with it, ";
    await engine.execs.start("one", { id: "a", argv: ["sleep"], stdin: text, openStdin: true }, { signal });
    const data = Buffer.from("and more");
    for (let offset = text.length; offset < text.length + data.length; ) {
      const chunk = { offset, data: data.subarray(offset - text.length), end: false };
      offset = (await engine.execs.writeStdin("a", chunk, signal)).accepted;
    }
    expect(instance.stdin("a" as ExecId)).toBe(`${text}and more`);
  });

  it("that waits for a link is refused with link_lost when the sandbox is deleted", async () => {
    const { engine, driver, instance } = await boxed();
    const [link] = instance.links;
    if (link === undefined) throw new Error("there is no link");
    const lost = Promise.withResolvers<never>();
    link.writeStdin = () => lost.promise;
    await engine.execs.start("one", { id: "a", argv: ["sleep"], stdin: "text", openStdin: true }, { signal });
    const typed = codeOf(
      engine.execs.writeStdin("a", { offset: null, data: Buffer.from("x"), end: false }, signal),
    );
    driver.faults.connect = () => new Promise(() => undefined);
    link.drop("lost");
    lost.reject(new LinkLost("lost", "unknown"));
    await remove(engine, "one");
    expect(await typed).toBe("link_lost");
  });

  it("is refused if stdin is not open or the exec has ended", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    const write = (id: string) =>
      engine.execs.writeStdin(id, { offset: null, data: Buffer.from("x"), end: false }, signal);
    expect(await codeOf(write("a"))).toBe("wrong_state");
    await engine.execs.start("one", { id: "b", argv: ["sleep"], openStdin: true }, { signal });
    instance.end("b" as ExecId, 0, "");
    await outcome(engine, "b");
    expect(await codeOf(write("b"))).toBe("wrong_state");
    expect(await codeOf(engine.execs.resize("a", { cols: 1, rows: 1 }, signal))).toBe("wrong_state");
  });
});

describe("a caller that aborts at the moment the link breaks", () => {
  it("gets its own abort reason instead of the link's error", async () => {
    const { engine, instance } = await boxed();
    await sleep(engine, "a");
    const [link] = instance.links;
    if (link === undefined) throw new Error("there is no link");
    const caller = new AbortController();
    const asked = Promise.withResolvers<void>();
    link.readExec = async () => {
      asked.resolve();
      caller.abort(new Error("the caller left"));
      throw new LinkLost("lost", "yes");
    };
    const waited = engine.execs.wait("a", { waitMs: 0, signal: caller.signal });
    await expect(waited).rejects.toThrow("the caller left");
    await asked.promise;
  });
});

describe("a list of execs", () => {
  it("has short pages if the commands are large, and omits no exec", async () => {
    const made = await testEngine();
    await made.create("one");
    const text = "x".repeat(500_000);
    const ids = Array.from({ length: 30 }, (_, i) => `run-${String(i).padStart(2, "0")}`);
    for (const id of ids) {
      await made.engine.execs.start("one", { id, argv: ["sleep"], stdin: text }, { signal });
    }
    const found: string[] = [];
    const sizes: number[] = [];
    for (let cursor: string | null | undefined; cursor !== null; ) {
      const page = await made.engine.execs.list("one", { cursor, limit: 1_000 });
      found.push(...page.items.map(({ id }) => id));
      sizes.push(page.items.length);
      cursor = page.nextCursor;
    }
    expect(found).toEqual(ids.toReversed());
    expect(Math.max(...sizes)).toBeLessThan(12);
  });
});

describe("an exec that is queued when its sandbox is deleted", () => {
  it("reports that it was never run, unlike an exec that was running", async () => {
    const made = await testEngine({ execsPerSandbox: 1 });
    await made.create("one");
    for (const id of ["a", "b"]) await made.engine.execs.start("one", { id, argv: ["sleep"] }, { signal });
    await remove(made.engine, "one");
    expect(await made.engine.execs.get("a")).toMatchObject({
      cause: { code: "sandbox_deleted", message: "The sandbox was deleted while the command ran." },
    });
    expect(await made.engine.execs.get("b")).toMatchObject({
      dispatched: "no",
      truncated: false,
      cause: { code: "sandbox_deleted", message: expect.stringContaining("never run") },
    });
  });
});
