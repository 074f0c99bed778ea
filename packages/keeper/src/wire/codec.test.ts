import type { ExecId } from "@holdfast/contract";
import type { KeeperExec, Stat, SupervisedRun } from "@holdfast/engine";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import * as execs from "./exec-codec.ts";
import { readExec } from "./exec-codec.ts";
import * as files from "./file-codec.ts";
import { readRecords } from "./journal-codec.ts";
import * as links from "./link-codec.ts";
import { readRefusal } from "./refusal.ts";
import { FrameSplitter, Reader, WireError, Writer } from "./wire.ts";

const id = "exe_1" as ExecId;

/** Returns the payload that a keeper would send. */
function payload(encode: (out: Writer) => void): Buffer {
  const out = new Writer();
  out.frame(1, 1, encode);
  let bytes: Buffer = Buffer.alloc(0);
  new FrameSplitter((_id, _type, from) => {
    bytes = from.take(from.left);
  }).feed(Buffer.concat(out.take()), false);
  return bytes;
}

const count = fc.nat(Number.MAX_SAFE_INTEGER);
const small = fc.nat(0xffff_ffff);
const word = fc.string({ maxLength: 20 }).filter((text) => !text.includes("\0"));

const anyExec: fc.Arbitrary<KeeperExec> = fc.record({
  id: fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/) as fc.Arbitrary<ExecId>,
  state: fc.constantFrom("running", "exited", "timed_out", "cancelled"),
  pid: small,
  exitCode: fc.integer({ min: -1, max: 255 }),
  signal: fc.nat(64),
  failure: word,
  startedAt: count,
  endedAt: count,
  journalFloor: count,
  journalEnd: count,
  digest: word,
});

function putExec(out: Writer, exec: KeeperExec): void {
  out.str(exec.id);
  out.u8(["running", "exited", "timed_out", "cancelled"].indexOf(exec.state) + 1);
  out.u32(exec.pid);
  out.u32(exec.exitCode >>> 0);
  out.u32(exec.signal);
  out.str(exec.failure);
  for (const value of [exec.startedAt, exec.endedAt, exec.journalFloor, exec.journalEnd]) out.u64(value);
  out.str(exec.digest);
}

const anyStat: fc.Arbitrary<Stat> = fc.record({
  kind: fc.constantFrom("file", "directory", "symlink", "fifo", "socket", "device"),
  sizeBytes: count,
  mode: fc.nat(0o7777),
  uid: small,
  gid: small,
  modifiedAt: count,
  dev: count.map(String),
  ino: count.map(String),
  target: word,
});

function putStat(out: Writer, stat: Stat): void {
  out.u8(["file", "directory", "symlink", "fifo", "socket", "device"].indexOf(stat.kind) + 1);
  out.u64(stat.sizeBytes);
  for (const value of [stat.mode, stat.uid, stat.gid]) out.u32(value);
  for (const value of [stat.modifiedAt, Number(stat.dev), Number(stat.ino)]) out.u64(value);
  out.str(stat.target);
}

