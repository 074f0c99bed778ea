/** Tests of the C programs under their sanitizers, at the level of bytes: input that no well-behaved client sends. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
} from "node:fs";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { isAlive, until } from "../src/testing/test-keeper.ts";

const home = fileURLToPath(new URL("..", import.meta.url));
const program = (name: string) => join(home, "build", "sanitize", name);
const directory = mkdtempSync(join(tmpdir(), "holdfast-c-"));

const MAX_FRAME = 1_048_576 + 4_096;
const REFUSAL = 0xffff;
const MALFORMED = 1;
const TOO_LARGE = 2;
const UNKNOWN_TYPE = 3;
const NOT_GREETED = 5;
const EXEC_RUNNING = 9;
const LIMIT = 10;
const BAD_HANDLE = 12;
const CANCELLED = 4;

beforeAll(() => {
  execFileSync(process.execPath, [join(home, "build.mjs"), "--sanitize"], { stdio: "inherit" });
}, 180_000);

afterAll(() => rmSync(directory, { recursive: true, force: true }));

const u8 = (value: number) => Buffer.of(value);
const u16 = (value: number) => {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(value);
  return bytes;
};
const u32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const u64 = (value: number) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const str = (text: string | Buffer) => Buffer.concat([u32(Buffer.byteLength(text)), Buffer.from(text)]);
const list = (...items: string[]) => Buffer.concat([u32(items.length), ...items.map((item) => str(item))]);

function frame(id: number, type: number, ...fields: Buffer[]): Buffer {
  const payload = Buffer.concat(fields);
  return Buffer.concat([u32(8 + payload.length), u32(id), u32(type), payload]);
}

const hello = (generation = 1) => frame(1, 1, u32(2), u64(generation), str("install"), str("box"));
const dial = (port: number, generation = 1) =>
  frame(1, 3, u32(2), u64(generation), str("install"), str("box"), u16(port));
const ping = (id: number) => frame(id, 2, u64(id));
interface StartOptions {
  timeoutMs?: number;
  cap?: number;
  stdin?: boolean;
  size?: [cols: number, rows: number];
}
const orderOf = (exec: string, argv: string[], options: StartOptions): Buffer[] => [
  ...[str(exec), list(...argv), list("PATH=/usr/bin:/bin"), str("/"), str("0")],
  ...[u64(options.timeoutMs ?? 0), u8(options.stdin ? 1 : 0), ...(options.size ?? [0, 0]).map(u16)],
  ...[u64(options.cap ?? 1 << 20), str("digest")],
];
const start = (id: number, exec: string, argv: string[], options: StartOptions = {}) =>
  frame(id, 10, ...orderOf(exec, argv, options));
const keep = (
  id: number,
  exec: string,
  argv: string[],
  policy: { on?: number; max?: number; backoffMs?: number } = {},
) => {
  const { on = 2, max = 3, backoffMs = 10 } = policy;
  return frame(id, 18, ...orderOf(exec, argv, {}), u8(on), u32(max), u32(backoffMs));
};

interface Answer {
  id: number;
  type: number;
  payload: Buffer;
}

/** One raw connection; answers are read in the order of arrival. */
class Wire {
  readonly socket: Socket;
  readonly closed: Promise<void>;
  #bytes = Buffer.alloc(0);
  #wake: () => void = () => {};
  #over = false;

  constructor(socket: Socket) {
    this.socket = socket;
    this.closed = new Promise((resolve) => socket.once("close", () => resolve()));
    socket.on("error", () => {});
    socket.on("close", () => {
      this.#over = true;
      this.#wake();
    });
    socket.on("data", (chunk) => {
      this.#bytes = Buffer.concat([this.#bytes, chunk]);
      this.#wake();
    });
  }

  send(...frames: Buffer[]): this {
    this.socket.write(Buffer.concat(frames));
    return this;
  }

