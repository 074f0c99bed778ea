import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { ExecOrder, KeeperExec, Link } from "@holdfast/engine";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isAlive, nextEnd, output, run, sha256, soon, TestKeeper, until } from "../testing/test-keeper.ts";

let keeper: TestKeeper;
let link: Link;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
});
afterAll(() => keeper.stop());

const SIZE = { cols: 80, rows: 24 };
const PIECE_BYTES = 262_144;

const onTerminal = (script: string, rest: Partial<ExecOrder> = {}) =>
  keeper.order(["sh", "-c", script], { stdin: true, tty: SIZE, cwd: keeper.directory, ...rest });

/** Simulates a terminal user, who types and reads the screen. */
class Session {
  readonly id: ExecOrder["id"];
  readonly end: Promise<KeeperExec>;
  shown = "";
  #cursor = 0;
  #typed = 0;

  private constructor(order: ExecOrder) {
    this.id = order.id;
    this.end = nextEnd(link, order.id);
    this.end.catch(() => {});
  }

  static async open(order: ExecOrder): Promise<Session> {
    const session = new Session(order);
    await link.startExec(order, soon());
    return session;
  }

  async type(keys: string | Uint8Array, end = false): Promise<void> {
    const data = Buffer.from(keys);
    const start = this.#typed;
    do {
      const offset = this.#typed;
      const piece = data.subarray(offset - start, offset - start + PIECE_BYTES);
      const last = end && offset + piece.length === start + data.length;
      this.#typed = (await link.writeStdin(this.id, { offset, data: piece, end: last }, soon())).accepted;
    } while (this.#typed < start + data.length);
  }

  async shows(text: string): Promise<void> {
    await until(`the terminal shows ${JSON.stringify(text)}`, async () => {
      await this.#read();
      return this.shown.includes(text);
    });
  }

  async #read(): Promise<void> {
    const from = { cursor: this.#cursor, maxBytes: 262_144, waitMs: 100 };
    const slice = await link.readExec(this.id, from, soon());
    for (const record of slice.records) this.shown += Buffer.from(record.data).toString("latin1");
    this.#cursor = slice.next;
  }
}

describe("a terminal", () => {
  test("is the command's stdio, in the requested size, and all of its output is stdout", async () => {
    const order = onTerminal("test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM; echo error >&2", {
      tty: { cols: 101, rows: 33 },
    });
    expect(await run(link, order)).toMatchObject({ state: "exited", exitCode: 0 });
    const shown = "33 101\r\nxterm-256color\r\nerror\r\n";
    expect(await output(link, order.id)).toEqual({ stdout: shown, stderr: "" });
  });

  test("keeps the TERM of the order", async () => {
    const order = onTerminal("echo $TERM", { env: { PATH: "/usr/bin:/bin", TERM: "dumb" } });
    await run(link, order);
    expect((await output(link, order.id)).stdout).toBe("dumb\r\n");
  });

  test("belongs to the command's user, and is its controlling one", async () => {
    const script = 'stat -c "%u %a" "$(tty)"; echo by name > /dev/tty; echo and by number > "$(tty)"';
    const order = onTerminal(script, { user: "1000", cwd: "/" });
    await run(link, order);
    expect((await output(link, order.id)).stdout).toBe("1000 620\r\nby name\r\nand by number\r\n");
  });

  test("that is resized notifies the command, and has the new size", async () => {
    const session = await Session.open(
      onTerminal("trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.05; done"),
    );
    await session.shows("ready");
    await link.resizeExec(session.id, { cols: 132, rows: 50 }, soon());
    expect(await session.end).toMatchObject({ exitCode: 7 });
    await session.shows("50 132\r\n");
  });

  test("can be resized only if it exists", async () => {
    const piped = keeper.order(["true"]);
    await run(link, piped);
    await expect(link.resizeExec(piped.id, SIZE, soon())).rejects.toMatchObject({ errno: "ENOTTY" });
    const over = onTerminal("true");
    await run(link, over);
    await expect(link.resizeExec(over.id, SIZE, soon())).rejects.toMatchObject({ errno: "ESRCH" });
    const unknown = link.resizeExec(keeper.order(["true"]).id, SIZE, soon());
    await expect(unknown).rejects.toMatchObject({ reason: "no_such_exec" });
  });

  test("with an invalid size is refused", async () => {
    for (const tty of [
      { cols: 80, rows: 0 },
      { cols: 70_000, rows: 24 },
    ]) {
      const order = onTerminal("true", { tty });
      await expect(link.startExec(order, soon())).rejects.toMatchObject({ reason: "malformed" });
    }
    const session = await Session.open(onTerminal("sleep 86"));
    const resized = link.resizeExec(session.id, { cols: 0, rows: 24 }, soon());
    await expect(resized).rejects.toMatchObject({ reason: "malformed" });
    await link.cancelExec(session.id, soon());
  });

  test("passes bytes through unchanged, valid UTF-8 or not", async () => {
    const bytes = Buffer.concat([Buffer.from("zażółć 🙂 "), Buffer.from([0xff, 0xfe, 0x80, 0x01, 0x03])]);
    const session = await Session.open(
      onTerminal(`stty raw -echo; echo ready; head -c ${bytes.length} | od -An -tx1`),
    );
    await session.shows("ready");
    await session.type(bytes);
    await session.end;
    const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    expect((await output(link, session.id)).stdout.replaceAll(/\s/g, "")).toBe(`ready${hex}`);
  });
});

describe("keys", () => {
  test("^C interrupts the foreground job", async () => {
    const session = await Session.open(onTerminal("echo ready; exec sleep 71"));
    await session.shows("ready");
    await session.type("\x03");
    expect(await session.end).toMatchObject({ state: "exited", exitCode: -1, signal: 2 });
  });

  test("^D ends the input, as does the end of stdin", async () => {
    for (const end of [false, true]) {
      const session = await Session.open(onTerminal("stty -echo; echo ready; cat; echo over"));
      await session.shows("ready");
      await session.type(end ? "a line\n" : "a line\n\x04", end);
      expect(await session.end).toMatchObject({ exitCode: 0 });
      await session.shows("a line\r\nover\r\n");
    }
  });

  test("the end of stdin in the middle of a line ends the input too", async () => {
    const session = await Session.open(onTerminal("stty -echo; echo ready; cat; echo over"));
    await session.shows("ready");
    await session.type("half a line", true);
    expect(await session.end).toMatchObject({ exitCode: 0 });
    await session.shows("half a lineover\r\n");
  });

  test("the end of stdin is the terminal's end-of-file character", async () => {
    const session = await Session.open(onTerminal("stty -echo eof ^E; echo ready; cat; echo over"));
    await session.shows("ready");
    await session.type("", true);
    expect(await session.end).toMatchObject({ exitCode: 0 });
    await session.shows("ready\r\nover\r\n");
  });

  test("a pasted megabyte arrives byte for byte, read raw or line by line", async () => {
    const lines = Buffer.from(
      "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\n".repeat(16_645),
    );
    const noise = Buffer.from(lines.map((_, index) => (index * 167 + (index >> 8)) & 255));
    const readers = [
      { script: `stty raw -echo; echo ready; head -c ${noise.length} | sha256sum`, data: noise, end: false },
      { script: "stty -echo; echo ready; cat > pasted; sha256sum < pasted", data: lines, end: true },
    ];
    for (const { script, data, end } of readers) {
      const session = await Session.open(onTerminal(script));
      await session.shows("ready");
      await session.type(data, end);
      expect(await session.end).toMatchObject({ exitCode: 0 });
      await session.shows(sha256(data));
    }
  });

  test("sent again by position are typed once", async () => {
    const session = await Session.open(onTerminal("stty -echo; echo ready; read line; echo got $line"));
    await session.shows("ready");
    const piece = (offset: number, keys: string) =>
      link.writeStdin(session.id, { offset, data: Buffer.from(keys), end: false }, soon());
    expect(await piece(0, "ab")).toEqual({ accepted: 2 });
    expect(await piece(0, "ab")).toEqual({ accepted: 2 });
    expect(await piece(1, "bc\n")).toEqual({ accepted: 4 });
    await session.end;
    await session.shows("got abc\r\n");
  });

  test("typed into a command that never reads delay neither its end nor the link", async () => {
    const session = await Session.open(onTerminal("stty raw -echo; echo ready; sleep 1; exit 5"));
    await session.shows("ready");
    const data = Buffer.alloc(1_000_000, "x");
    await link.writeStdin(session.id, { offset: 0, data, end: false }, soon());
    await link.ping(soon());
    expect(await session.end).toMatchObject({ exitCode: 5 });
  });
});

describe("an interactive shell", () => {
  const shell = (rest: Partial<ExecOrder> = {}) =>
    keeper.order(["bash", "--norc", "--noprofile", "-i"], {
      env: { PATH: "/usr/bin:/bin", PS1: "$? > " },
      stdin: true,
      tty: SIZE,
      ...rest,
    });

  const inFront = (commandLine: string) =>
    until("the job is in front", async () =>
      (await link.processes(soon())).some((process) => process.commandLine === commandLine),
    );

  test("has job control, and gets the terminal back from a job that was stopped", async () => {
    const session = await Session.open(shell());
    await session.shows("0 > ");
    expect(session.shown).not.toContain("no job control");
    await session.type("sleep 72\r");
    await inFront("sleep 72");
    await session.type("\x1a");
    await session.shows("Stopped");
    await session.type("kill %1; jobs; fg\r");
    await session.shows("Terminated");
    await session.type("exit 6\r");
    expect(await session.end).toMatchObject({ state: "exited", exitCode: 6 });
  });

  test("receives signals itself, except those of keys, which go to the foreground job", async () => {
    const session = await Session.open(shell());
    await session.shows("0 > ");
    await session.type("sleep 73\r");
    await inFront("sleep 73");
    await link.signalExec(session.id, 2, soon());
    await session.shows("130 > ");
    await link.signalExec(session.id, 1, soon());
    expect(await session.end).toMatchObject({ state: "exited", exitCode: -1, signal: 1 });
  });

  test("that is cancelled ends with its jobs, whatever group and session they are in", async () => {
    const session = await Session.open(shell({ cwd: keeper.directory }));
    await session.shows("0 > ");
    await session.type("nohup sleep 74 & echo $! > job; setsid sh -c 'echo $$ > session; exec sleep 75' &\r");
    const pids = () =>
      ["job", "session"].map((name) => Number(readFileSync(join(keeper.directory, name), "utf8")));
    await until("both run", () => {
      try {
        return pids().every((pid) => pid > 0 && isAlive(pid));
      } catch {
        return false;
      }
    });
    await link.cancelExec(session.id, soon());
    expect(await session.end).toMatchObject({ state: "cancelled" });
    for (const pid of pids()) expect(isAlive(pid)).toBe(false);
  });
});

describe("the end of a command on a terminal", () => {
  test("delivers all of its output, to the last byte", async () => {
    const order = onTerminal("seq 1 20000; printf last", { journalCapBytes: 4_194_304 });
    expect(await run(link, order)).toMatchObject({ exitCode: 0 });
    const numbers = Array.from({ length: 20_000 }, (_, index) => `${index + 1}\r\n`).join("");
    expect((await output(link, order.id)).stdout).toBe(`${numbers}last`);
  });

  test("is not caused by closing and reopening the terminal", async () => {
    const script = "exec <&- >&- 2>&-; sleep 0.3; exec > /dev/tty; echo back; exit 4";
    const order = onTerminal(script);
    expect(await run(link, order)).toMatchObject({ exitCode: 4, signal: 0 });
    expect((await output(link, order.id)).stdout).toBe("back\r\n");
  });

  test("does not wait for a background child, whose later output is journaled", async () => {
    const script = "trap '' HUP; (sleep 1; echo later; sleep 76) & echo soon";
    const session = await Session.open(onTerminal(script));
    const exec = await session.end;
    expect(exec).toMatchObject({ exitCode: 0 });
    await session.shows("later\r\n");
    await link.cancelExec(session.id, soon());
    await until("it can be forgotten", async () => {
      const forgetting = link.forgetExec(session.id, { keepJournal: false }, soon());
      return forgetting.then(
        () => true,
        () => false,
      );
    });
  });

  test("leaves background children their terminal, even after the exec is forgotten", async () => {
    const script =
      "trap '' HUP; (sh -c 'echo $PPID' > left; while echo x; do echo x >> told; sleep 0.05; done) & sleep 0.3";
    const order = onTerminal(script);
    await run(link, order);
    const pid = Number(readFileSync(join(keeper.directory, "left"), "utf8"));
    await link.forgetExec(order.id, { keepJournal: false }, soon());
    const told = () => readFileSync(join(keeper.directory, "told")).length;
    const before = told();
    await until("it has written on", () => told() > before + 20);
    expect(isAlive(pid)).toBe(true);
    process.kill(pid, "SIGKILL");
  });

  test("by a timeout leaves nothing behind", async () => {
    const order = onTerminal("sleep 78 & echo $! > late; sleep 79", { timeoutMs: 500 });
    expect(await run(link, order)).toMatchObject({ state: "timed_out" });
    const pid = Number(readFileSync(join(keeper.directory, "late"), "utf8"));
    expect(isAlive(pid)).toBe(false);
  });
});
