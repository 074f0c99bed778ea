import { HoldfastError, type Numbers } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { gathered } from "../testing/archives.ts";
import { codeOf, eventually, signal, testEngine } from "../testing/test-engine.ts";

const WHOLE = { offset: 0, length: null, wake: true };

/** A sandbox with one file, whose reads stay open until their body is read. */
async function withFile(numbers: Partial<Numbers>) {
  const all = await testEngine(numbers);
  const { sandbox } = await all.create("box");
  async function* body() {
    yield Buffer.from("data");
  }
  await all.engine.files.write("box", "/a", body(), { parents: true }, signal);
  const read = () => all.engine.files.read("box", "/a", WHOLE, signal);
  return { ...all, id: sandbox.id, read };
}

describe("file calls beyond the places of a keeper", () => {
  it("wait until an open file is closed", async () => {
    const { read } = await withFile({ fileCallsPerSandbox: 2 });
    const open = [await read(), await read()];
    let isServed = false;
    const third = read().then((result) => {
      isServed = true;
      return result;
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(isServed).toBe(false);
    for (const { body } of open) await gathered(body);
    expect((await gathered((await third).body)).toString()).toBe("data");
  });

  it("are refused beyond the limit of waiting calls, with what is short and that nothing was done", async () => {
    const { read, id } = await withFile({ fileCallsPerSandbox: 1, fileCallsWaiting: 1 });
    const first = await read();
    const second = read();
    const error = await read().catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(HoldfastError);
    expect(error).toMatchObject({ code: "too_many_file_calls", dispatched: "no", sandboxId: id });
    expect(String(error)).toContain("1 files of the sandbox are open already");
    await gathered(first.body);
    await gathered((await second).body);
  });

  it("are refused if no place becomes free in time, and the place is not lost", async () => {
    const { read } = await withFile({ fileCallsPerSandbox: 1, fileCallWaitMs: 50 });
    const first = await read();
    expect(await codeOf(read())).toBe("too_many_file_calls");
    await gathered(first.body);
    await gathered((await read()).body);
  });

  it("leave a proof its places", async () => {
    const { engine, read } = await withFile({ fileCallsPerSandbox: 1, fileCallWaitMs: 60_000 });
    const open = await read();
    const waiting = read();
    expect(await engine.sandboxes.verify("box", signal)).toMatchObject({ ok: true });
    await gathered(open.body);
    await gathered((await waiting).body);
  });

  it("give their place back when their caller leaves before the body is read", async () => {
    const { engine, read } = await withFile({ fileCallsPerSandbox: 1, fileCallWaitMs: 60_000 });
    const caller = new AbortController();
    await engine.files.read("box", "/a", WHOLE, caller.signal);
    const next = read();
    caller.abort(new Error("the caller left"));
    await eventually(async () => gathered((await next).body));
  });
});