  async next(): Promise<Answer> {
    const timer = setTimeout(() => this.socket.destroy(), 20_000);
    while (this.#bytes.length < 4 || this.#bytes.length < 4 + this.#bytes.readUInt32LE()) {
      if (this.#over) throw new Error("the link is closed");
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    clearTimeout(timer);
    const end = 4 + this.#bytes.readUInt32LE();
    const bytes = this.#bytes.subarray(0, end);
    this.#bytes = this.#bytes.subarray(end);
    return { id: bytes.readUInt32LE(4), type: bytes.readUInt16LE(8), payload: bytes.subarray(12) };
  }

  /** Returns the next answer to this request, skipping events and other answers. */
  async answer(id: number): Promise<Answer> {
    for (;;) {
      const answer = await this.next();
      if (answer.id === id) return answer;
    }
  }

  /** Returns the id and state of the next exec end event. */
  async nextEnd(): Promise<[exec: string, state: number]> {
    for (;;) {
      const { type, payload } = await this.next();
      const end = type === 0x0100 ? 4 + payload.readUInt32LE() : 0;
      if (end > 0) return [payload.toString("utf8", 4, end), payload.readUInt8(end)];
    }
  }

  /** Parses the results that a fixture prints for each attempt. */
  async reported(id: number, exec: string): Promise<Map<string, string>> {
    const read = frame(id, 11, str(exec), u64(0), u32(1 << 16), u32(0));
    const { payload } = await this.send(read).answer(id);
    const lines = payload.toString("latin1").match(/[\w-]+ (done|E[A-Z]+|killed)/g);
    return new Map(lines?.map(words));
  }

  async end(exec: string): Promise<number> {
    for (;;) {
      const [ended, state] = await this.nextEnd();
      if (ended === exec) return state;
    }
  }
}

/** Compiled once. */
function fixture(name: string): string {
  const path = join(directory, name);
  const source = join(home, "fixtures", `${name}.c`);
  if (!existsSync(path)) execFileSync("gcc", ["-D_GNU_SOURCE", "-pthread", "-o", path, source]);
  return path;
}

const refusal = ({ type, payload }: Answer) => (type === REFUSAL ? payload.readUInt32LE() : 0);

class SanitizedKeeper {
  readonly control = mkdtempSync(join(directory, "control-"));
  readonly process: ChildProcess;
  report = "";
  readonly #wires: Wire[] = [];

  /** Shell commands run before the keeper: with scarce resources it meets an error early. */
  constructor(first = ":") {
    this.process = spawn("sh", ["-c", `${first}; exec "$0"`, program("keeper")], {
      stdio: ["ignore", "ignore", "pipe"],
      env: { HOLDFAST_CONTROL: this.control, HOLDFAST_INSTALLATION: "install", HOLDFAST_SANDBOX: "box" },
    });
    this.process.stderr?.on("data", (chunk) => {
      this.report += chunk;
    });
  }

  /** The socket's name exists a moment before it listens, so a refused connection is retried. */
  async wire(): Promise<Wire> {
    for (let attempt = 0; ; attempt++) {
      const socket = connect(join(this.control, "keeper.sock"));
      const connected = await new Promise<boolean>((resolve) => {
        socket.once("connect", () => resolve(true));
        socket.once("error", () => resolve(false));
      });
      const wire = new Wire(socket);
      this.#wires.push(wire);
      if (connected) return wire;
      if (attempt > 500) throw new Error(`the keeper does not listen: ${this.report}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async greeted(generation = 1): Promise<Wire> {
    const wire = await this.wire();
    expect((await wire.send(hello(generation)).next()).type).toBe(0x8001);
    return wire;
  }

  async terminate(): Promise<number | null> {
    for (const wire of this.#wires) wire.socket.destroy();
    if (this.process.exitCode !== null) return this.process.exitCode;
    const ended = new Promise<number | null>((resolve) => this.process.once("close", resolve));
    this.process.kill("SIGTERM");
    const timer = setTimeout(() => this.process.kill("SIGKILL"), 20_000);
    const code = await ended;
    clearTimeout(timer);
    return code;
  }
}

describe("the fuzz driver", () => {
  test.each([1, 2, 3, 4])("finds nothing with seed %i", (seed) => {
    execFileSync(program("fuzz"), ["--random", String(seed), "150"], { timeout: 60_000, stdio: "inherit" });
  });

  test.each([
    ["nothing", Buffer.alloc(0)],
    ["half a header", Buffer.from([9, 0])],
    ["an oversized frame", u32(0xffffffff)],
    ["a frame cut short", Buffer.concat([hello(), ping(2).subarray(0, 15)])],
    ["noise", Buffer.from(Array.from({ length: 5_000 }, (_, index) => (index * 167 + (index >> 3)) & 255))],
  ])("survives %s from stdin", (_, input) => {
    execFileSync(program("fuzz"), [], { input, timeout: 30_000, stdio: ["pipe", "inherit", "inherit"] });
  });

  test("leaves no scratch directory behind", () => {
    const scratch = mkdtempSync(join(directory, "fuzz-"));
    execFileSync(program("fuzz"), ["--random", "9", "5"], { env: { TMPDIR: scratch }, timeout: 30_000 });
    expect(readdirSync(scratch)).toEqual([]);
  });
});

describe("a keeper", () => {
  let keeper: SanitizedKeeper;

  beforeEach(() => {
    keeper = new SanitizedKeeper();
  });

  afterEach(async () => {
    expect(await keeper.terminate(), keeper.report).toBe(0);
    expect(keeper.report).toBe("");
  });

  test("answers nothing but refusals before a hello", async () => {
    const wire = await keeper.wire();
    expect(refusal(await wire.send(ping(7)).answer(7))).toBe(NOT_GREETED);
    expect((await wire.send(hello()).next()).type).toBe(0x8001);
    expect((await wire.send(ping(8)).answer(8)).type).toBe(0x8002);
  });

  test("refuses a frame over the limit, closes that link and serves the others", async () => {
    const other = await keeper.greeted();
    const wire = await keeper.greeted();
    const answer = await wire.send(u32(MAX_FRAME + 1), u32(77)).next();
    expect([answer.id, refusal(answer)]).toEqual([77, TOO_LARGE]);
    await wire.closed;
    expect((await other.send(ping(2)).answer(2)).type).toBe(0x8002);
  });

  test("refuses a frame smaller than its header and closes the link", async () => {
    const wire = await keeper.greeted();
    expect(refusal(await wire.send(u32(7), u32(5)).next())).toBe(MALFORMED);
    await wire.closed;
  });

  test("accepts a frame of exactly the limit", async () => {
    const wire = await keeper.greeted();
    const filler = Buffer.alloc(MAX_FRAME - 8);
    expect(refusal(await wire.send(frame(3, 2, filler)).answer(3))).toBe(MALFORMED);
    expect((await wire.send(ping(4)).answer(4)).type).toBe(0x8002);
  });

  test("refuses a malformed payload of every request and continues", async () => {
    const wire = await keeper.greeted();
    const types = [1, 2, ...range(10, 42)];
    for (const type of types) {
      const lying = Buffer.concat([u32(0xfffffff0), Buffer.from("short")]);
      expect(refusal(await wire.send(frame(type, type, lying)).answer(type)), `type ${type}`).toBe(MALFORMED);
    }
    expect(refusal(await wire.send(frame(5, 999)).answer(5))).toBe(UNKNOWN_TYPE);
    expect((await wire.send(ping(6)).answer(6)).type).toBe(0x8002);
  });

  test("refuses text with a NUL inside and paths that climb", async () => {
    const wire = await keeper.greeted();
    const stat = (id: number, path: string) => frame(id, 20, str(path), u8(0));
    expect(refusal(await wire.send(stat(2, "/etc\0/passwd")).answer(2))).toBe(MALFORMED);
    const climbing = await wire.send(stat(3, "/tmp/../etc")).answer(3);
    expect([refusal(climbing), climbing.payload.readUInt32LE(4)]).toEqual([11, 22]);
  });

  test("assembles requests from single bytes, and processes many from one chunk", async () => {
    const wire = await keeper.greeted();
    for (const byte of ping(2)) {
      wire.send(Buffer.of(byte));
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect((await wire.answer(2)).type).toBe(0x8002);
    const ids = range(100, 1_100);
    wire.send(...ids.map(ping));
    for (const id of ids) expect((await wire.next()).id).toBe(id);
  });

  test("allows one reader per watch, reports the end to it, and drops both with the link", async () => {
    const wire = await keeper.greeted();
    const watched = mkdtempSync(join(directory, "watched-"));
    const open = async (id: number) => {
      const { type, payload } = await wire.send(frame(id, 37, str(watched), u8(1))).answer(id);
      expect(type).toBe(0x8000 | 37);
      return payload;
    };
    const read = (id: number, watch: Buffer, waitMs = 60_000) => frame(id, 38, watch, u32(100), u32(waitMs));
    const watch = await open(2);
    const nothing = await wire.send(read(3, watch, 0)).answer(3);
    expect(nothing.payload).toEqual(Buffer.concat([u8(1), u32(0)]));
    expect(refusal(await wire.send(read(4, watch), read(5, watch)).answer(5))).toBe(LIMIT);
    wire.send(frame(6, 39, watch));
    expect(refusal(await wire.answer(4))).toBe(BAD_HANDLE);
    expect((await wire.answer(6)).type).toBe(0x8000 | 39);
    for (const [id, type] of [
      [7, 38],
      [8, 39],
    ] as const) {
      const late = type === 38 ? read(id, watch) : frame(id, 39, watch);
      expect(refusal(await wire.send(late).answer(id))).toBe(BAD_HANDLE);
    }
    const again = await open(9);
    expect(again).not.toEqual(watch);
    wire.send(read(10, again), frame(11, 37, str(watched), u8(1)));
    wire.socket.destroy();
    const other = await keeper.greeted();
    expect(refusal(await other.send(read(2, again)).answer(2))).toBe(BAD_HANDLE);
  });

  test("drops links of a smaller generation and refuses new ones", async () => {
    const old = await keeper.greeted(3);
    await keeper.greeted(4);
    await old.closed;
    const late = await keeper.wire();
    expect(refusal(await late.send(hello(3)).next())).toBe(4);
    await late.closed;
  });

  test("has at most sixteen links, and drops silent connections for new ones", async () => {
    const silent = await keeper.wire();
    const greeted: Wire[] = [];
    for (let index = 0; index < 16; index++) greeted.push(await keeper.greeted());
    const surplus = await keeper.wire();
    expect(refusal(await surplus.send(hello()).next())).toBe(LIMIT);
    await surplus.closed;
    expect(silent.socket.closed).toBe(false);
    await Promise.all(range(1, 256).map(() => keeper.wire()));
    await silent.closed;
    for (const wire of greeted) expect((await wire.send(ping(2)).answer(2)).type).toBe(0x8002);
  });

  describe("that is dialled", () => {
    const chunk = (text: string) => Buffer.concat([u32(text.length), Buffer.from(text)]);
    const END = u32(0);
    let port = 0;
    /** Data of each connection at the port, and how it ended. */
    let heard: Promise<string>[] = [];
    const server = createServer((socket) => {
      let text = "";
      socket.on("data", (data) => {
        text += data;
        if (text.endsWith("?")) socket.write(text);
      });
      heard.push(
        new Promise((resolve) => {
          socket.once("end", () => resolve(`${text} (ended)`));
          socket.once("error", () => resolve(`${text} (cut)`));
        }),
      );
    });

    beforeAll(async () => {
      server.listen(0, "127.0.0.1");
      await once(server, "listening");
      ({ port } = server.address() as AddressInfo);
    });
    beforeEach(() => {
      heard = [];
    });
    afterAll(() => new Promise((closed) => server.close(closed)));

    /** Opens a stream to the port, and waits until the server of this test has accepted the connection. */
    const dialled = async (): Promise<Wire> => {
      const wire = await keeper.wire();
      expect((await wire.send(dial(port)).next()).type).toBe(0x8003);
      await until("the connection was accepted", () => heard.length > 0);
      return wire;
    };

    test("passes on the content of chunks, however they are split, and answers in chunks", async () => {
      const wire = await dialled();
      for (const byte of Buffer.concat([chunk("how"), chunk(" are"), chunk(" you?")])) {
        wire.send(Buffer.of(byte));
        await new Promise((resolve) => setImmediate(resolve));
      }
      const answer: Buffer[] = [];
      wire.socket.on("data", (data) => answer.push(data));
      await until("it answered", () => Buffer.concat(answer).equals(chunk("how are you?")));
      wire.send(END);
      await wire.closed;
      expect(Buffer.concat(answer)).toEqual(Buffer.concat([chunk("how are you?"), END]));
      expect(await heard[0]).toBe("how are you? (ended)");
    });

    test("delivers the data of a client that has ended its direction and disconnected", async () => {
      const wire = await dialled();
      wire.socket.end(Buffer.concat([chunk("the"), chunk(" end"), END]));
      wire.socket.destroySoon();
      expect(await heard[0]).toBe("the end (ended)");
    });

    test.each([
      ["disconnects", (wire: Wire) => wire.socket.destroySoon()],
      ["closes its direction", (wire: Wire) => wire.socket.end()],
      ["sends more after the end", (wire: Wire) => wire.send(chunk(""), chunk("more"))],
      ["disconnects within a chunk's size", (wire: Wire) => wire.send(Buffer.of(7)).socket.destroySoon()],
      ["disconnects within a chunk", (wire: Wire) => wire.send(u32(7), Buffer.of(65)).socket.destroySoon()],
      [
        "disconnects within the largest chunk",
        (wire: Wire) => wire.send(u32(0xffffffff)).socket.destroySoon(),
      ],
    ] as const)("resets the port if the client %s", async (_, act) => {
      const wire = await dialled();
      wire.send(chunk("half"));
      await until("that was passed on", () => heard.length > 0);
      act(wire);
      expect(await heard[0]).toMatch(/\(cut\)$/);
      await wire.closed;
    });

    test("refuses malformed, early or misplaced dials, and closes their connection", async () => {
      const malformed = await keeper.wire();
      const answer = await malformed.send(frame(1, 3, u32(2), u64(1), str("install"), str("box"))).next();
      expect(refusal(answer)).toBe(MALFORMED);
      expect((await malformed.send(hello()).next()).type).toBe(0x8001);
      expect(refusal(await malformed.send(dial(port)).next())).toBe(UNKNOWN_TYPE);
      expect((await malformed.send(ping(2)).answer(2)).type).toBe(0x8002);
      const early = await keeper.wire();
      expect(refusal(await early.send(dial(port), chunk("hello")).next())).toBe(MALFORMED);
      await early.closed;
      const refusedWire = await keeper.wire();
      const refused = await refusedWire.send(dial(1)).next();
      expect([refusal(refused), refused.payload.readUInt32LE(4)]).toEqual([11, 111]);
      await refusedWire.closed;
      expect(heard).toEqual([]);
    });

    test("keeps descriptors for its other work", async () => {
      await keeper.terminate();
      keeper = new SanitizedKeeper("ulimit -n 96");
      const link = await keeper.greeted();
      let refused = 0;
      const streams: Wire[] = [];
      while (refused === 0) {
        const wire = await keeper.wire();
        refused = refusal(await wire.send(dial(port)).next());
        streams.push(wire);
      }
      expect(refused).toBe(LIMIT);
      expect(streams.length).toBeGreaterThan(20);
      expect(refusal(await link.send(frame(2, 41)).answer(2))).toBe(0);
      await keeper.greeted();
      for (const wire of streams) wire.socket.destroy();
      link.send(start(3, "e1", ["true"]));
      expect(await link.end("e1")).toBe(2);
      await Promise.all(heard);
    });

    test("and then stopped cuts all its streams", async () => {
      const wire = await dialled();
      wire.send(chunk("half"));
      await until("that was passed on", () => heard.length > 0);
      expect(await keeper.terminate()).toBe(0);
      expect(await heard[0]).toMatch(/\(cut\)$/);
      keeper = new SanitizedKeeper();
      await keeper.greeted();
    });
  });

  test("without a descriptor for a connection sleeps until it has one", async () => {
    await keeper.terminate();
    keeper = new SanitizedKeeper("ulimit -n 12");
    const first = await keeper.greeted();
    const newcomers: Wire[] = [];
    for (let index = 0; index < 10; index++) newcomers.push((await keeper.wire()).send(hello()));
    await new Promise((resolve) => setTimeout(resolve, 200));
    const before = cpuTicks(keeper.process.pid);
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    expect(cpuTicks(keeper.process.pid) - before).toBeLessThan(10);
    expect((await first.send(ping(2)).answer(2)).type).toBe(0x8002);
    for (const wire of [first, ...newcomers.slice(0, -1)]) wire.socket.destroy();
    expect((await newcomers.at(-1)?.next())?.type).toBe(0x8001);
  });

  test("whose descriptors are used up by commands refuses more, but still serves, journals and ends running ones", async () => {
    await keeper.terminate();
    keeper = new SanitizedKeeper("ulimit -n 96");
    const wire = await keeper.greeted();
    const running: string[] = [];
    let refused = 0;
    for (let id = 10; refused === 0; id++) {
      const order = start(id, `e${id}`, ["sh", "-c", "setsid sleep 91 & cat"], { stdin: true });
      refused = refusal(await wire.send(order).answer(id));
      if (refused === 0) running.push(`e${id}`);
    }
    expect(refused).toBe(LIMIT);
    expect(running.length).toBeGreaterThan(5);
    for (let index = 0; index < 12; index++) await keeper.greeted();
    wire.send(frame(4, 12, str("e10"), u64(0), u8(0), str("journaled all the same")));
    const read = frame(5, 11, str("e10"), u64(0), u32(1_000), u32(15_000));
    expect((await wire.send(read).answer(5)).payload.toString()).toContain("journaled all the same");
    for (const [index, exec] of running.entries()) wire.send(frame(1_000 + index, 14, str(exec)));
    const states = new Map<string, number>();
    while (states.size < running.length) states.set(...(await wire.nextEnd()));
    expect(new Set(states.values())).toEqual(new Set([CANCELLED]));
    const { payload } = await wire.send(frame(3, 15)).answer(3);
    expect(payload.toString("latin1")).not.toContain("survivors");
  });

  test("whose descriptors are used up by drained output gives them to new commands", async () => {
    await keeper.terminate();
    keeper = new SanitizedKeeper("ulimit -n 96");
    const wire = await keeper.greeted();
    for (let first = 10; first < 58; first += 8) {
      const batch = range(first, first + 7);
      for (const id of batch) {
        const order = start(id, `e${id}`, ["sh", "-c", "sleep 95 & exit 0"]);
        expect(refusal(await wire.send(order).answer(id)), `start ${id}`).toBe(0);
      }
      const ended = new Set<string>();
      while (ended.size < batch.length) ended.add((await wire.nextEnd())[0]);
      for (const id of batch) {
        expect(refusal(await wire.send(frame(id, 16, str(`e${id}`), u8(0))).answer(id))).toBe(0);
      }
    }
    expect(readdirSync(`/proc/${keeper.process.pid}/fd`).length).toBeGreaterThan(40);
  });

  test("runs as many commands as it may, and refuses the next until one ends", async () => {
    const wire = await keeper.greeted();
    for (let id = 10; id < 522; id++) {
      expect(refusal(await wire.send(start(id, `e${id}`, ["sleep", "92"])).answer(id))).toBe(0);
    }
    expect(refusal(await wire.send(start(600, "more", ["true"])).answer(600))).toBe(LIMIT);
    expect(refusal(await wire.send(start(601, "tty", ["true"], { size: [80, 24] })).answer(601))).toBe(LIMIT);
    wire.send(frame(602, 14, str("e10")));
    expect(await wire.end("e10")).toBe(CANCELLED);
    wire.send(start(603, "more", ["true"]));
    expect(await wire.end("more")).toBe(2);
  });

  test("without a free terminal refuses, until one is closed", async () => {
    await keeper.terminate();
    const few =
      "mount --make-rprivate / && mount -t devpts -o newinstance,ptmxmode=0666,max=2 devpts /dev/pts";
    keeper = new SanitizedKeeper(`exec unshare -m sh -c '${few} && exec "$0"' "$0"`);
    const wire = await keeper.greeted();
    const tty = (id: number) => start(id, `t${id}`, ["sleep", "93"], { size: [80, 24] });
    for (const id of [10, 11]) expect(refusal(await wire.send(tty(id)).answer(id))).toBe(0);
    const third = await wire.send(tty(12)).answer(12);
    expect([refusal(third), third.payload.toString("utf8", 20)]).toEqual([
      LIMIT,
      "too many terminals are open",
    ]);
    wire.send(frame(13, 14, str("t10")));
    expect(await wire.end("t10")).toBe(CANCELLED);
    expect(refusal(await wire.send(frame(14, 10, tty(12).subarray(12))).answer(14))).toBe(0);
  });

  test("keeps supervised commands in every state, and frees their memory", async () => {
    const wire = await keeper.greeted();
    const rows = async (id: number) => {
      const { payload } = await wire.send(frame(id, 19)).answer(id);
      const states = new Map<string, number>();
      for (let at = 4; at < payload.length; ) {
        const end = at + 4 + payload.readUInt32LE(at);
        states.set(payload.toString("utf8", at + 4, end), payload.readUInt8(end));
        at = end + 13;
      }
      expect(states.size).toBe(payload.readUInt32LE());
      return states;
    };
    wire.send(
      keep(2, "runs-1", ["sleep", "96"]),
      keep(3, "waits-1", ["false"], { backoffMs: 60_000 }),
      keep(4, "done-1", ["true"], { on: 1 }),
      keep(5, "stopped-1", ["false"], { backoffMs: 60_000 }),
      keep(6, "vain-1", ["/nothing/here"]),
      keep(7, "dropped-9", ["false"], { max: 0 }),
    );
    const ended = new Set<string>();
    const all = ["waits-1", "done-1", "stopped-1", "vain-4", "dropped-9"];
    while (!all.every((id) => ended.has(id))) ended.add((await wire.nextEnd())[0]);
    wire.send(frame(8, 14, str("stopped-1")), frame(9, 16, str("dropped-9"), u8(0)));
    expect(refusal(await wire.answer(9))).toBe(0);
    expect(await rows(10)).toEqual(
      new Map([
        ["runs-1", 1],
        ["waits-1", 2],
        ["done-1", 3],
        ["stopped-1", 4],
        ["vain-4", 5],
      ]),
    );
    expect(refusal(await wire.send(frame(11, 19, u8(0))).answer(11))).toBe(MALFORMED);
  });

  test.each([
    ["no restart condition", { on: 0 }],
    ["an unknown restart condition", { on: 3 }],
    ["more restarts than allowed", { max: 0xffffffff }],
    ["no back-off", { backoffMs: 0 }],
    ["an unbounded back-off", { backoffMs: 0xffffffff }],
  ])("refuses a restart policy with %s, and supervises nothing", async (_, policy) => {
    const wire = await keeper.greeted();
    expect(refusal(await wire.send(keep(2, "row-1", ["true"], policy)).answer(2))).toBe(MALFORMED);
    expect((await wire.send(frame(3, 15)).answer(3)).payload.readUInt32LE()).toBe(0);
  });

  test("drops waiting requests of a link that is gone", async () => {
    const wire = await keeper.greeted();
    await wire.send(start(2, "quiet", ["sleep", "94"], { stdin: true })).answer(2);
    for (let round = 0; round < 3; round++) {
      const gone = await keeper.greeted();
      for (let id = 10; id < 210; id++) {
        gone.send(frame(id, 11, str("quiet"), u64(0), u32(1_000), u32(60_000)));
      }
      gone.send(frame(300, 12, str("quiet"), u64(0), u8(0), str(Buffer.alloc(1 << 20))));
      gone.send(frame(301, 12, str("quiet"), u64(1 << 20), u8(0), str(Buffer.alloc(1 << 20))));
      await gone.send(ping(302)).answer(302);
      gone.socket.destroy();
    }
    expect((await wire.send(ping(3)).answer(3)).type).toBe(0x8002);
    wire.send(frame(4, 14, str("quiet")));
    expect(await wire.end("quiet")).toBe(CANCELLED);
  });

  test("stays responsive while another link does not read its answers", async () => {
    const greedy = await keeper.greeted();
    greedy.socket.pause();
    greedy.send(start(2, "noise", ["head", "-c", "3000000", "/dev/zero"], { cap: 4 << 20 }));
    const wire = await keeper.greeted();
    await wire.send(start(2, "noise", ["head", "-c", "3000000", "/dev/zero"], { cap: 4 << 20 })).answer(2);
    for (let id = 100; id < 400; id++)
      greedy.send(frame(id, 11, str("noise"), u64(0), u32(1 << 20), u32(1_000)));
    for (let id = 10; id < 60; id++) expect((await wire.send(ping(id)).answer(id)).type).toBe(0x8002);
  });

  test("frees the journal's head at its cap, and reports its new beginning", async () => {
    const wire = await keeper.greeted();
    wire.send(start(2, "long", ["head", "-c", "2000000", "/dev/zero"], { cap: 256 << 10 }));
    expect(await wire.end("long")).toBe(2);
    const read = (id: number, cursor: number) =>
      frame(id, 11, str("long"), u64(cursor), u32(1 << 20), u32(0));
    const below = await wire.send(read(3, 0)).answer(3);
    const floor = Number(below.payload.readBigUInt64LE(8));
    expect(refusal(below)).toBe(13);
    expect(floor).toBeGreaterThan(1_500_000);
    const { payload } = await wire.send(read(4, floor)).answer(4);
    expect(payload.readUInt8(24)).toBe(0);
    expect(payload.subarray(29, 33).toString()).toBe("HFJ1");
    expect(refusal(await wire.send(read(5, floor + 1)).answer(5))).toBe(14);
  });

  test("lets a command finish whose journal can't be written, and reports that", async () => {
    const limited = new SanitizedKeeper("ulimit -f 200");
    const wire = await limited.greeted();
    wire.send(start(2, "full", ["sh", "-c", "head -c 3000000 /dev/zero; exit 5"]));
    expect(await wire.end("full")).toBe(2);
    const { payload } = await wire.send(frame(3, 15)).answer(3);
    expect(payload.toString("latin1")).toContain("journal_full");
    expect(payload.readInt32LE(4 + 4 + 4 + 1 + 4)).toBe(5);
    expect(await limited.terminate(), limited.report).toBe(0);
  });

  test("kills a tree that left session, parent and environment behind, and only then reports it as timed out", async () => {
    const wire = await keeper.greeted();
    const marker = `${process.pid}${Date.now()}`.slice(-9);
    const script = `env -i setsid sh -c '(sleep 7${marker} &) ; sleep 8${marker}' & sleep 9${marker}`;
    wire.send(start(2, "tree", ["sh", "-c", script], { timeoutMs: 500 }));
    expect(await wire.end("tree")).toBe(3);
    expect(execFileSync("ps", ["-eo", "args"]).toString()).not.toContain(marker);
  });

  test.each([
    ["a timeout", { timeoutMs: 1_500 }, 3],
    ["a cancel", {}, CANCELLED],
  ])("ends a process whose first thread has ended with %s", async (_, options, state) => {
    const wire = await keeper.greeted();
    const file = join(keeper.control, "headless");
    await wire.send(start(2, "headless", [fixture("headless"), file], options)).answer(2);
    await until("it has begun", () => existsSync(file) && readFileSync(file, "utf8") !== "");
    const pid = Number(readFileSync(file, "utf8"));
    await until("its first thread has ended", () => / Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8")));
    expect(isAlive(pid)).toBe(true);
    if (state === CANCELLED) wire.send(frame(3, 14, str("headless")));
    expect(await wire.end("headless")).toBe(state);
    expect(isAlive(pid)).toBe(false);
  });

  test("lets no system call of a command change its mark", async () => {
    const wire = await keeper.greeted();
    wire.send(start(2, "shed", [fixture("shed")]));
    expect(await wire.end("shed")).toBe(2);
    const answers = await wire.reported(3, "shed");
    expect([answers.get("read"), answers.get("other")]).toEqual(["done", "done"]);
    for (const [way, answer] of answers) {
      if (way !== "read" && way !== "other") expect([way, answer]).not.toContain("done");
    }
    for (const way of ["setrlimit", "prlimit", "wide", "guess"]) expect(answers.get(way)).toBe("EPERM");
  });

  test("forgets no exec whose tree it is still killing", async () => {
    const wire = await keeper.greeted();
    const marker = `${process.pid}${Date.now()}`.slice(-9);
    wire.send(start(2, "left", ["sh", "-c", `env -i setsid sleep 4${marker} >/dev/null 2>&1 &`]));
    expect(await wire.end("left")).toBe(2);
    wire.send(frame(3, 14, str("left")), frame(4, 16, str("left"), u8(0)));
    expect(refusal(await wire.answer(4))).toBe(EXEC_RUNNING);
    let forgotten = EXEC_RUNNING;
    for (let id = 5; forgotten === EXEC_RUNNING && id < 1_000; id++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      forgotten = refusal(await wire.send(frame(id, 16, str("left"), u8(0))).answer(id));
    }
    expect(forgotten).toBe(0);
    expect(execFileSync("ps", ["-eo", "args"]).toString()).not.toContain(marker);
  });

  test("ends its commands when it is terminated", async () => {
    const wire = await keeper.greeted();
    const marker = `${process.pid}${Date.now()}`.slice(-9);
    await wire.send(start(2, "stay", ["sh", "-c", `setsid sleep 6${marker} & sleep 5${marker}`])).answer(2);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(await keeper.terminate()).toBe(0);
    expect(execFileSync("ps", ["-eo", "args"]).toString()).not.toContain(marker);
  });
});

describe("a child that is kept from running its program", () => {
  let keeper: SanitizedKeeper;
  let wire: Wire;
  let holder: ChildProcess;
  let stuck: number;

  beforeEach(async () => {
    const held = join(directory, "held");
    copyFileSync("/bin/true", held);
    chmodSync(held, 0o755);
    keeper = new SanitizedKeeper();
    wire = await keeper.greeted();
    await wire.send(start(2, "reader", ["cat"], { stdin: true })).answer(2);
    holder = spawn(fixture("hold"), [held], { stdio: ["ignore", "pipe", "inherit"] });
    let printed = "";
    holder.stdout?.on("data", (chunk) => {
      printed += chunk;
    });
    await until("the program is held", () => printed.includes("held"));
    const { payload } = await wire.send(start(3, "stuck", [held])).answer(3);
    stuck = payload.readUInt32LE(1 + 4 + "stuck".length + 1);
    await until("the child waits for its program", () => printed.includes("asked"));
  });

  afterEach(async () => {
    const gone = once(holder, "close");
    holder.kill("SIGKILL");
    await gone;
    expect(await keeper.terminate(), keeper.report).toBe(0);
    expect(keeper.report).toBe("");
  });

  test("keeps nothing open but its stdio and the status pipe", () => {
    expect(readdirSync(`/proc/${stuck}/fd`).sort()).toEqual(["0", "1", "2", "3"]);
  });

  test("protects its copy of the keeper's memory from other commands", async () => {
    wire.send(start(4, "pry", [fixture("pry"), String(stuck)]));
    expect(await wire.end("pry")).toBe(2);
    const answers = await wire.reported(5, "pry");
    expect(answers.size).toBe(6);
    expect(new Set(answers.values())).toEqual(new Set(["EACCES", "EPERM"]));
  });

  test("does not delay the end of another command's stdin", async () => {
    wire.send(frame(4, 12, str("reader"), u64(0), u8(1), str("all")));
    expect(await wire.end("reader")).toBe(2);
    expect(readlinkSync(`/proc/${stuck}/exe`)).toBe(program("keeper"));
  });
});

describe("a porter", () => {
  const porter = (...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(program("porter"), args, { encoding: "utf8" });
    return [status, stdout, stderr];
  };
  const tree = (name: string, script: string) => {
    const path = join(directory, name);
    execFileSync("sh", ["-ec", `mkdir -p "$0/from/top" "$0/to"; cd "$0/from/top"; ${script}`, path]);
    return [join(path, "from"), join(path, "to")] as const;
  };
  const everything = `
    for level in $(seq 70); do
      mkdir a z down; echo $level > a/file; ln a/file z/linked; mkfifo z/pipe; ln -s a z/link; truncate -s 9M z/hole
      cd down
    done`;

  test("copies a deep tree with links and holes", () => {
    const [from, to] = tree("whole", everything);
    const [status, stdout, stderr] = porter("copy", from, to, "100000000", "top");
    expect([status, stderr]).toEqual([0, ""]);
    expect(stdout).toMatch(/^\d{7}\n$/);
    const outline = (cwd: string) =>
      execFileSync("sh", ["-c", "find top -printf '%P %y %n %s %l\\n' | sort"], { cwd, encoding: "utf8" });
    expect(outline(to)).toBe(outline(from));
  });

  test.each([
    ["too much", ["200000", "top"], 4, /exceed its size limit/],
    ["a device", ["100000000", "top"], 1, /device/],
    ["a missing name", ["100000000", "none"], 3, /^$/],
  ])("frees all memory when %s ends a copy", (what, order, code, complaint) => {
    const [from, to] = tree(what, `${everything}; mknod node b 7 0`);
    const [status, stdout, stderr] = porter("copy", from, to, ...order);
    expect([status, stdout]).toEqual([code, ""]);
    expect(stderr).toMatch(complaint);
  });

  test("renames no process with another start time", () => {
    const self = ["rename-keeper", String(process.pid), "1", "old", "new", "host"];
    expect(porter(...self)).toEqual([3, "", ""]);
    expect(porter(...self.with(3, "older"))[0]).toBe(1);
    expect(porter(...self.slice(0, -1))[0]).toBe(2);
  });
});

describe("a spawner", () => {
  const [RUN, KILL, HEARD, OUTPUT, ENDED] = [1, 2, 0x8001, 0x0101, 0x0102];
  const [EXITED, SIGNALLED, NOT_STARTED] = [0, 1, 2];
  const NONSENSE = "invalid request\n";
  let child: ChildProcess;
  let wire: Wire;
  let report: string;
  let ended: Promise<number | null>;

  const open = (...before: string[]) => {
    const argv = [...before, program("porter"), "spawn"];
    child = spawn(argv[0] ?? "", argv.slice(1), { stdio: ["ignore", "ignore", "pipe", "pipe"] });
    wire = new Wire(child.stdio[3] as Socket);
    report = "";
    child.stderr?.on("data", (chunk) => {
      report += chunk;
    });
    ended = new Promise((resolve) => child.once("close", resolve));
  };
  beforeEach(() => open());
  afterEach(async () => {
    wire.socket.destroy();
    await ended;
  });

  const runs = (id: number, argv: string[], keep: [stdout: number, stderr: number] = [0, 0], stdio = "") =>
    frame(id, RUN, list(...argv), list("A=b"), str(stdio), ...keep.map(u32), u8(0));
  const kills = (id: number) => frame(id, KILL);
  const shell = (script: string) => ["/bin/sh", "-c", script];
  /** All messages about a helper, up to its end. */
  const messagesOf = async (id: number) => {
    const output = ["", ""];
    for (;;) {
      const { type, payload } = await wire.answer(id);
      if (type === OUTPUT) output[payload.readUInt8()] += payload.toString("latin1", 5);
      if (type === ENDED) return [payload.readUInt8(), payload.readUInt32LE(1), ...output];
    }
  };
  /** Closes the spawner, and checks that no sanitizer complained. */
  const leave = async (complaint = "") => {
    wire.socket.destroy();
    expect([await ended, report]).toEqual([complaint === "" ? 0 : 1, complaint]);
  };

  test("acknowledges each request, and reports how each helper ended", async () => {
    wire.send(runs(7, shell("echo out; echo err >&2; exit 3"), [10, 10]));
    expect((await wire.answer(7)).type).toBe(HEARD);
    expect(await messagesOf(7)).toEqual([EXITED, 3, "out\n", "err\n"]);
    wire.send(runs(8, ["/nothing/here"]));
    expect(await messagesOf(8)).toEqual([NOT_STARTED, 2, "", ""]);
    wire.send(runs(9, ["/bin/sleep", "94"]), kills(9), kills(1_000));
    expect(await messagesOf(9)).toEqual([SIGNALLED, 9, "", ""]);
    expect((await wire.send(kills(9)).answer(9)).type).toBe(HEARD);
    await leave();
  });

  test("takes requests that come in pieces, and many at a time", async () => {
    for (const byte of runs(1, shell("exit 1"))) wire.send(u8(byte));
    expect(await messagesOf(1)).toEqual([EXITED, 1, "", ""]);
    const ids = range(2, 201);
    wire.send(...ids.map((id) => runs(id, ["/bin/true"])));
    let ends = 0;
    while (ends < ids.length) if ((await wire.next()).type === ENDED) ends++;
    wire.send(runs(1, ["/nothing/here", "x".repeat(MAX_FRAME - 100)]));
    expect(await messagesOf(1)).toEqual([NOT_STARTED, 2, "", ""]);
    await leave();
  });

  const whole = runs(1, ["/nothing/here", "argument"], [1, 1]);
  test.each<[string, ...Buffer[]]>([
    ["of an unknown type", frame(1, 3)],
    ["larger than any", u32(MAX_FRAME + 1), u32(1)],
    ["smaller than its own header", u32(7), u32(1), u32(RUN)],
    ["without a payload", frame(1, RUN)],
    ["without a program", frame(1, RUN, list(), list(), str(""), u32(0), u32(0), u8(0))],
    ["with a list that lies", frame(1, RUN, u32(0xffffffff), str("/bin/true"))],
    ["with a string that lies", frame(1, RUN, u32(1), u32(0xfffffff0), Buffer.from("/bin/true"))],
    ["with a NUL in a string", runs(1, ["/nothing/here", "a\0b"])],
    ["with something left over", frame(1, RUN, whole.subarray(12), u8(0))],
    ["with something missing", frame(1, RUN, whole.subarray(12, -1))],
    ["for a helper that runs", runs(1, ["/bin/sleep", "0.2"]), runs(1, ["/bin/true"])],
    ["to kill, with more than that", frame(1, KILL, u8(0))],
  ])("ends at a request %s", async (_, ...frames) => {
    wire.send(...frames);
    expect([await ended, report]).toEqual([1, NONSENSE]);
  });

  test("ends on random bytes", async () => {
    let state = 1;
    const below = (limit: number) => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return Math.floor((state / 0x1_0000_0000) * limit);
    };
    for (let round = 0; round < 150; round++) {
      const ids = range(1, 12);
      const bytes = Buffer.concat(
        ids.map((id) =>
          below(3) > 0 ? runs(id, ["/nothing/here", "x".repeat(below(50))], [9, 9]) : kills(id),
        ),
      );
      for (let i = below(4); i > 0; i--) bytes[below(bytes.length)] = below(256);
      wire.send(bytes.subarray(0, bytes.length - (below(2) && below(40))));
      wire.socket.end();
      expect([0, 1]).toContain(await ended);
      expect(["", NONSENSE]).toContain(report);
      open();
    }
  });

  test("buffers little for a server that does not read, and delivers everything once it does", async () => {
    wire.send(runs(1, ["/bin/true"]));
    await messagesOf(1);
    const memory = () =>
      Number(/^VmRSS:\s*(\d+) kB$/m.exec(readFileSync(`/proc/${child.pid}/status`, "utf8"))?.[1]);
    const before = memory();
    wire.socket.pause();
    const ids = range(2, 9);
    const SIZE = 3_000_000;
    wire.send(...ids.map((id) => runs(id, ["/usr/bin/head", "-c", `${SIZE}`, "/dev/zero"], [SIZE, 0])));
    wire.send(...range(10, 40).map((id) => runs(id, shell("exit 5"))));
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    const idle = cpuTicks(child.pid);
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(cpuTicks(child.pid) - idle).toBeLessThan(5);
    expect(memory() - before).toBeLessThan(12_000);
    wire.socket.resume();
    const sizes = new Map<number, number>();
    for (let ends = 0; ends < 39; ) {
      const { id, type, payload } = await wire.next();
      if (type === OUTPUT) sizes.set(id, (sizes.get(id) ?? 0) + payload.readUInt32LE(1));
      if (type === ENDED) ends++;
    }
    expect(sizes).toEqual(new Map(ids.map((id) => [id, SIZE])));
    await leave();
  });

  test("reports an end that came while its queue was full", async () => {
    const SIZE = 1_300_000;
    wire.socket.pause();
    const fills = shell(`head -c ${SIZE} /dev/zero; exec sleep 94`);
    wire.send(runs(1, ["/bin/sleep", "0.3"]), runs(2, fills, [SIZE, 0]));
    await new Promise((resolve) => setTimeout(resolve, 500));
    wire.socket.resume();
    expect(await messagesOf(1)).toEqual([EXITED, 0, "", ""]);
    wire.send(kills(2));
    await until("it is gone", async () => (await wire.answer(2)).type === ENDED);
    await leave();
  });

  test("passes on nothing that it inherited", async () => {
    wire.socket.destroy();
    await ended;
    const inherited = 'exec 7</etc/passwd 9>&2; cd /usr; exec "$@"';
    const signals = ["/usr/bin/env", "--block-signal=USR1", "--ignore-signal=USR2,PIPE"];
    open(...shell(inherited), "sh", ...signals);
    const look = ["/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    wire.send(runs(1, ["/bin/sleep", "94"]), runs(2, look, [999, 0]));
    expect((await messagesOf(2))[2]).toBe(`SigBlk:\t${"0".repeat(16)}\nSigIgn:\t${"0".repeat(16)}\n`);
    wire.send(runs(3, ["/usr/bin/env"], [999, 0]));
    expect((await messagesOf(3))[2]).toBe("A=b\n");
    wire.send(runs(4, ["/bin/pwd"], [999, 0]));
    expect((await messagesOf(4))[2]).toBe("/\n");
    const [sleeper] = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, "utf8").split(" ");
    expect(readdirSync(`/proc/${sleeper}/fd`)).toEqual(["0", "1", "2"]);
    await until("it has a death of its own", () => {
      wire.send(kills(1));
      return !isAlive(Number(sleeper));
    });
    await leave();
  });

  test("reports missing descriptors, and continues", async () => {
    wire.socket.destroy();
    await ended;
    open(...shell('ulimit -n 12; exec "$@"'), "sh");
    const EMFILE = 24;
    wire.send(...range(1, 5).map((id) => runs(id, ["/bin/sleep", "0.3"], [1, 1])));
    const ends: number[] = [];
    while (ends.length < 5) {
      const { type, payload } = await wire.next();
      if (type === ENDED) ends.push(payload.readUInt32LE(1));
    }
    expect(ends.filter((number) => number === EMFILE).length).toBeGreaterThan(0);
    expect(ends.filter((number) => number === 0).length).toBeGreaterThan(0);
    wire.send(runs(9, shell("echo on"), [10, 0]));
    expect(await messagesOf(9)).toEqual([EXITED, 0, "on\n", ""]);
    await leave();
  });
});

const words = (line: string) => line.split(" ") as [string, string];

/** CPU time that a process has used, in hundredths of a second. */
function cpuTicks(pid = 0): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8")
    .replace(/^.*\) /, "")
    .split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}
