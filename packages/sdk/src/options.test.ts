import { describe, expect, it } from "vitest";
import { Holdfast, InvalidRequestError } from "./index.ts";
import { failure, useBench } from "./testing/bench.ts";

const bench = useBench();

/** Options as a program in JavaScript may pass them. */
const misspelt = { timeout: 5 } as object;

describe("an option that a method does not have", () => {
  it("is refused by name, and nothing is sent", async () => {
    const box = await bench.box();
    const run = await bench.run();
    bench.server.seen.length = 0;
    const { holdfast } = bench;
    const calls: Record<string, () => Promise<unknown>> = {
      list: () => holdfast.sandboxes.list(misspelt),
      get: () => holdfast.sandboxes.get("box", misspelt),
      stats: () => holdfast.stats(misspelt),
      cleanup: () => holdfast.cleanup(misspelt),
      follow: () => holdfast.events.follow(misspelt)[Symbol.asyncIterator]().next(),
      events: () => holdfast.events.list(misspelt),
      exec: () => box.exec("true", misspelt),
      start: () => box.execs.start("true", misspelt),
      result: () => run.result(misspelt),
      output: () => run.output(misspelt)[Symbol.asyncIterator]().next(),
      cancel: () => run.cancel(misspelt),
      read: () => box.files.readText("/a", misspelt),
      stat: () => box.files.stat("/a", misspelt),
      write: () => box.files.write("/a", "", misspelt),
      watch: () => box.files.watch("/a", misspelt),
      standby: () => box.standby(misspelt),
      diagnose: () => box.diagnose(misspelt),
      delete: () => box.delete(misspelt),
      checkpoint: () => box.checkpoints.create(misspelt),
      token: () => box.previews.createToken("web", misspelt),
      unpreview: () => box.previews.delete("web", misspelt),
      drives: () => holdfast.drives.list(misspelt),
    };
    for (const [name, call] of Object.entries(calls)) {
      const error = await failure(call());
      expect(error, name).toBeInstanceOf(InvalidRequestError);
      expect(error, name).toMatchObject({ code: "unknown_option", dispatched: "no", retryable: false });
      expect(error.message, name).toContain('"timeout"');
    }
    expect(bench.server.seen).toEqual([]);
  });

  it("of the client itself is refused too", () => {
    const wrong = { URL: "http://x", url: "http://127.0.0.1:1", apiKey: "x" };
    expect(() => new Holdfast(wrong)).toThrow('"URL"');
  });

  it("may be present if it is undefined", async () => {
    const box = await bench.box();
    expect((await box.refresh({ timeout: undefined } as object)).name).toBe("box");
  });
});
