import { describe, expect, it } from "vitest";
import { releaseOnEnd } from "./release-on-end.ts";

/** A body of three parts that notes what happens to it. */
function noted(happened: string[]) {
  const body = async function* () {
    try {
      yield* ["a", "b", "c"];
    } finally {
      // Whatever the body closes, it closes with something that must still be held.
      await Promise.resolve();
      happened.push("ended");
    }
  };
  return { body: body(), release: () => happened.push("released") };
}

const never = new AbortController().signal;

describe("a body that holds something", () => {
  it("releases it once after the last part", async () => {
    const happened: string[] = [];
    const { body, release } = noted(happened);
    for await (const part of releaseOnEnd(body, release, never)) happened.push(part);
    expect(happened).toEqual(["a", "b", "c", "ended", "released"]);
  });

  it("ends before it is released if its reader stops early", async () => {
    const happened: string[] = [];
    const { body, release } = noted(happened);
    for await (const part of releaseOnEnd(body, release, never)) {
      happened.push(part);
      break;
    }
    expect(happened).toEqual(["a", "ended", "released"]);
  });

  it("is released if its end fails", async () => {
    const happened: string[] = [];
    const body: AsyncIterable<string> = {
      [Symbol.asyncIterator]: () => ({
        next: async () => ({ done: false, value: "a" }),
        return: () => Promise.reject(new Error("it can't be closed")),
      }),
    };
    const parts = releaseOnEnd(body, () => happened.push("released"), never)[Symbol.asyncIterator]();
    await parts.next();
    await expect(parts.return?.()).rejects.toThrow("it can't be closed");
    expect(happened).toEqual(["released"]);
  });

  it("is released at once by an abort, also while a part is awaited", async () => {
    const happened: string[] = [];
    const { promise, reject } = Promise.withResolvers<IteratorResult<string>>();
    const body: AsyncIterable<string> = { [Symbol.asyncIterator]: () => ({ next: () => promise }) };
    const leaving = new AbortController();
    // The release ends the wait, as the end of a file server does.
    const release = () => {
      happened.push("released");
      reject(new Error("closed"));
    };
    const waiting = releaseOnEnd(body, release, leaving.signal)[Symbol.asyncIterator]().next();
    leaving.abort();
    await expect(waiting).rejects.toThrow("closed");
    expect(happened).toEqual(["released"]);
  });
});
