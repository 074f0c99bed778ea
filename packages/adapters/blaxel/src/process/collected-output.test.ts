import { expect, test } from "vitest";
import { Collector } from "./collected-output.ts";

const bytes = (...values: number[]) => Uint8Array.from(values);

test("characters split across records are joined, separately for each stream", () => {
  const collector = new Collector();
  const pieces = [
    collector.take("stdout", bytes(0xe2, 0x82)),
    collector.take("stderr", bytes(0x6f, 0x6b)),
    collector.take("stdout", bytes(0xac)),
    collector.take("stderr", bytes(0xc3)),
  ];
  expect(pieces).toEqual(["", "ok", "€", ""]);
  expect(collector.finish(false)).toEqual({
    ...{ stdout: "€", stderr: "ok\ufffd", logs: "ok€\ufffd" },
    truncated: false,
  });
});

test("output beyond the limit is still passed on, and reported as truncated", () => {
  const collector = new Collector(4);
  const texts = ["abc", "def", "g"].map((text) => collector.take("stdout", Buffer.from(text)));
  expect(texts.join("")).toBe("abcdefg");
  expect(collector.finish(false)).toEqual({ stdout: "abc", stderr: "", logs: "abc", truncated: true });
  expect(new Collector().finish(true).truncated).toBe(true);
});
