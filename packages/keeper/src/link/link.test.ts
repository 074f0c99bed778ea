import { once } from "node:events";
import { renameSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import type { ExecId } from "@holdfast/contract";
import { LinkLost } from "@holdfast/engine";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { IDENTITY, nextEnd, output, pause, run, soon, TestKeeper, until } from "../testing/test-keeper.ts";
import {
  ANSWER,
  DATA_LIMIT,
  EXEC_BEGIN,
  EXEC_END,
  FRAME_LIMIT,
  PROTOCOL,
  REFUSAL,
  REQUEST,
} from "../wire/protocol.ts";
import { FrameSplitter, Writer } from "../wire/wire.ts";
import { connectKeeper } from "./link.ts";

let keeper: TestKeeper;
beforeEach(async () => {
  keeper = await TestKeeper.start();
});
afterEach(() => keeper.stop());

const never = new AbortController().signal;

describe("hello", () => {
  test("identifies the keeper", async () => {
    const [one, two] = [await keeper.connect(), await keeper.connect()];
    expect(one.keeper).toEqual(two.keeper);
    expect(one.keeper.bootId).toMatch(/^[0-9a-f]{32}$/);
    expect(Math.abs(one.keeper.startedAt - Date.now())).toBeLessThan(60_000);
    await one.ping(soon());
    expect(Date.now() - one.lastReceivedAt).toBeLessThan(10_000);
  });

  test("with a smaller generation is refused, and the larger one's link stays", async () => {
    const link = await keeper.connect({ generation: 5 });
    await expect(keeper.connect({ generation: 4 })).rejects.toMatchObject({ reason: "stale_generation" });
    await link.ping(soon());
  });

  test("with a larger generation ends the links of smaller ones", async () => {
    const old = await keeper.connect({ generation: 5 });
    const late = keeper.connect({ generation: 6 });
    expect(await old.closed).toMatch(/closed/);
    await (await late).ping(soon());
    await expect(old.ping(soon())).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
  });

  test("of another version of the protocol is refused, with both versions in the message", async () => {
    const socketPath = join(keeper.directory, "older.sock");
    const older = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", (hello) => {
        const answer = Buffer.alloc(20);
        answer.writeUInt32LE(16, 0);
        hello.copy(answer, 4, 4, 8);
        answer.writeUInt16LE(0x8001, 8);
        answer.writeUInt32LE(1, 12);
        socket.write(answer);
      });
    }).listen(socketPath);
    await once(older, "listening");
    const refused = keeper.connect({ socketPath });
    await expect(refused).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
    await expect(refused).rejects.toThrow(/version 1 of the protocol, this server version 2/);
    older.close();
  });

  test("for another sandbox or installation is refused", async () => {
    for (const wrong of [{ sandbox: "sbx_fedcba9876543210" }, { installation: "another" }]) {
      await expect(keeper.connect(wrong)).rejects.toMatchObject({ reason: "wrong_identity" });
    }
  });
});

describe("the socket's path", () => {
  test("that became a symbolic link to another socket is refused", async () => {
    renameSync(keeper.socketPath, `${keeper.socketPath}.moved`);
    symlinkSync(`${keeper.socketPath}.moved`, keeper.socketPath);
    await expect(keeper.connect()).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
    unlinkSync(keeper.socketPath);
    renameSync(`${keeper.socketPath}.moved`, keeper.socketPath);
    await (await keeper.connect()).ping(soon());
  });

  test("with a file or nothing at it is an error that names no host path", async () => {
    for (const name of ["file", "nothing"]) {
      const socketPath = join(keeper.directory, name);
      if (name === "file") writeFileSync(socketPath, "");
      const failure = keeper.connect({ socketPath });
      await expect(failure).rejects.toThrow(LinkLost);
      await expect(failure).rejects.not.toThrow(keeper.directory);
    }
  });

  test("may be longer than a socket address", async () => {
    const deep = `${keeper.directory}/${"./".repeat(100)}control/keeper.sock`;
    await (await keeper.connect({ socketPath: deep })).ping(soon());
  });
});

