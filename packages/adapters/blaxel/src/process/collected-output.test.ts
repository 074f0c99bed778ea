import { expect, test } from "vitest";
import { Collector } from "./collected-output.ts";

const bytes = (...values: number[]) => Uint8Array.from(values);

test("characters that are cut by a record's end are put together, for each stream by itself", () => {
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

test("what is too much to keep is told all the same, and that it is missing is said", () => {
  const collector = new Collector(4);
  const told = ["abc", "def", "g"].map((text) => collector.take("stdout", Buffer.from(text)));
  expect(told.join("")).toBe("abcdefg");
  expect(collector.finish(false)).toEqual({ stdout: "abc", stderr: "", logs: "abc", truncated: true });
  expect(new Collector().finish(true).truncated).toBe(true);
});
