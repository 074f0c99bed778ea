import { describe, expect, it } from "vitest";
import { ConflictError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { aSandbox, drop, json, refuse } from "../testing/faulty-server.ts";

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

  it("polls a sandbox that is not yet deleted less and less often", async () => {
    const box = await bench.box();
    bench.server.answer(json(202, aSandbox({ status: "stopping" })));
    const signal = AbortSignal.timeout(500);
    await expect(box.delete({ signal })).rejects.toMatchObject({ name: "TimeoutError" });
    expect(bench.server.seen.length).toBeGreaterThan(1);
    expect(bench.server.seen.length).toBeLessThan(12);
  });

  it("that did not create its sandbox does not delete it", async () => {
    bench.server.answer(json(200, aSandbox()));
    {
      await using found = await bench.holdfast.sandboxes.get("box");
      await using same = await bench.holdfast.sandboxes.getOrCreate({ name: "box" });
      expect(found.id).toBe(same.id);
    }
    expect(bench.server.seen.map(({ method }) => method)).toEqual(["GET", "POST"]);
  });
});

describe.each(["pause", "resume", "standby", "wake"] as const)("%s", (verb) => {
  const id = "sbx_0000000000000000";

  it("resolves with the new state and updates the handle", async () => {
    const box = await bench.box();
    const checkpoint = { id: "ckp_1", takenAt: "2026-01-01T00:00:00.000Z", sizeBytes: 9 };
    bench.server.answer(json(200, aSandbox({ status: "standby", standbyKind: "files", checkpoint })));
    const info = await box[verb]();
    expect(info).toMatchObject({ status: "standby", standbyKind: "files", checkpoint });
    expect(box.info).toBe(info);
    expect(bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`)).toEqual([
      `POST /v1/sandboxes/${id}/${verb}`,
    ]);
  });

  it("is retried after a lost response, and if the server is unavailable", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(503, "wake_timeout"), json(200, aSandbox({ generation: 2 })));
    expect((await box[verb]()).generation).toBe(2);
    expect(bench.server.seen).toHaveLength(3);
  });

  it("fails with a typed error and is not retried", async () => {
    const box = await bench.box();
    for (const [status, code, Class] of [
      [409, "standby_cancelled", ConflictError],
      [409, "wrong_state", ConflictError],
      [503, "standby_failed", UnavailableError],
    ] as const) {
      bench.server.seen.length = 0;
      bench.server.answer(refuse(status, code, { retryable: true }), json(200, aSandbox()));
      const error = await failure(box[verb]());
      expect(error).toBeInstanceOf(Class);
      expect(error).toMatchObject({ code, retryable: true });
      expect(bench.server.seen).toHaveLength(1);
    }
  });

  it("stops waiting when the signal fires", async () => {
    const box = await bench.box();
    bench.server.answer(() => {});
    await expect(box[verb]({ signal: AbortSignal.timeout(30) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });
});

describe("a sandbox without a handle", () => {
  it("is deleted by its id, and awaited", async () => {
    bench.server.answer(
      json(202, aSandbox({ status: "stopping" })),
      json(200, aSandbox({ status: "terminated" })),
    );
    await bench.holdfast.sandboxes.delete("sbx_0000000000000000");
    expect(bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`)).toEqual([
      "DELETE /v1/sandboxes/sbx_0000000000000000",
      "DELETE /v1/sandboxes/sbx_0000000000000000",
    ]);
  });

  it("counts as deleted if the server reports it gone without a record", async () => {
    bench.server.answer(refuse(410, "sandbox_gone"));
    await bench.holdfast.sandboxes.delete("sbx_0000000000000000");
    bench.server.answer(refuse(404, "sandbox_not_found"));
    expect((await failure(bench.holdfast.sandboxes.delete("sbx_x"))).code).toBe("sandbox_not_found");
  });
});
