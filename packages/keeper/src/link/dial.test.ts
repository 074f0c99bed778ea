import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { finished, pipeline } from "node:stream/promises";
import { StreamCut } from "@holdfast/engine";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { IDENTITY, output, pause, run, soon, TestKeeper, until } from "../testing/test-keeper.ts";
import { ANSWER, PROTOCOL, REFUSAL, REQUEST } from "../wire/protocol.ts";
import { Writer } from "../wire/wire.ts";
import { type DialOptions, dialKeeper } from "./dial.ts";

const MIB = 1_048_576;
let keeper: TestKeeper;
const servers: Server[] = [];
const accepted: Socket[] = [];
const dialled: Duplex[] = [];

beforeEach(async () => {
  keeper = await TestKeeper.start();
});
afterEach(async () => {
  for (const each of [...dialled.splice(0), ...accepted.splice(0)]) each.destroy();
  for (const server of servers.splice(0)) await new Promise((closed) => server.close(closed));
  await keeper.stop();
});

/** A server on the loopback that this keeper shares with the test. */
async function listen(onSocket: (socket: Socket) => void, host = "127.0.0.1"): Promise<number> {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    accepted.push(socket);
    socket.on("error", () => {});
    onSocket(socket);
  });
  servers.push(server);
  server.listen(0, host);
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

async function dial(port: number, options: Partial<DialOptions> = {}, signal = never): Promise<Duplex> {
  const given = { socketPath: keeper.socketPath, ...IDENTITY, generation: 1, port, ...options };
  const { bytes } = await dialKeeper(given, signal);
  dialled.push(bytes);
  return bytes;
}

const never = new AbortController().signal;

/**
 * Script that raises the loopback of a new network with only two ephemeral ports, and then executes the given command.
 */
const TWO_PORTS = `
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 0x41))
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40001")
os.execv(sys.argv[1], sys.argv[1:])
`;

/** Opens one stream and returns both of its ends. */
async function pair(): Promise<[Duplex, Socket]> {
  const { promise, resolve } = Promise.withResolvers<Socket>();
  const port = await listen(resolve);
  return Promise.all([dial(port), promise]);
}

async function sum(stream: AsyncIterable<Uint8Array>): Promise<{ bytes: number; digest: string }> {
  const hash = createHash("sha256");
  let bytes = 0;
  for await (const chunk of stream) {
    hash.update(chunk);
    bytes += chunk.length;
  }
  return { bytes, digest: hash.digest("hex") };
}

/** Yields distinct bytes, in pieces of all sizes. */
function* noise(bytes: number): Generator<Buffer> {
  const block = randomBytes(MIB);
  for (let sent = 0, size = 1; sent < bytes; size = (size * 7) % 200_003) {
    const piece = Buffer.from(block.subarray(sent % 1_009, (sent % 1_009) + Math.min(size, bytes - sent)));
    sent += piece.length;
    yield piece;
  }
}

/** Writes `bytes` bytes, ends the direction, and returns the count and digest of what was written. */
async function pour(stream: Duplex, bytes: number): Promise<{ bytes: number; digest: string }> {
  const hash = createHash("sha256");
  async function* hashed() {
    for (const piece of noise(bytes)) {
      hash.update(piece);
      yield piece;
    }
  }
  await pipeline(hashed, stream, { end: false });
  stream.end();
  return { bytes, digest: hash.digest("hex") };
}

const heardAll = async (stream: AsyncIterable<Uint8Array>): Promise<string> => {
  let text = "";
  for await (const chunk of stream) text += Buffer.from(chunk).toString();
  return text;
};

const statusOf = (pid: number, field: string): number =>
  Number(readFileSync(`/proc/${pid}/status`, "utf8").match(new RegExp(`^${field}:\\s+(\\d+)`, "m"))?.[1]);
const descriptorsOf = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
const cut = { name: "StreamCut", code: "ECONNRESET" };