describe("a link", () => {
  test("carries more requests than the keeper accepts at once", async () => {
    const link = await keeper.connect();
    const answers = await Promise.all(Array.from({ length: 1000 }, () => link.probe(soon())));
    expect(new Set(answers.map((answer) => answer.root.ino)).size).toBe(1);
  });

  test("refuses more than a bounded number of waiting requests", async () => {
    const link = await keeper.connect();
    const asked = Array.from({ length: 2000 }, () => link.probe(soon()));
    const ended = await Promise.allSettled(asked);
    const refused = ended.filter((one) => one.status === "rejected");
    expect(refused.length).toBeGreaterThan(0);
    for (const one of refused) expect(one.reason).toMatchObject({ reason: "limit" });
    await link.ping(soon());
  });

  test("full of reads that wait still starts and cancels execs", async () => {
    const link = await keeper.connect();
    const quiet = keeper.order(["sleep", "60"]);
    await link.startExec(quiet, soon());
    const stop = new AbortController();
    const from = { cursor: 0, maxBytes: 1000, waitMs: 15_000 };
    const reads = Array.from({ length: 400 }, () => link.readExec(quiet.id, from, stop.signal));
    const settled = Promise.allSettled(reads);
    expect(await run(link, keeper.order(["true"]))).toMatchObject({ exitCode: 0 });
    const end = nextEnd(link, quiet.id);
    await link.cancelExec(quiet.id, soon());
    expect((await end).state).toBe("cancelled");
    stop.abort();
    await settled;
  });

  test("drops the answer to an aborted request and stays open", async () => {
    const link = await keeper.connect();
    const order = keeper.order(["sleep", "60"]);
    await link.startExec(order, soon());
    const abort = new AbortController();
    const read = link.readExec(order.id, { cursor: 0, maxBytes: 1000, waitMs: 200 }, abort.signal);
    await link.ping(soon());
    abort.abort(new Error("no longer wanted"));
    await expect(read).rejects.toThrow("no longer wanted");
    await pause(300);
    await link.ping(soon());
    await expect(link.ping(abort.signal)).rejects.toThrow("no longer wanted");
  });

  test("distinguishes requests that may have been executed from those not sent", async () => {
    const link = await keeper.connect();
    const order = keeper.order(["sleep", "60"]);
    await link.startExec(order, soon());
    const sent = link.readExec(order.id, { cursor: 0, maxBytes: 1000, waitMs: 15_000 }, never);
    await link.ping(soon());
    const unsent = link.ping(never);
    link.close();
    await expect(sent).rejects.toMatchObject({ name: "LinkLost", dispatched: "unknown" });
    await expect(unsent).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
    await expect(link.ping(never)).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
    expect(await link.closed).toMatch(/this side/);
  });

  test("ends at once with the keeper", async () => {
    const link = await keeper.connect();
    process.kill(keeper.pid, "SIGKILL");
    expect(await link.closed).toMatch(/closed|ECONNRESET/);
  });

  test("that is reconnected finds its earlier execs", async () => {
    const first = await keeper.connect();
    const order = keeper.order(["sh", "-c", "echo one; sleep 0.3; echo two"]);
    await first.startExec(order, soon());
    first.close();
    const second = await keeper.connect();
    expect((await second.listExecs(soon())).map((exec) => exec.id)).toContain(order.id);
    expect(await output(second, order.id)).toEqual({ stdout: "one\ntwo\n", stderr: "" });
  });
});

/** A proxy between a link and its keeper that disturbs the traffic. */
class Meddler {
  readonly path: string;
  readonly #server: Server;
  readonly #sockets: Socket[] = [];
  swallow = false;

  constructor(target: string, directory: string) {
    this.path = join(directory, "meddler.sock");
    this.#server = createServer((client) => {
      const server = connect(target);
      this.#sockets.push(client, server);
      for (const [from, to] of [
        [client, server],
        [server, client],
      ] as const) {
        from.on("error", () => {});
        from.on("data", (chunk) => {
          if (!this.swallow) to.write(chunk);
        });
      }
    }).listen(this.path);
  }

  inject(bytes: Buffer): void {
    this.#sockets[0]?.write(bytes);
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}

