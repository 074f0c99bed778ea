import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Link } from "@holdfast/engine";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isAlive, nextEnd, output, run, soon, TestKeeper, until } from "../testing/test-keeper.ts";

let keeper: TestKeeper;
let link: Link;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
});
afterAll(() => keeper.stop());

const shell = (script: string, rest = {}) => keeper.order(["sh", "-c", script], rest);
const pidIn = (name: string) => Number(readFileSync(join(keeper.directory, name), "utf8"));

describe("a command", () => {
  test("returns its output by stream and its exit code", async () => {
    const order = shell("echo hi; echo oh >&2; exit 3");
    expect(await run(link, order)).toMatchObject({ state: "exited", exitCode: 3, signal: 0, failure: "" });
    expect(await output(link, order.id)).toEqual({ stdout: "hi\n", stderr: "oh\n" });
  });

  test("gets its environment, directory and arguments as they are", async () => {
    const order = keeper.order(["sh", "-c", 'printf "%s|" "$@" "$GREETING" "$PWD"', "sh", "a b", "", "ü"], {
      env: { PATH: "/usr/bin:/bin", GREETING: "x=y z" },
      cwd: "/tmp",
    });
    await run(link, order);
    expect((await output(link, order.id)).stdout).toBe("a b||ü|x=y z|/tmp|");
  });

  test("that ends by a signal reports which", async () => {
    expect(await run(link, shell("kill -SEGV $$"))).toMatchObject({
      state: "exited",
      exitCode: -1,
      signal: 11,
    });
  });

  test("that can't be run reports why", async () => {
    const failures = {
      not_found: keeper.order(["/no/such/program"]),
      not_executable: keeper.order(["/etc/passwd"]),
      cwd: keeper.order(["true"], { cwd: "/no/such/directory" }),
      user: keeper.order(["true"], { user: "nobody-of-this-name" }),
    };
    for (const [failure, order] of Object.entries(failures)) {
      const code = failure === "not_found" ? 127 : 126;
      expect(await run(link, order), failure).toMatchObject({ state: "exited", exitCode: code, failure });
    }
  });

  test("that outlives its timeout leaves no process behind, not even in another session", async () => {
    const script = `
      sleep 61 & echo $! > child
      setsid sh -c 'echo $$ > session; exec sleep 62' &
      sleep 63`;
    const exec = await run(link, shell(script, { timeoutMs: 500, cwd: keeper.directory }));
    expect(exec.state).toBe("timed_out");
    for (const name of ["child", "session"]) expect(isAlive(pidIn(name)), name).toBe(false);
    expect(isAlive(exec.pid)).toBe(false);
  });

  test("that is cancelled ends with its whole tree", async () => {
    const order = shell("setsid sleep 64 & echo $! > cancelled; sleep 65", { cwd: keeper.directory });
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    await until("it runs", () => {
      try {
        return pidIn("cancelled") > 0;
      } catch {
        return false;
      }
    });
    await link.cancelExec(order.id, soon());
    expect((await end).state).toBe("cancelled");
    expect(isAlive(pidIn("cancelled"))).toBe(false);
  });

  test("ends when its leader does, not when it closes its output", async () => {
    const order = shell("exec >&- 2>&-; sleep 1; exit 4");
    const started = performance.now();
    expect(await run(link, order)).toMatchObject({ state: "exited", exitCode: 4 });
    expect(performance.now() - started).toBeGreaterThan(900);
  });

  test("gets the signals it is sent", async () => {
    const order = shell("trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done");
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    await link.readExec(order.id, { cursor: 0, maxBytes: 1000, waitMs: 10_000 }, soon());
    await link.signalExec(order.id, 10, soon());
    expect(await end).toMatchObject({ state: "exited", exitCode: 9 });
  });

  test("leaves children behind whose output is still journaled", async () => {
    const order = shell("(sleep 1; echo later) & echo soon");
    const exec = await run(link, order);
    await until("the child said something", async () => {
      const read = { cursor: exec.journalEnd, maxBytes: 10_000, waitMs: 0 };
      const { records } = await link.readExec(order.id, read, soon());
      return records.map((record) => Buffer.from(record.data).toString()).join("") === "later\n";
    });
  });

  test("does not wait for a child that holds its output open", async () => {
    const order = shell("sleep 66 & echo done");
    const started = performance.now();
    expect(await run(link, order)).toMatchObject({ exitCode: 0 });
    expect(performance.now() - started).toBeLessThan(10_000);
    await expect(link.processes(soon())).resolves.toContainEqual(
      expect.objectContaining({ commandLine: "sleep 66", execId: order.id }),
    );
  });
});