describe("a stream to a port", () => {
  test("carries 64 MB each way at once, byte for byte", async () => {
    const [near, far] = await pair();
    const [sent, heard, sentBack, heardBack] = await Promise.all([
      pour(near, 64 * MIB),
      sum(far),
      pour(far, 64 * MIB),
      sum(near),
    ]);
    expect(heard).toEqual(sent);
    expect(heardBack).toEqual(sentBack);
  }, 60_000);

  test("is answered after the client has ended its direction", async () => {
    const [near, far] = await pair();
    near.end("question");
    expect(await heardAll(far)).toBe("question");
    far.end("answer");
    expect(await heardAll(near)).toBe("answer");
  });

  test("can be written to after the port has ended its direction", async () => {
    const [near, far] = await pair();
    far.end("that is all");
    expect(await heardAll(near)).toBe("that is all");
    near.end("one more thing");
    expect(await heardAll(far)).toBe("one more thing");
    await finished(near);
  });

  test("delivers its last bytes to a port that reads slowly, although both sides have ended", async () => {
    const sizes = Array.from({ length: 16 }, (_, index) => (index + 1) * 65_536);
    const slow = async (size: number) => {
      const [near, far] = await pair();
      far.end();
      expect(await heardAll(near)).toBe("");
      const sent = pour(near, size);
      await pause(300);
      expect(await sum(far)).toEqual(await sent);
    };
    await Promise.all(sizes.map(slow));
  });

  test("reaches a server that listens on IPv6 only", async () => {
    const { promise, resolve } = Promise.withResolvers<Socket>();
    const near = await dial(await listen(resolve, "::1"));
    near.end("six");
    expect(await heardAll(await promise)).toBe("six");
  });

  test("leaves nothing in the keeper after its end", async () => {
    const echo = await listen((socket) => void pipeline(socket, socket).catch(() => {}));
    const before = descriptorsOf(keeper.pid);
    for (let round = 0; round < 200; round++) {
      const near = await dial(echo);
      near.end(`round ${round}`);
      expect(await heardAll(near)).toBe(`round ${round}`);
    }
    // Streams of the test before may still have been open when `before` was counted.
    await until("all are closed", () => descriptorsOf(keeper.pid) <= before);
  });
});

