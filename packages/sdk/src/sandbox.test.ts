import { describe, expect, it } from "vitest";
import { useBench } from "./testing/bench.ts";
import { aSandbox, json } from "./testing/faulty-server.ts";

const bench = useBench();

describe("a handle", () => {
  it("that created its sandbox deletes it when disposed, and waits until it is gone", async () => {
    bench.server.answer(
      json(201, aSandbox()),
      json(202, aSandbox({ status: "stopping" })),
      json(200, aSandbox({ status: "terminated" })),
    );
    {
      await using box = await bench.holdfast.sandboxes.create();
      expect(box.name).toBe("box");
    }
    expect(bench.server.seen.map(({ method }) => method)).toEqual(["POST", "DELETE", "DELETE"]);
  });

  it("asks for the end of a sandbox that stays less and less often", async () => {
    const box = await bench.box();
    bench.server.answer(json(202, aSandbox({ status: "stopping" })));
    const signal = AbortSignal.timeout(500);
    await expect(box.delete({ signal })).rejects.toMatchObject({ name: "TimeoutError" });
    expect(bench.server.seen.length).toBeGreaterThan(1);
    expect(bench.server.seen.length).toBeLessThan(12);
  });

  it("that found its sandbox leaves it alone", async () => {
    bench.server.answer(json(200, aSandbox()));
    {
      await using found = await bench.holdfast.sandboxes.get("box");
      await using same = await bench.holdfast.sandboxes.getOrCreate({ name: "box" });
      expect(found.id).toBe(same.id);
    }
    expect(bench.server.seen.map(({ method }) => method)).toEqual(["GET", "POST"]);
  });
});
