import { KeeperRefusal } from "@holdfast/engine";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { DATA_LIMIT, FRAME_LIMIT } from "./protocol.ts";
import { FrameSplitter, Reader, WireError, Writer } from "./wire.ts";

interface Frame {
  id: number;
  type: number;
  payload: Buffer;
}

const joined = (out: Writer) => Buffer.concat(out.take());

function split(stream: Buffer, cuts: readonly number[], shared: boolean): Frame[] {
  const frames: Frame[] = [];
  const splitter = new FrameSplitter((id, type, payload) => {
    frames.push({ id, type, payload: payload.take(payload.left) });
  });
  let at = 0;
  for (const cut of [...cuts, stream.length].toSorted((a, b) => a - b)) {
    const chunk = Buffer.from(stream.subarray(at, cut));
    splitter.feed(chunk, shared);
    if (shared) chunk.fill(0xaa);
    at = cut;
  }
  return frames;
}

const text = fc.string({ unit: "grapheme", maxLength: 100 }).filter((value) => !value.includes("\0"));

describe("fields", () => {
  test("read back as they were written", () => {
    const values = fc.record({
      byte: fc.nat(255),
      word: fc.nat(0xffff_ffff),
      long: fc.nat(Number.MAX_SAFE_INTEGER),
      flag: fc.boolean(),
      texts: fc.array(text),
      data: fc.uint8Array({ maxLength: 40_000 }),
    });
    fc.assert(
      fc.property(values, (value) => {
        const out = new Writer();
        out.frame(7, 9, () => {
          out.u8(value.byte);
          out.u32(value.word);
          out.u64(value.long);
          out.flag(value.flag);
          out.strs(value.texts);
          out.data([value.data.subarray(0, 7), value.data.subarray(7)]);
        });
        const [frame] = split(joined(out), [], false);
        if (frame === undefined) throw new Error("no frame");
        const from = Reader.of(frame.payload);
        expect([frame.id, frame.type]).toEqual([7, 9]);
        expect([from.u8(), from.u32(), from.u64(), from.flag()]).toEqual([
          value.byte,
          value.word,
          value.long,
          value.flag,
        ]);
        const texts: string[] = [];
        for (let count = from.count(4); count > 0; count--) texts.push(from.str());
        expect(texts).toEqual(value.texts);
        expect(Buffer.compare(from.bytes(), value.data)).toBe(0);
        from.end();
      }),
    );
  });

  test("that are missing, left over or out of range are a WireError", () => {
    expect(() => Reader.of(new Uint8Array(3)).u32()).toThrow(WireError);
    expect(() => Reader.of(Buffer.from("ffffffff00", "hex")).bytes()).toThrow(WireError);
    expect(() => Reader.of(Buffer.from("ffffffff00", "hex")).count(1)).toThrow(WireError);
    expect(() => Reader.of(Buffer.from("ffffffffffffffff", "hex")).u64()).toThrow(WireError);
    expect(() => Reader.of(Buffer.from("02", "hex")).flag()).toThrow(WireError);
    expect(() => Reader.of(new Uint8Array(1)).end()).toThrow(WireError);
  });

  test("a request that can't be sent leaves the frames around it whole", () => {
    const out = new Writer();
    out.frame(1, 2, () => out.str("before"));
    expect(() => out.frame(2, 2, () => out.str("a\0b"))).toThrow(KeeperRefusal);
    expect(() => out.frame(3, 2, () => out.data([new Uint8Array(DATA_LIMIT + 1)]))).toThrow(KeeperRefusal);
    expect(() => out.frame(4, 2, () => out.strs(Array(5).fill("x".repeat(300_000))))).toThrow(KeeperRefusal);
    expect(() => out.frame(5, 2, () => out.u64(-1))).toThrow(KeeperRefusal);
    out.frame(6, 2, () => out.str("after"));
    expect(split(joined(out), [], false).map((frame) => frame.id)).toEqual([1, 6]);
  });
});

describe("the splitter", () => {
  const frames = fc.array(
    fc.record({
      id: fc.nat(0xffff_ffff),
      type: fc.nat(0xffff),
      data: fc.oneof(
        fc.uint8Array({ maxLength: 30 }),
        fc.uint8Array({ minLength: 16_000, maxLength: 20_000 }),
      ),
    }),
    { maxLength: 8 },
  );

  test("finds the same frames however the stream is split, also in reused memory", () => {
    fc.assert(
      fc.property(frames, fc.array(fc.nat(60_000)), fc.boolean(), (sent, cuts, shared) => {
        const out = new Writer();
        for (const frame of sent) out.frame(frame.id, frame.type, () => out.data([frame.data]));
        const stream = joined(out);
        const got = split(
          stream,
          cuts.filter((cut) => cut < stream.length),
          shared,
        );
        expect(got.map(({ id, type }) => ({ id, type }))).toEqual(sent.map(({ id, type }) => ({ id, type })));
        for (const [index, frame] of sent.entries()) {
          const payload = got[index]?.payload ?? Buffer.alloc(0);
          expect(Buffer.compare(Reader.of(payload).bytes(), frame.data)).toBe(0);
        }
      }),
    );
  });

  test("rejects frames larger than the limit or smaller than their header", () => {
    for (const size of [0, 7, FRAME_LIMIT + 1, 0xffff_ffff]) {
      const head = Buffer.alloc(16);
      head.writeUInt32LE(size);
      expect(() => split(head, [], false), `${size}`).toThrow(WireError);
      expect(() => split(head, [1, 2, 3], false), `${size} in pieces`).toThrow(WireError);
    }
  });

  test("reads random bytes as frames or as a WireError", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.array(fc.nat(200)), (bytes, cuts) => {
        const stream = Buffer.from(bytes);
        try {
          split(
            stream,
            cuts.filter((cut) => cut < stream.length),
            true,
          );
        } catch (error) {
          expect(error).toBeInstanceOf(WireError);
        }
      }),
    );
  });
});