describe("a dial is refused", () => {
  test("for a port without a listener", async () => {
    const port = await listen(() => {});
    await new Promise((closed) => servers.pop()?.close(closed));
    await expect(dial(port)).rejects.toMatchObject({ reason: "system", errno: "ECONNREFUSED" });
    await expect(dial(0)).rejects.toMatchObject({ reason: "malformed" });
    await expect(dial(65_536)).rejects.toMatchObject({ reason: "malformed" });
  });

  test("for a port without a listener, although a socket could connect to itself", async () => {
    const alone = await TestKeeper.start(["unshare", "--net", "python3", "-c", TWO_PORTS]);
    const options = { socketPath: alone.socketPath };
    try {
      for (const port of [40_000, 40_001, 40_000, 40_001]) {
        await expect(dial(port, options)).rejects.toMatchObject({ errno: "ECONNREFUSED" });
      }
    } finally {
      await alone.stop();
    }
  });

  test("for a port whose listener does not accept, after the keeper's deadline", async () => {
    const link = await keeper.connect();
    const hold =
      "import socket, time\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen(0)\nprint(s.getsockname()[1], flush=True)\ntime.sleep(100)";
    const order = keeper.order(["python3", "-c", hold]);
    await link.startExec(order, soon());
    let port = 0;
    await until("it listens", async () => {
      const { records } = await link.readExec(order.id, { cursor: 0, maxBytes: 99, waitMs: 0 }, soon());
      port = Number(Buffer.concat(records.map(({ data }) => data)).toString());
      return port > 0;
    });
    const started = performance.now();
    const dials = await Promise.allSettled(Array.from({ length: 4 }, () => dial(port)));
    expect(performance.now() - started).toBeGreaterThan(4_500);
    const refused = dials.filter((each) => each.status === "rejected");
    expect(refused.length).toBeGreaterThan(0);
    for (const { reason } of refused) expect(reason).toMatchObject({ reason: "system", errno: "ETIMEDOUT" });
    await link.ping(soon());
  }, 30_000);

  test("for another sandbox, or an earlier generation", async () => {
    const port = await listen(() => {});
    await expect(dial(port, { sandbox: "sbx_fedcba9876543210" })).rejects.toMatchObject({
      reason: "wrong_identity",
    });
    await keeper.connect({ generation: 2 });
    await expect(dial(port, { generation: 1 })).rejects.toMatchObject({ reason: "stale_generation" });
  });

  test("for the 257th stream, while links still work, until a stream ends", async () => {
    const far: Socket[] = [];
    const port = await listen((socket) => {
      far.push(socket);
      socket.pipe(socket);
    });
    const streams = await Promise.all(Array.from({ length: 256 }, () => dial(port)));
    await expect(dial(port)).rejects.toMatchObject({ reason: "limit" });
    const links = await Promise.all(Array.from({ length: 16 }, () => keeper.connect()));
    await expect(keeper.connect()).rejects.toMatchObject({ reason: "limit" });
    for (const link of links) expect(await run(link, keeper.order(["true"]))).toMatchObject({ exitCode: 0 });
    const sent = await Promise.all(
      streams.map(async (stream, index) => {
        stream.end(`stream ${index}`);
        return heardAll(stream);
      }),
    );
    expect(sent).toEqual(streams.map((_, index) => `stream ${index}`));
    const next = await dial(port);
    next.end("room");
    expect(await heardAll(next)).toBe("room");
  }, 30_000);

  test("after an invalid answer", async () => {
    const answer = (type: number, encode: (out: Writer) => void): Buffer => {
      const out = new Writer();
      out.frame(1, type, encode);
      return Buffer.concat(out.take());
    };
    const refusal = (code: number) =>
      answer(REFUSAL, (out) => {
        out.u32(code);
        out.u32(0);
        out.u64(0);
        out.str("no");
      });
    const cases: [Buffer, object][] = [
      [Buffer.alloc(4, 0xff), { name: "LinkLost", dispatched: "no" }],
      [answer(REQUEST.ping | ANSWER, () => {}), { name: "LinkLost", dispatched: "no" }],
      [answer(REQUEST.dial | ANSWER, (out) => out.u32(PROTOCOL + 1)), { name: "LinkLost", dispatched: "no" }],
      [answer(REQUEST.dial | ANSWER, (out) => out.u32(PROTOCOL)), { name: "LinkLost", dispatched: "no" }],
      [refusal(99), { name: "LinkLost", dispatched: "no" }],
      // An older keeper expects a hello as the first request.
      [refusal(5), { name: "KeeperRefusal", reason: "unknown_type" }],
    ];
    for (const [bytes, expected] of cases) {
      const socketPath = await impostor((socket) => socket.write(bytes));
      await expect(dial(1, { socketPath })).rejects.toMatchObject(expected);
    }
  });
});

/** Starts another listener in the keeper's place. */
async function impostor(onDial: (socket: Socket) => void): Promise<string> {
  const path = join(keeper.directory, `impostor-${servers.length}.sock`);
  const server = createServer((socket) => {
    accepted.push(socket);
    socket.on("error", () => {});
    socket.once("data", () => onDial(socket));
  });
  servers.push(server.listen(path));
  await once(server, "listening");
  return path;
}

