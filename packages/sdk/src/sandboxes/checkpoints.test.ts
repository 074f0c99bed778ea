import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, Holdfast, NotFoundError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import {
  type Answer,
  aCheckpoint,
  anError,
  aSandbox,
  drop,
  json,
  lines,
  made,
  refuse,
  step,
} from "../testing/faulty-server.ts";

const bench = useBench();
const base = "/v1/sandboxes/sbx_0000000000000000/checkpoints";
const id = "ckp_0000000000000000";
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`);
const bodies = () => bench.server.seen.map(({ body }) => JSON.parse(String(body)) as unknown);
const nothing: Answer = (_, response) => void response.writeHead(204).end();
const late =
  (answer: Answer): Answer =>
  async (request, response) => {
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    return answer(request, response);
  };
/** A client with short timeouts. */
async function hastyBox() {
  const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 500 });
  bench.server.answer(json(200, aSandbox()));
  const box = await hasty.sandboxes.get("box");
  bench.server.seen.length = 0;
  return { box, [Symbol.dispose]: () => hasty.close() };
}

describe("creating a checkpoint", () => {
  it("resolves with the checkpoint, under the requested or a generated name", async () => {
    const box = await bench.box();
    bench.server.answer(json(201, aCheckpoint()));
    expect(await box.checkpoints.create({ name: "before" })).toEqual(aCheckpoint());
    expect(await box.checkpoints.create()).toEqual(aCheckpoint());
    expect(requests()).toEqual([`POST ${base}`, `POST ${base}`]);
    expect(bodies()).toEqual([{ name: "before" }, {}]);
  });

  it("has a much longer timeout than other calls", async () => {
    using hasty = await hastyBox();
    bench.server.answer(late(json(201, aCheckpoint())));
    expect(await hasty.box.checkpoints.create({ name: "before" })).toEqual(aCheckpoint());
    expect(bench.server.seen).toHaveLength(1);
  });

  it("without a name is not retried after a lost response, because each request would create one", async () => {
    const box = await bench.box();
    for (const [answer, code] of [
      [drop, "connection"],
      [refuse(503, "shutting_down", { dispatched: "unknown" }), "shutting_down"],
      [
        (_: unknown, response: Parameters<Answer>[1]) => void response.writeHead(504).end(),
        "unexpected_response",
      ],
    ] as const) {
      bench.server.seen.length = 0;
      bench.server.answer(answer, json(201, aCheckpoint()));
      expect(await failure(box.checkpoints.create())).toMatchObject({ code, dispatched: "unknown" });
      expect(bench.server.seen).toHaveLength(1);
    }
  });

  it("with a name is retried, because a name is never used twice", async () => {
    const box = await bench.box();
    bench.server.answer(
      drop,
      refuse(503, "shutting_down", { dispatched: "unknown" }),
      json(201, aCheckpoint()),
    );
    expect(await box.checkpoints.create({ name: "before" })).toEqual(aCheckpoint());
    expect(bodies()).toEqual(Array(3).fill({ name: "before" }));
  });

  it("whose name is taken reports whether an earlier attempt may have taken it", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(409, "checkpoint_exists"));
    const taken = await failure(box.checkpoints.create({ name: "before" }));
    expect(taken).toBeInstanceOf(ConflictError);
    expect(taken).toMatchObject({ code: "checkpoint_exists", dispatched: "no" });
    bench.server.answer(drop, refuse(409, "checkpoint_exists"));
    const perhaps = await failure(box.checkpoints.create({ name: "before" }));
    expect(perhaps).toMatchObject({ code: "checkpoint_exists", dispatched: "unknown" });
    expect(perhaps.hint).toContain("An earlier attempt");
  });

  it("is retried, with or without a name, if the server is unavailable and nothing was started", async () => {
    const box = await bench.box();
    for (const name of [undefined, "before"]) {
      bench.server.seen.length = 0;
      bench.server.answer(
        refuse(503, "starting"),
        refuse(503, "wake_timeout"),
        refuse(429, "too_many_held", { retryable: true }),
        json(201, aCheckpoint()),
      );
      expect(await box.checkpoints.create({ name })).toEqual(aCheckpoint());
      expect(bench.server.seen).toHaveLength(4);
    }
  });

  it("fails with a typed error and is not retried", async () => {
    const box = await bench.box();
    const cause = { code: "dump_failed", message: "a socket" };
    for (const [status, code, Class] of [
      [503, "checkpoint_failed", UnavailableError],
      [507, "disk_full", UnavailableError],
      [429, "too_many_checkpoints", UnavailableError],
      [409, "wrong_state", ConflictError],
    ] as const) {
      for (const name of [undefined, "before"]) {
        bench.server.seen.length = 0;
        bench.server.answer(refuse(status, code, { retryable: true, cause }), json(201, aCheckpoint()));
        const error = await failure(box.checkpoints.create({ name }));
        expect(error).toBeInstanceOf(Class);
        expect(error).toMatchObject({ code, retryable: true, cause });
        expect(bench.server.seen).toHaveLength(1);
      }
    }
  });
});

describe("the checkpoints of a sandbox", () => {
  it("are listed, with a retry after a lost response", async () => {
    const box = await bench.box();
    const items = [aCheckpoint(), aCheckpoint({ id: "ckp_1111111111111111", name: "after", kind: "files" })];
    bench.server.answer(drop, json(200, { items, nextCursor: null }));
    expect(await box.checkpoints.list()).toEqual(items);
    expect(requests()).toEqual([`GET ${base}`, `GET ${base}`]);
  });

  it("are deleted by id or name", async () => {
    const box = await bench.box();
    bench.server.answer(nothing);
    expect(await box.checkpoints.delete(id)).toBeUndefined();
    expect(await box.checkpoints.delete("before")).toBeUndefined();
    expect(await box.checkpoints.delete("a/b")).toBeUndefined();
    expect(requests()).toEqual([`DELETE ${base}/${id}`, `DELETE ${base}/before`, `DELETE ${base}/a%2Fb`]);
  });

  it("have a longer timeout to delete, because they may be queued behind one being created", async () => {
    using hasty = await hastyBox();
    bench.server.answer(late(nothing));
    await hasty.box.checkpoints.delete(id);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("count as deleted by id if an earlier attempt may have arrived, and only then", async () => {
    const box = await bench.box();
    bench.server.answer(drop, refuse(404, "checkpoint_not_found"));
    await box.checkpoints.delete(id);
    expect(bench.server.seen).toHaveLength(2);
    bench.server.answer(refuse(404, "checkpoint_not_found"));
    expect(await failure(box.checkpoints.delete(id))).toBeInstanceOf(NotFoundError);
    bench.server.answer(drop, refuse(404, "sandbox_not_found"));
    expect((await failure(box.checkpoints.delete(id))).code).toBe("sandbox_not_found");
  });

  it("are not deleted twice by name, because the name may be reused", async () => {
    const box = await bench.box();
    bench.server.answer(drop, nothing);
    const error = await failure(box.checkpoints.delete("before"));
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error.dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(1);
  });

  it("stop waiting when the signal fires", async () => {
    const box = await bench.box();
    bench.server.answer(() => {});
    const soon = () => ({ signal: AbortSignal.timeout(30) });
    for (const call of [
      () => box.checkpoints.create(soon()),
      () => box.checkpoints.create({ name: "before", ...soon() }),
      () => box.checkpoints.list(soon()),
      () => box.checkpoints.delete(id, soon()),
      () => box.checkpoints.delete("before", soon()),
    ])
      await expect(call()).rejects.toMatchObject({ name: "TimeoutError" });
    expect(bench.server.seen).toHaveLength(5);
  });
});

describe("a fork", () => {
  const forkedFrom = { sandboxId: "sbx_1111111111111111", checkpointId: id, execs: { exe_2: "exe_1" } };

  it("is created like any sandbox, reports its steps, and knows its origin", async () => {
    const steps: string[] = [];
    bench.server.answer(
      lines([step("accepted"), step("files")], "cut"),
      lines([step("proving"), made({ forkedFrom })]),
      json(200, aSandbox({ status: "terminated" })),
    );
    {
      await using fork = await bench.holdfast.sandboxes.create({
        fromCheckpoint: id,
        labels: { try: "2" },
        onProgress: ({ step: name }) => steps.push(name),
      });
      expect(fork.info.forkedFrom).toEqual(forkedFrom);
    }
    expect(steps).toEqual(["accepted", "files", "proving"]);
    expect(requests()).toEqual([
      "POST /v1/sandboxes",
      "POST /v1/sandboxes",
      "DELETE /v1/sandboxes/sbx_0000000000000000",
    ]);
    expect([JSON.parse(String(bench.server.seen[0]?.body))]).toEqual([
      { fromCheckpoint: id, labels: { try: "2" } },
    ]);
  });

  it("that fails is a typed error without a retry, in a stream as in a plain response", async () => {
    for (const [status, code, Class] of [
      [404, "checkpoint_not_found", NotFoundError],
      [409, "checkpoint_unusable", ConflictError],
      [507, "disk_full", UnavailableError],
    ] as const) {
      const streamed = lines([step("accepted"), { type: "error", error: anError(status, code) }]);
      for (const answer of [refuse(status, code), streamed]) {
        bench.server.seen.length = 0;
        bench.server.answer(answer, lines([made()]));
        const error = await failure(bench.holdfast.sandboxes.create({ fromCheckpoint: id }));
        expect(error).toBeInstanceOf(Class);
        expect(error).toMatchObject({ code, status });
        expect(bench.server.seen).toHaveLength(1);
      }
    }
  });
});