test("a link that is lost before its greeting is answered has dispatched nothing", async () => {
  const socketPath = join(keeper.directory, "gone.sock");
  const gone = createServer((socket) => socket.once("data", () => socket.destroy())).listen(socketPath);
  await once(gone, "listening");
  await expect(keeper.connect({ socketPath })).rejects.toMatchObject({ name: "LinkLost", dispatched: "no" });
  gone.close();
});

test("a keeper without supervision refuses to supervise, and lists nothing", async () => {
  const out = new Writer();
  const older = createServer((socket) => {
    const splitter = new FrameSplitter((id, type) => {
      if (type === REQUEST.hello)
        out.frame(id, type | ANSWER, () => {
          out.u32(PROTOCOL);
          out.str("older");
          out.str("0".repeat(32));
          out.u64(1);
          out.u64(1);
          out.u32(FRAME_LIMIT);
        });
      else
        out.frame(id, REFUSAL, () => {
          out.u32(3);
          out.u32(0);
          out.u64(0);
          out.str("unknown request");
        });
      socket.write(Buffer.concat(out.take()));
    });
    socket.on("error", () => {});
    socket.on("data", (data) => splitter.feed(data, false));
  }).listen(join(keeper.directory, "older.sock"));
  await once(older, "listening");
  const link = await keeper.connect({ socketPath: join(keeper.directory, "older.sock") });
  expect(await link.listSupervised(soon())).toEqual([]);
  const policy = { on: "always", max: 1, backoffMs: 10 } as const;
  const keep = link.superviseExec(keeper.order(["true"]), policy, soon());
  await expect(keep).rejects.toMatchObject({ reason: "unknown_type" });
  link.close();
  older.close();
});

describe("the memory of output", () => {
  test("is reused after it was released, and not before", async () => {
    const link = await keeper.connect();
    const order = keeper.order(["head", "-c", "300000", "/dev/zero"]);
    await run(link, order);
    const from = { cursor: 0, maxBytes: 262_144, waitMs: 0 };
    const read = async () => {
      const slice = await link.readExec(order.id, from, soon());
      return { slice, memory: slice.records[0]?.data.buffer };
    };
    const [one, two] = [await read(), await read()];
    expect(two.memory).not.toBe(one.memory);
    one.slice.release?.();
    one.slice.release?.();
    const [three, four] = [await read(), await read()];
    expect(three.memory).toBe(one.memory);
    expect(four.memory).not.toBe(one.memory);
    expect(four.memory).not.toBe(two.memory);
  });
});