describe("between answer and bytes", () => {
  const welcome = () => {
    const out = new Writer();
    out.frame(1, REQUEST.dial | ANSWER, () => {
      out.u32(PROTOCOL);
      out.str("version");
      out.str("0".repeat(32));
      out.u64(1);
      out.u64(0);
      out.u32(0);
    });
    return Buffer.concat(out.take());
  };
  const chunk = (text: string) => {
    const bytes = Buffer.alloc(4 + text.length, text);
    bytes.writeUInt32LE(text.length);
    bytes.write(text, 4);
    return bytes;
  };
  const whole = Buffer.concat([welcome(), chunk("first"), chunk("and"), chunk("last"), Buffer.alloc(4)]);

  test("no byte is lost, however the received data is split", async () => {
    for (let at = 1; at <= whole.length; at += 1) {
      const socketPath = await impostor(async (socket) => {
        socket.write(whole.subarray(0, at));
        await pause(1);
        socket.write(whole.subarray(at));
      });
      expect(await heardAll(await dial(1, { socketPath }))).toBe("firstandlast");
    }
  });

  test("the keeper's boot id is returned", async () => {
    const options = { socketPath: await impostor((socket) => socket.write(whole)), ...IDENTITY };
    const { bootId, bytes } = await dialKeeper({ ...options, generation: 1, port: 1 }, never);
    expect(bootId).toBe("0".repeat(32));
    bytes.destroy();
    const link = await keeper.connect();
    const port = await listen(() => {});
    const given = { socketPath: keeper.socketPath, ...IDENTITY, generation: 1, port };
    const real = await dialKeeper(given, never);
    expect(real.bootId).toBe(link.keeper.bootId);
    real.bytes.destroy();
  });

  test("bytes after the end are not part of the stream", async () => {
    const socketPath = await impostor((socket) => socket.write(Buffer.concat([whole, chunk("more")])));
    const near = await dial(1, { socketPath });
    const heard: string[] = [];
    near.on("data", (data) => heard.push(String(data)));
    await expect(finished(near)).rejects.toMatchObject(cut);
    expect(heard.join("")).toBe("firstandlast");
  });

  test("a silent keeper times out, and an aborted dial is given up", async () => {
    const socketPath = await impostor(() => {});
    await expect(dial(1, { socketPath, deadlineMs: 50 })).rejects.toMatchObject({
      name: "LinkLost",
      dispatched: "no",
    });
    const abort = new AbortController();
    const waiting = dial(1, { socketPath }, abort.signal);
    setTimeout(() => abort.abort(new Error("no longer wanted")), 20);
    await expect(waiting).rejects.toThrow("no longer wanted");
    const leaving = await impostor((socket) => socket.destroy());
    await expect(dial(1, { socketPath: leaving })).rejects.toMatchObject({ name: "LinkLost" });
  });
});

describe("a stream that is cut", () => {
  test("by a reset of the port delivers the data before it, and fails", async () => {
    const [near, far] = await pair();
    far.write("half of");
    const heard: string[] = [];
    near.on("data", (data) => heard.push(String(data)));
    await until("it was heard", () => heard.join("") === "half of");
    far.resetAndDestroy();
    await expect(finished(near)).rejects.toMatchObject(cut);
  });

  test("by a reset of the port while it is written to never looks ended", async () => {
    for (let round = 0; round < 20; round++) {
      const [near, far] = await pair();
      far.write("half of");
      const heard = heardAll(near);
      const pouring = pour(near, 16 * MIB).catch(() => {});
      far.resume();
      await pause(round);
      far.resetAndDestroy();
      await expect(heard).rejects.toMatchObject(cut);
      await pouring;
    }
  });

  test("by its client is a reset at the port, not an end", async () => {
    const [near, far] = await pair();
    near.write("half of");
    far.resume();
    await once(far, "data");
    const failed = once(far, "error");
    near.destroy();
    expect((await failed)[0]).toMatchObject({ code: "ECONNRESET" });
  });

  test("by its signal is a reset at the port too", async () => {
    const abort = new AbortController();
    const { promise, resolve } = Promise.withResolvers<Socket>();
    const near = await dial(await listen(resolve), {}, abort.signal);
    const far = await promise;
    far.resume();
    const failed = once(far, "error");
    abort.abort(new StreamCut("no longer wanted"));
    await expect(finished(near)).rejects.toThrow("no longer wanted");
    expect((await failed)[0]).toMatchObject({ code: "ECONNRESET" });
  });

  test("by a port that ends without reading has delivered all its data", async () => {
    const [near, far] = await pair();
    const heard = heardAll(near).catch((error: unknown) => error);
    const pouring = pour(near, 64 * MIB).catch((error: unknown) => error);
    await pause(50);
    far.end("too much");
    await pause(50);
    far.destroy();
    expect(await heard).toBe("too much");
    expect(await pouring).toBeInstanceOf(Error);
  });

  test("by a port that closed after its end has delivered all its data, however late it is read", async () => {
    const [near, far] = await pair();
    const sent = Buffer.alloc(460_000, "all of it ");
    far.end(sent);
    await finished(far, { readable: false });
    far.destroy();
    await pause(50);
    for (let writes = 0; writes < 3; writes++) {
      near.write("hello?");
      await pause(50);
    }
    expect(near.readableLength).toBeLessThan(sent.length);
    expect(await heardAll(near)).toBe(sent.toString());
    await expect(finished(near)).rejects.toMatchObject(cut);
  });

  test("by the keeper's death fails", async () => {
    const [near, far] = await pair();
    far.write("here");
    near.resume();
    await once(near, "data");
    process.kill(keeper.pid, "SIGKILL");
    await expect(finished(near)).rejects.toMatchObject(cut);
  });

  test.for(["link", "dial"])("by the %s of a later generation", async (kind) => {
    const [near, far] = await pair();
    for (const each of [near, far]) each.resume();
    const failed = once(far, "error");
    const later = listen(() => {}).then((port) => dial(port, { generation: 2 }));
    await (kind === "link" ? keeper.connect({ generation: 2 }) : later);
    await expect(finished(near)).rejects.toMatchObject(cut);
    expect((await failed)[0]).toMatchObject({ code: "ECONNRESET" });
    await later;
  });
});

