import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { frame, greeting, type Item, keepalive } from "../testing/faulty-server.ts";
import { FrameDecoder } from "./frames.ts";

const items: fc.Arbitrary<Item> = fc.oneof(
  fc.record({
    type: fc.constantFrom("stdout" as const, "stderr" as const),
    offset: fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
    data: fc.uint8Array({ maxLength: 300 }),
  }),
  fc.integer({ min: 0, max: 1e12 }).map(keepalive),
  fc.string().map((message) => greeting({ cause: { code: "x", message } })),
);

/** Splits the bytes at the given positions. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...new Set(places.map((place) => place % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...ends].map((begin, at) => bytes.subarray(begin, ends[at] ?? bytes.length));
}

const comparable = (item: object) =>
  "data" in item ? { ...item, timeUs: undefined, data: Buffer.from(item.data as Uint8Array) } : item;

describe("a stream of frames", () => {
  it("decodes the same however it is split", () => {
    fc.assert(
      fc.property(
        fc.array(items, { maxLength: 12 }),
        fc.array(fc.nat(), { maxLength: 20 }),
        (sent, places) => {
          const decoder = new FrameDecoder();
          const pieces = cut(Buffer.concat(sent.map(frame)), places);
          const got = pieces.flatMap((piece) => decoder.push(piece));
          expect(got.map(comparable)).toEqual(sent.map(comparable));
        },
      ),
    );
  });

  it("yields a frame with its last byte and not before", () => {
    const bytes = frame({ type: "stderr", offset: 2 ** 40 + 7, data: Buffer.from("late") });
    const decoder = new FrameDecoder();
    for (const byte of bytes.subarray(0, -1)) expect(decoder.push(Uint8Array.of(byte))).toEqual([]);
    expect(decoder.push(bytes.subarray(-1))).toMatchObject([{ type: "stderr", offset: 2 ** 40 + 7 }]);
  });

  it("is rejected if invalid, before memory is allocated", () => {
    for (const bytes of ["<html>", "HTTP/", Buffer.of(1, 255, 255, 255, 255)]) {
      expect(() => new FrameDecoder().push(Buffer.from(bytes))).toThrow("does not consist of frames");
    }
  });
});