describe("answers", () => {
  test("execs are decoded as sent", () => {
    fc.assert(
      fc.property(fc.array(anyExec, { maxLength: 5 }), (list) => {
        const bytes = payload((out) => {
          out.u32(list.length);
          for (const exec of list) putExec(out, exec);
        });
        expect(execs.listExecs().decode(Reader.of(bytes))).toEqual(list);
      }),
    );
  });

  test("supervised runs are decoded as sent, and only waiting ones have a next time", () => {
    const states = ["running", "waiting", "done", "stopped", "given_up"] as const;
    const read = (rows: readonly (Omit<SupervisedRun, "state"> & { code: number })[]) =>
      execs.listSupervised().decode(
        Reader.of(
          payload((out) => {
            out.u32(rows.length);
            for (const { execId, code, restarts, nextAt } of rows) {
              out.str(execId);
              out.u8(code);
              out.u32(restarts);
              out.u64(nextAt ?? 0);
            }
          }),
        ),
      );
    const rows = states.map((state, index) => {
      const nextAt = state === "waiting" ? 1_700_000_000_000 : null;
      return { execId: `exe-${index}` as ExecId, state, restarts: index, nextAt };
    });
    const coded = rows.map(({ state, ...row }) => ({ ...row, code: states.indexOf(state) + 1 }));
    expect(read(coded)).toEqual(rows);
    const row = { execId: id, code: 1, restarts: 0, nextAt: null };
    for (const wrong of [
      ...[{ code: 0 }, { code: 6 }, { code: 2 }, { nextAt: 5 }],
      ...[{ execId: "../etc" as ExecId }, { execId: "" as ExecId }],
    ]) {
      expect(() => read([{ ...row, ...wrong }]), JSON.stringify(wrong)).toThrow(WireError);
    }
    const many = payload((out) => out.u32(0xffffffff));
    expect(() => execs.listSupervised().decode(Reader.of(many))).toThrow(WireError);
  });

  test("stats and listings are decoded as sent", () => {
    const names = word.filter((name) => name !== "" && !name.includes("/") && !/^\.\.?$/.test(name));
    fc.assert(
      fc.property(fc.array(fc.tuple(names, anyStat), { maxLength: 5 }), (list) => {
        const bytes = payload((out) => {
          out.u32(list.length);
          for (const [name, stat] of list) {
            out.str(name);
            putStat(out, stat);
          }
          out.u8(1);
        });
        const answer = files.readDirectory(1, 5).decode(Reader.of(bytes));
        expect(answer).toEqual({ entries: list.map(([name, stat]) => ({ name, stat })), done: true });
      }),
    );
  });

  test("an entry whose name leads out of its directory is rejected", () => {
    for (const name of ["", ".", "..", "a/b", "/etc"]) {
      const stat = fc.sample(anyStat, 1)[0];
      if (stat === undefined) throw new Error("no sample");
      const bytes = payload((out) => {
        out.u32(1);
        out.str(name);
        putStat(out, stat);
        out.u8(1);
      });
      expect(() => files.readDirectory(1, 5).decode(Reader.of(bytes)), name).toThrow(WireError);
    }
  });

  test("changes are decoded as sent, unless they lead out of the watched path", () => {
    const read = (relative: string, kind = 1) =>
      files.readWatch(1, { max: 1, waitMs: 0 }).decode(
        Reader.of(
          payload((out) => {
            out.u8(1);
            out.u32(1);
            out.u8(kind);
            out.u8(0);
            out.str(relative);
          }),
        ),
      );
    for (const relative of ["", "a", "a/..b/c d"]) {
      expect(read(relative)).toEqual({
        more: true,
        changes: [{ kind: "created", directory: false, relative }],
      });
    }
    for (const relative of ["..", "a/../b", "/a", "a//b", "a/", "./a"]) {
      expect(() => read(relative), relative).toThrow(WireError);
    }
    expect(read("", 4).changes[0]?.kind).toBe("overflow");
    for (const kind of [0, 5]) expect(() => read("", kind)).toThrow(WireError);
  });

  test("a refusal keeps its reason, errno and floor", () => {
    const refusal = (code: number, errno: number, floor: number) =>
      readRefusal(
        Reader.of(
          payload((out) => {
            out.u32(code);
            out.u32(errno);
            out.u64(floor);
            out.str("words");
          }),
        ),
      );
    expect(refusal(11, 2, 0)).toMatchObject({ reason: "system", errno: "ENOENT", message: "words" });
    expect(refusal(13, 0, 4096)).toMatchObject({ reason: "below_floor", floor: 4096, errno: null });
    expect(() => refusal(99, 0, 0)).toThrow(WireError);
  });
});

describe("the journal", () => {
  const record = (kind: number, data: string) => {
    const head = Buffer.alloc(24);
    head.writeUInt32LE(0x314a4648, 0);
    head.writeUInt8(kind, 4);
    head.writeUInt32LE(data.length, 8);
    head.writeBigUInt64LE(1_700_000_000_123_456n, 16);
    return Buffer.concat([head, Buffer.from(data)]);
  };

  test("yields streams, times and cursors, without the exit record", () => {
    const bytes = Buffer.concat([record(1, "out"), record(2, "error"), record(3, "exit")]);
    const { records, next } = readRecords(bytes, 1000);
    expect(records.map((one) => [one.stream, one.cursor, Buffer.from(one.data).toString()])).toEqual([
      ["stdout", 1027, "out"],
      ["stderr", 1056, "error"],
    ]);
    expect(records[0]?.at).toBe(1_700_000_000_123);
    expect(next).toBe(1084);
  });

  test("with a damaged record is a WireError", () => {
    expect(() => readRecords(record(9, "x"), 0)).toThrow(WireError);
    expect(() => readRecords(record(1, "xyz").subarray(0, 26), 0)).toThrow(WireError);
    expect(() => readRecords(Buffer.alloc(24), 0)).toThrow(WireError);
  });
});

test("random bytes give an answer or a WireError in every decoder", () => {
  const decoders: ((from: Reader) => unknown)[] = [
    readExec,
    readRefusal,
    files.readStat,
    (from) => readRecords(from.take(from.left), 0),
    execs.readOutput(id, { cursor: 0, maxBytes: 1, waitMs: 0 }).decode,
    execs.listExecs().decode,
    execs.listSupervised().decode,
    execs.writeStdin(id, { offset: 0, data: new Uint8Array(3), end: false }).decode,
    files.openFile("/").decode,
    files.readFile(1, 0, 10).decode,
    files.readDirectory(1, 10).decode,
    files.openWatch("/", true).decode,
    files.readWatch(1, { max: 10, waitMs: 0 }).decode,
    links.hello({ installation: "i", sandbox: "s", generation: 1 }).decode,
    links.ping(1).decode,
    links.probe().decode,
    links.processes().decode,
  ];
  const anything = fc.oneof(
    fc.uint8Array({ maxLength: 300 }),
    anyExec.map((exec) => payload((out) => putExec(out, exec))),
    anyStat.map((stat) => payload((out) => putStat(out, stat))),
  );
  fc.assert(
    fc.property(anything, fc.constantFrom(...decoders), (bytes, decode) => {
      try {
        decode(Reader.of(bytes));
      } catch (error) {
        expect(error).toBeInstanceOf(WireError);
      }
    }),
    { numRuns: 2000 },
  );
});