describe("a keeper with streams", () => {
  test("does not grow with unread data, on either side", async () => {
    const streams = await Promise.all(Array.from({ length: 8 }, () => pair()));
    const before = statusOf(keeper.pid, "VmRSS");
    const sent = streams.flatMap(([near, far]) => [pour(near, 16 * MIB), pour(far, 16 * MIB)]);
    for (const [near, far] of streams) for (const each of [near, far]) each.read(0);
    await pause(500);
    expect(statusOf(keeper.pid, "VmRSS") - before).toBeLessThan(4_096);
    for (const [near] of streams) expect(near.readableLength).toBeLessThan(MIB);
    const heard = streams.flatMap(([near, far]) => [sum(far), sum(near)]);
    expect(await Promise.all(heard)).toEqual(await Promise.all(sent));
    expect(statusOf(keeper.pid, "VmHWM") - before).toBeLessThan(8_192);
  }, 60_000);

  test("sleeps while both sides of a stream are idle, stuck or half closed", async () => {
    const [, stuckFar] = await pair();
    stuckFar.write(Buffer.alloc(4 * MIB));
    const [stuckNear] = await pair();
    stuckNear.write(Buffer.alloc(4 * MIB));
    const [, ended] = await pair();
    ended.end(Buffer.alloc(2 * MIB));
    const [halfNear, half] = await pair();
    half.end(Buffer.alloc(2 * MIB));
    halfNear.end();
    const [, broken] = await pair();
    broken.write(Buffer.alloc(2 * MIB));
    await pause(100);
    broken.resetAndDestroy();
    await pair();
    await pause(300);
    const ticks = () => {
      const fields = readFileSync(`/proc/${keeper.pid}/stat`, "utf8").split(") ")[1]?.split(" ") ?? [];
      return Number(fields[11]) + Number(fields[12]);
    };
    const before = ticks();
    await pause(1_000);
    expect(ticks() - before).toBeLessThan(10);
  });

  test("that is stopped loses nothing, and dials time out", async () => {
    const [near, far] = await pair();
    const port = await listen(() => {});
    const all = Promise.all([pour(near, 32 * MIB), sum(far), pour(far, 32 * MIB), sum(near)]);
    for (let round = 0; round < 3; round++) {
      await pause(50);
      process.kill(keeper.pid, "SIGSTOP");
      await expect(dial(port, { deadlineMs: 200 })).rejects.toMatchObject({ name: "LinkLost" });
      process.kill(keeper.pid, "SIGCONT");
    }
    const [sent, heard, sentBack, heardBack] = await all;
    expect(heard).toEqual(sent);
    expect(heardBack).toEqual(sentBack);
  }, 60_000);

  test("runs commands beside fifty busy streams", async () => {
    const link = await keeper.connect();
    const streams = await Promise.all(Array.from({ length: 50 }, () => pair()));
    const block = Buffer.alloc(65_536);
    let moved = 0;
    for (const [near, far] of streams) {
      near.on("data", (data) => {
        moved += data.length;
      });
      const push = () => {
        while (far.write(block));
      };
      far.on("drain", push);
      push();
    }
    for (let count = 0; count < 20; count++) {
      expect(await run(link, keeper.order(["true"]))).toMatchObject({ exitCode: 0 });
    }
    expect(moved).toBeGreaterThan(50 * MIB);
    const order = keeper.order(["echo", "fine"]);
    await run(link, order);
    expect(await output(link, order.id)).toEqual({ stdout: "fine\n", stderr: "" });
  }, 60_000);
});
