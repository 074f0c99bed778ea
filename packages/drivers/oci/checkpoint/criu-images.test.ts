import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { deviceName, lockedFiles } from "../drives/drive-locks.ts";
import { removeComparedFields } from "./criu-images.ts";

const word = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const varint = (value: number): number[] =>
  value < 0x80 ? [value] : [(value & 0x7f) | 0x80, ...varint(value >>> 7)];
const number = (field: number, value: number) => Buffer.from([...varint(field << 3), ...varint(value)]);
const bytes = (field: number, content: Buffer) =>
  Buffer.concat([Buffer.from([...varint((field << 3) | 2), ...varint(content.length)]), content]);

const file = (name: string, size: number) =>
  Buffer.concat([
    number(1, 7),
    bytes(5, Buffer.from([8, 0])),
    bytes(6, Buffer.from(name)),
    number(8, size),
    number(10, 33188),
  ]);
const without = (name: string) =>
  Buffer.concat([number(1, 7), bytes(5, Buffer.from([8, 0])), bytes(6, Buffer.from(name))]);
const entry = (regular: Buffer) => Buffer.concat([number(1, 1), number(2, 300), bytes(3, regular)]);
const image = (...entries: Buffer[]) =>
  Buffer.concat([
    word(0x54564319),
    word(0x56303138),
    ...entries.flatMap((each) => [word(each.length), each]),
  ]);
const isShared = (name: string) => name.startsWith("/w/");

describe("an image of open files", () => {
  test("loses the size and mode of shared files, and keeps everything else", () => {
    const other = Buffer.concat([number(1, 4), bytes(9, Buffer.from("a pipe"))]);
    const before = image(entry(file("/w/a", 70_000)), other, entry(file("/etc/b", 3)));
    const after = image(entry(without("/w/a")), other, entry(file("/etc/b", 3)));
    expect(removeComparedFields(before, isShared)).toEqual(after);
    expect(removeComparedFields(after, isShared)).toEqual(after);
  });

  test("is parsed and written again without loss, for any names and sizes", () => {
    const files = fc.array(fc.tuple(fc.string({ maxLength: 300 }), fc.nat()), { maxLength: 20 });
    fc.assert(
      fc.property(files, (all) => {
        const whole = image(...all.map(([name, size]) => entry(file(name, size))));
        expect(removeComparedFields(whole, () => false)).toEqual(whole);
        const bare = image(...all.map(([name]) => entry(without(name))));
        expect(removeComparedFields(whole, () => true)).toEqual(bare);
      }),
    );
  });

  test("is refused if it has another format or is truncated", () => {
    const whole = image(entry(file("/w/a", 1)));
    for (let size = 0; size < whole.length; size += 1) {
      if (size === 8) continue;
      expect(() => removeComparedFields(whole.subarray(0, size), isShared)).toThrow("image of open files");
    }
    expect(() => removeComparedFields(Buffer.alloc(100), isShared)).toThrow("unexpected format");
  });
});

describe("the kernel's list of locks", () => {
  test("is parsed into the locked files, as device and inode", () => {
    const list = [
      "1: POSIX  ADVISORY  WRITE 4711 fe:00:2359312 0 EOF",
      "2: FLOCK  ADVISORY  WRITE 812 07:1a:12 0 EOF",
      "2: -> FLOCK  ADVISORY  WRITE 813 07:1a:12 0 EOF",
      "3: OFDLCK ADVISORY  READ  -1 fe:00:99 0 EOF",
      "",
    ].join("\n");
    expect(lockedFiles(list)).toEqual(["fe:00:2359312", "07:1a:12", "07:1a:12", "fe:00:99"]);
    expect(lockedFiles("lock:\t1: FLOCK  ADVISORY  WRITE 359 00:2e:5 0 EOF")).toEqual(["00:2e:5"]);
    expect(deviceName(0x071an)).toBe("07:1a");
    expect(deviceName((8n << 8n) | 1n)).toBe("08:01");
  });
});