describe("stdin", () => {
  test("is written exactly once by offset, however often it is sent", async () => {
    const order = shell("cat", { stdin: true });
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    const write = (offset: number, text: string, last: boolean) =>
      link.writeStdin(order.id, { offset, data: Buffer.from(text), end: last }, soon());
    expect(await write(0, "one ", false)).toEqual({ accepted: 4 });
    expect(await write(0, "one ", false)).toEqual({ accepted: 4 });
    expect(await write(2, "e two", false)).toEqual({ accepted: 7 });
    expect(await write(0, "one", false)).toEqual({ accepted: 7 });
    await expect(write(99, "gap", false)).rejects.toMatchObject({ reason: "bad_cursor" });
    expect(await write(7, "", true)).toEqual({ accepted: 7 });
    expect(await end).toMatchObject({ exitCode: 0 });
    expect((await output(link, order.id)).stdout).toBe("one two");
  });

  test("without a reader does not delay the end", async () => {
    const order = shell("sleep 1; exit 5", { stdin: true });
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    const chunk = { offset: 0, data: Buffer.alloc(1_000_000), end: true };
    expect(await link.writeStdin(order.id, chunk, soon())).toEqual({ accepted: 1_000_000 });
    expect(await end).toMatchObject({ state: "exited", exitCode: 5 });
  });

  test("that is not requested is empty", async () => {
    const order = shell("cat; echo end");
    await run(link, order);
    expect((await output(link, order.id)).stdout).toBe("end\n");
  });
});

describe("a start", () => {
  test("that is repeated runs nothing twice", async () => {
    const order = shell("echo x >> count; sleep 0.2", { cwd: keeper.directory });
    const end = nextEnd(link, order.id);
    expect((await link.startExec(order, soon())).existed).toBe(false);
    expect((await link.startExec(order, soon())).existed).toBe(true);
    await end;
    const again = await link.startExec(order, soon());
    expect([again.existed, again.exec.state]).toEqual([true, "exited"]);
    expect(readFileSync(join(keeper.directory, "count"), "utf8")).toBe("x\n");
  });

  test("of another command under the same id is a conflict", async () => {
    const order = shell("true");
    await run(link, order);
    const other = keeper.order(["false"], { id: order.id });
    await expect(link.startExec(other, soon())).rejects.toMatchObject({ reason: "exec_conflict" });
  });

  test("that can't be sent is refused locally, and the link stays open", async () => {
    const nul = keeper.order(["echo", "a\0b"]);
    await expect(link.startExec(nul, soon())).rejects.toMatchObject({ reason: "malformed" });
    const huge = keeper.order(["echo", "x".repeat(2_000_000)]);
    await expect(link.startExec(huge, soon())).rejects.toMatchObject({ reason: "too_large" });
    await link.ping(soon());
  });
});

