import { describe, expect, it } from "vitest";
import { batchesOf } from "./batches.ts";

const tick = () => new Promise((resolve) => setImmediate(resolve));

async function* letters(count: number, onRead: () => void = () => {}) {
  for (let at = 0; at < count; at++) {
    onRead();
    yield String.fromCharCode(97 + (at % 26));
  }
}

const text = (data: Uint8Array) => Buffer.from(data).toString();

describe("batches of a stream", () => {
  it("combine pieces that arrive while the previous batch is processed, in order", async () => {
    const got: string[] = [];
    for await (const { data } of batchesOf(letters(10), 100)) {
      got.push(text(data));
      await tick();
    }
    expect(got.join("")).toBe("abcdefghij");
    expect(got.length).toBeLessThan(4);
  });

  it("never exceed the limit, nor does the read-ahead", async () => {
    let read = 0;
    const batches = batchesOf(
      letters(1_000, () => {
        read += 1;
      }),
      16,
    );
    const first = await batches.next();
    for (let at = 0; at < 20; at++) await tick();
    expect(first.value?.data.length).toBeLessThanOrEqual(16);
    expect(read).toBeLessThanOrEqual(16 + 16 + 1);
    let size = first.value?.data.length ?? 0;
    for await (const { data } of batches) {
      expect(data.length).toBeLessThanOrEqual(16);
      size += data.length;
    }
    expect(size).toBe(1_000);
  });

  it("mark the last batch if it is known", async () => {
    const flags = async (content: Parameters<typeof batchesOf>[0]) => {
      const got: boolean[] = [];
      for await (const { isLast } of batchesOf(content, 4)) got.push(isLast);
      return got;
    };
    expect(await flags("abcdef")).toEqual([false, true]);
    expect(await flags("")).toEqual([]);
    expect((await flags(letters(9))).slice(0, -1)).not.toContain(true);
  });

  it("throw a failure of the source after all data before it", async () => {
    async function* broken() {
      yield "one";
      throw new Error("no more");
    }
    const got: string[] = [];
    const reading = (async () => {
      for await (const { data } of batchesOf(broken(), 100)) got.push(text(data));
    })();
    await expect(reading).rejects.toThrow("no more");
    expect(got).toEqual(["one"]);
  });

  it("close a source that is not read to its end", async () => {
    let closed = false;
    async function* endless() {
      try {
        for (;;) yield "x";
      } finally {
        closed = true;
      }
    }
    for await (const _ of batchesOf(endless(), 10)) break;
    await tick();
    expect(closed).toBe(true);
  });
});