describe("a link that is not read for a while", () => {
  test("receives the missed begin and end events once it has room again", async () => {
    const link = await keeper.connect();
    const loud = keeper.order(["head", "-c", "2M", "/dev/zero"], { journalCapBytes: 8_388_608 });
    await run(link, loud);
    const quiet = keeper.order(["cat"], { stdin: true });
    await link.startExec(quiet, soon());

    const frames: { type: number; payload: string }[] = [];
    const splitter = new FrameSplitter((_id, type, payload) => {
      frames.push({ type, payload: payload.take(payload.left).toString("latin1") });
    });
    const socket = connect(keeper.socketPath);
    socket.on("data", (data) => splitter.feed(data, false));
    const out = new Writer();
    out.frame(1, REQUEST.hello, () => {
      out.u32(PROTOCOL);
      out.u64(1);
      out.str(IDENTITY.installation);
      out.str(IDENTITY.sandbox);
    });
    socket.write(Buffer.concat(out.take()));
    await until("the hello is answered", () => frames.length === 1);

    const kept = keeper.order(["true"], { id: "kept-1" as ExecId });
    const [first, second] = [nextEnd(link, kept.id), nextEnd(link, "kept-2" as ExecId)];
    await link.superviseExec(kept, { on: "always", max: 1, backoffMs: 1_000 }, soon());
    await first;

    socket.pause();
    for (let id = 2; id < 12; id += 1)
      out.frame(id, REQUEST.execRead, () => {
        out.str(loud.id);
        out.u64(0);
        out.u32(DATA_LIMIT);
        out.u32(0);
      });
    await new Promise((sent) => socket.write(Buffer.concat(out.take()), sent));
    // After the first ping the keeper has seen the requests, after the second it has answered them.
    for (let pings = 0; pings < 2; pings += 1) await link.ping(soon());
    await second;
    const end = nextEnd(link, quiet.id);
    await link.writeStdin(quiet.id, { offset: 0, data: new Uint8Array(), end: true }, soon());
    await end;
    socket.resume();
    const announced = (event: number, id: string) =>
      frames.flatMap(({ type, payload }, index) => (type === event && payload.includes(id) ? [index] : []));
    await until(
      "the ends are announced",
      () => announced(EXEC_END, quiet.id).length * announced(EXEC_END, "kept-2").length > 0,
    );
    for (const id of [quiet.id, "kept-1"])
      expect([announced(EXEC_BEGIN, id), announced(EXEC_END, id)]).toEqual([[], [expect.any(Number)]]);
    const [begins, ends] = [announced(EXEC_BEGIN, "kept-2"), announced(EXEC_END, "kept-2")];
    expect([begins.length, ends.length]).toEqual([1, 1]);
    expect(begins[0]).toBeLessThan(ends[0] ?? 0);
    socket.destroy();
  });
});

describe("a broken connection", () => {
  let meddler: Meddler;
  beforeEach(() => {
    meddler = new Meddler(keeper.socketPath, keeper.directory);
  });
  afterEach(() => meddler.close());
  const times = { heartbeatMs: 100, deadMs: 400 };

  test("that swallows everything is dead after the configured time, without a FIN", async () => {
    const link = await keeper.connect({ socketPath: meddler.path, ...times });
    const started = performance.now();
    meddler.swallow = true;
    const lost = expect(link.ping(never)).rejects.toMatchObject({ name: "LinkLost", dispatched: "unknown" });
    expect(await link.closed).toBe("nothing came over the link for 0.4 s");
    await lost;
    expect(performance.now() - started).toBeLessThan(5_000);
  });

  test("that is merely idle is kept alive by heartbeats", async () => {
    const link = await keeper.connect({ socketPath: meddler.path, ...times });
    await pause(1_000);
    await link.ping(soon());
  });

  test("that never answers the hello is given up", async () => {
    meddler.swallow = true;
    await expect(keeper.connect({ socketPath: meddler.path, ...times })).rejects.toMatchObject({
      name: "LinkLost",
    });
    const greeting = { socketPath: meddler.path, ...IDENTITY, generation: 1 };
    await expect(connectKeeper(greeting, AbortSignal.timeout(100))).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });

  test("that breaks the protocol ends the link with a sentence", async () => {
    const frame = (id: number, type: number) => {
      const bytes = Buffer.alloc(12);
      bytes.writeUInt32LE(8, 0);
      bytes.writeUInt32LE(id, 4);
      bytes.writeUInt16LE(type, 8);
      return bytes;
    };
    const nonsense = [
      Buffer.alloc(4, 0xff),
      Buffer.alloc(4),
      frame(0, 0x0100),
      frame(0, 0x0101),
      frame(0, 0x7777),
      frame(4_000_000, 0x8002),
    ];
    for (const bytes of nonsense) {
      meddler.close();
      meddler = new Meddler(keeper.socketPath, keeper.directory);
      const link = await keeper.connect({ socketPath: meddler.path });
      meddler.inject(bytes);
      expect(await link.closed).toMatch(/broke the protocol/);
    }
  });

  test("an unknown exec is the keeper's refusal, not the link's end", async () => {
    const link = await keeper.connect({ socketPath: meddler.path });
    const from = { cursor: 0, maxBytes: 10, waitMs: 0 };
    await expect(link.readExec("nobody" as ExecId, from, soon())).rejects.toMatchObject({
      reason: "no_such_exec",
    });
    await link.ping(soon());
  });
});