describe("the journal", () => {
  test("can be read from any returned cursor", async () => {
    const order = shell("for i in 1 2 3 4 5; do echo line $i; sleep 0.02; done");
    await run(link, order);
    const all = await link.readExec(order.id, { cursor: 0, maxBytes: 100_000, waitMs: 0 }, soon());
    expect(all.more).toBe(false);
    for (const record of all.records) {
      const rest = await link.readExec(
        order.id,
        { cursor: record.cursor, maxBytes: 100_000, waitMs: 0 },
        soon(),
      );
      expect(rest.records).toEqual(all.records.filter((other) => other.cursor > record.cursor));
    }
    const inside = { cursor: (all.records[0]?.cursor ?? 0) - 1, maxBytes: 1000, waitMs: 0 };
    await expect(link.readExec(order.id, inside, soon())).rejects.toMatchObject({ reason: "bad_cursor" });
  });

  test("is capped at its head, and reports its new beginning", async () => {
    const order = shell("head -c 3000000 /dev/zero; echo the end", { journalCapBytes: 1_000_000 });
    await run(link, order);
    const from = (cursor: number) => ({ cursor, maxBytes: 1_000_000, waitMs: 0 });
    const refusal = await link.readExec(order.id, from(0), soon()).catch((error) => error);
    expect(refusal).toMatchObject({ reason: "below_floor" });
    expect(refusal.floor).toBeGreaterThan(1_500_000);
    let cursor = refusal.floor;
    let last = Buffer.alloc(0);
    for (let more = true; more; ) {
      const slice = await link.readExec(order.id, from(cursor), soon());
      for (const record of slice.records) last = Buffer.concat([last, record.data]).subarray(-8);
      cursor = slice.next;
      more = slice.more;
    }
    expect(last.toString()).toBe("the end\n");
  });

  test("of a loud command arrives byte for byte", async () => {
    const order = shell("seq 1 200000", { journalCapBytes: 64 * 1_048_576 });
    await link.startExec(order, soon());
    const { stdout } = await output(link, order.id);
    expect(stdout).toBe(Array.from({ length: 200_000 }, (_, index) => `${index + 1}\n`).join(""));
  });

  test("is removed when the exec is forgotten, and never while it runs", async () => {
    const order = shell("sleep 67");
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    await expect(link.forgetExec(order.id, { keepJournal: false }, soon())).rejects.toMatchObject({
      reason: "exec_running",
    });
    await link.cancelExec(order.id, soon());
    await end;
    await link.forgetExec(order.id, { keepJournal: false }, soon());
    const read = link.readExec(order.id, { cursor: 0, maxBytes: 10, waitMs: 0 }, soon());
    await expect(read).rejects.toMatchObject({ reason: "no_such_exec" });
    expect((await link.listExecs(soon())).map((exec) => exec.id)).not.toContain(order.id);
  });
});

describe("a journal that outlives its exec", () => {
  const journal = (id: string) => join(keeper.directory, "control", "journals", id);

  test("stays unchanged, can't be read through the keeper any more, and its id can't be used again", async () => {
    const order = shell("echo kept");
    await run(link, order);
    const before = readFileSync(journal(order.id));
    await link.forgetExec(order.id, { keepJournal: true }, soon());
    expect(readFileSync(journal(order.id))).toEqual(before);
    const read = link.readExec(order.id, { cursor: 0, maxBytes: 10, waitMs: 0 }, soon());
    await expect(read).rejects.toMatchObject({ reason: "no_such_exec" });
    await expect(link.startExec(order, soon())).rejects.toMatchObject({ reason: "exec_conflict" });
  });

  test("can be forgotten once, and its id used again", async () => {
    const order = shell("echo kept");
    await run(link, order);
    await link.forgetExec(order.id, { keepJournal: true }, soon());
    const again = link.forgetExec(order.id, { keepJournal: true }, soon());
    await expect(again).rejects.toMatchObject({ reason: "no_such_exec" });
    await link.forgetExec(order.id, { keepJournal: false }, soon());
    expect(existsSync(journal(order.id))).toBe(false);
    const gone = link.forgetExec(order.id, { keepJournal: false }, soon());
    await expect(gone).rejects.toMatchObject({ reason: "no_such_exec" });
    expect(await run(link, order)).toMatchObject({ exitCode: 0 });
  });
});

describe("a background process of a forgotten exec", () => {
  const file = (name: string) => readFileSync(join(keeper.directory, name));

  test.each([true, false])("keeps writing, more than any pipe holds (journal kept: %s)", async (kept) => {
    const loud = "while head -c 20000 /dev/zero && echo x >> told; do sleep 0.02; done";
    const script = `cd ${keeper.directory}; rm -f told; (sh -c 'echo $PPID' > left; ${loud}) & sleep 0.2; exit 0`;
    const order = shell(script, { timeoutMs: 60_000 });
    expect(await run(link, order)).toMatchObject({ exitCode: 0 });
    const journal = join(keeper.directory, "control", "journals", order.id);
    await link.forgetExec(order.id, { keepJournal: kept }, soon());
    const size = kept ? statSync(journal).size : 0;
    const before = file("told").length;
    await until("it has written on", () => file("told").length > before + 40);
    const pid = Number(file("left"));
    expect(isAlive(pid)).toBe(true);
    expect(existsSync(journal) ? statSync(journal).size : 0).toBe(size);
    process.kill(pid, "SIGKILL");
  });
});

test("a forgotten journal that is reused contains nothing of the old one", async () => {
  const old = shell("echo secret of the old one");
  await run(link, old);
  await link.forgetExec(old.id, { keepJournal: false }, soon());
  const silent = shell("true");
  expect(await run(link, silent)).toMatchObject({ journalEnd: 0 });
  expect(await output(link, silent.id)).toEqual({ stdout: "", stderr: "" });
});
