import type { OutputRecord } from "@holdfast/engine";
import fc from "fast-check";
import { expect, test } from "vitest";
import { anExec } from "../testing/double.ts";
import { type Frame, FrameReader } from "../testing/frames.ts";
import { frameOf } from "./frames.ts";
import { ENCODE } from "./output-format.ts";

const offset = fc.integer({ min: 0, max: 2 ** 48 });
const record: fc.Arbitrary<OutputRecord> = fc.oneof(
  fc.record({
    type: fc.constantFrom("stdout" as const, "stderr" as const),
    cursor: offset.map((at) => `exe_1.m8x2k.${at}`),
    at: fc.integer({ min: 0, max: Date.UTC(2500, 0) }),
    data: fc.uint8Array({ maxLength: 10_000, size: "max" }),
  }),
  offset.map((at) => ({ type: "keepalive" as const, cursor: `exe_1.m8x2k.${at}` })),
  fc.string({ unit: "grapheme" }).map((stdout) => ({
    type: "end" as const,
    cursor: "exe_1.m8x2k.7",
    exec: anExec({ stdout }),
  })),
);

const expected = (given: OutputRecord): Frame =>
  "data" in given
    ? {
        kind: given.type,
        offset: Number(given.cursor.split(".").at(-1)),
        timeUs: given.at * 1_000,
        data: Buffer.from(given.data),
      }
    : { kind: "json", record: given };

test("frames contain their payload, wherever the transport cuts", () => {
  fc.assert(
    fc.property(fc.array(record, { maxLength: 20 }), fc.array(fc.nat({ max: 6_000 })), (records, cuts) => {
      let bytes = Buffer.concat(records.flatMap(frameOf));
      const reader = new FrameReader();
      const frames: Frame[] = [];
      for (const cut of cuts) {
        frames.push(...reader.push(bytes.subarray(0, cut)));
        bytes = bytes.subarray(cut);
      }
      frames.push(...reader.push(bytes));
      expect(frames).toEqual(records.map(expected));
      expect(reader.pending).toBe(0);
    }),
  );
});

test("a payload is passed on without copying", () => {
  const data = new Uint8Array(65_536);
  expect(frameOf({ type: "stdout", cursor: "1", at: 0, data })[1]).toBe(data);
});

test.each([Number.NaN, Number.POSITIVE_INFINITY, -1, 2 ** 60])(
  "an invalid journaled time (%d) does not break the stream",
  (at) => {
    for (const encode of Object.values(ENCODE)) {
      expect(encode({ type: "stdout", cursor: "1", at, data: new Uint8Array(1) })).not.toEqual([]);
    }
  },
);
