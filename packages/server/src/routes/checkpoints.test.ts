import {
  type CreateCheckpoint,
  type CreateSandbox,
  ERRORS,
  type ErrorCode,
  HoldfastError,
} from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { aCheckpoint, aSandbox, json, serve, until } from "../testing/double.ts";

const url = "/v1/sandboxes/demo/checkpoints";
const untilAborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const refusal = (code: ErrorCode) => {
  const cause = new HoldfastError("disk_full", { message: "2 MB are free." });
  return () => Promise.reject(new HoldfastError(code, { sandboxId: "sbx_a", cause }));
};

describe("making a checkpoint", () => {
  test("answers 201 with it once it is kept, and not before", async () => {
    const kept = Promise.withResolvers<void>();
    const asked: unknown[] = [];
    const create = async (ref: string, input: CreateCheckpoint) => {
      asked.push([ref, input]);
      await kept.promise;
      return aCheckpoint();
    };
    await using server = await serve({ checkpoints: { create } });
    let isAnswered = false;
    const call = server.fetch(url, json({ name: "before" })).finally(() => {
      isAnswered = true;
    });
    await until(() => asked.length === 1);
    expect(isAnswered).toBe(false);
    kept.resolve();
    const response = await call;
    expect(response.status).toBe(201);
    expect(await response.json()).toEqual(aCheckpoint());
    expect(asked).toEqual([["demo", { name: "before" }]]);
  });

  test("needs no name, and no body", async () => {
    const inputs: unknown[] = [];
    const create = async (_ref: string, input: CreateCheckpoint) => {
      inputs.push(input);
      return aCheckpoint();
    };
    await using server = await serve({ checkpoints: { create } });
    const bare = { method: "POST" };
    const empty = { method: "POST", headers: { "content-type": "application/json" } };
    for (const init of [bare, empty, json({})]) expect((await server.fetch(url, init)).status).toBe(201);
    expect(inputs).toEqual([{}, {}, {}]);
  });

  test("is refused here where the request makes no sense, and the engine hears nothing of it", async () => {
    const create = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ checkpoints: { create } }, { numbers: { bodyLimitBytes: 100 } });
    const wrong = [{ name: "" }, { name: "Not A Label" }, { name: "ckp_0" }, { name: 1 }, { nam: "a" }, []];
    for (const body of wrong) {
      const response = await server.fetch(url, json(body));
      expect([body, response.status]).toEqual([body, 400]);
      expect(await response.json()).toMatchObject({
        error: { code: "invalid_request", operation: "createCheckpoint", dispatched: "no" },
      });
    }
    const text = { method: "POST", headers: { "content-type": "text/plain" }, body: "before" };
    expect((await server.fetch(url, text)).status).toBe(415);
    expect((await server.fetch(url, json({ name: "a".repeat(200) }))).status).toBe(413);
  });

  test.each<ErrorCode>([
    "checkpoint_exists",
    "too_many_checkpoints",
    "checkpoint_failed",
    "disk_full",
    "wrong_state",
    "wake_timeout",
    "sandbox_not_found",
  ])("that can't be done (%s) says so by code, with the cause", async (code) => {
    await using server = await serve({ checkpoints: { create: refusal(code) } });
    const response = await server.fetch(url, json({ name: "before" }));
    const { status, retryable } = ERRORS[code];
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: {
        ...{ code, retryable, sandboxId: "sbx_a", operation: "createCheckpoint", dispatched: "no" },
        cause: { code: "disk_full", message: "2 MB are free." },
      },
    });
    expect(response.headers.has("retry-after")).toBe([503, 507].includes(status));
  });

  test("of which the server's shutdown cuts the wait may have been made, and says so", async () => {
    let waits = false;
    const create = (_ref: string, _input: CreateCheckpoint, signal: AbortSignal) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ checkpoints: { create } });
    const call = server.fetch(url, json({}));
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown", retryable: true },
    });
    await closed;
  });

  test("is not waited for by a caller that has left, and that is no error of ours", async () => {
    let given: AbortSignal | undefined;
    const create = (_ref: string, _input: CreateCheckpoint, signal: AbortSignal) => {
      given = signal;
      return untilAborted(signal);
    };
    await using server = await serve({ checkpoints: { create } });
    const leaving = new AbortController();
    const call = server.fetch(url, { ...json({}), signal: leaving.signal });
    await until(() => given !== undefined);
    leaving.abort();
    await expect(call).rejects.toThrow();
    await until(() => given?.aborted === true);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });
});

describe("the checkpoints of a sandbox", () => {
  test("are listed as they are", async () => {
    const found = { items: [aCheckpoint(), aCheckpoint({ name: "after", kind: "files" })], nextCursor: null };
    const refs: string[] = [];
    const list = async (ref: string) => {
      refs.push(ref);
      return found;
    };
    await using server = await serve({ checkpoints: { list } });
    const response = await server.fetch(url);
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(found);
    expect(refs).toEqual(["demo"]);
  });

  test.each<ErrorCode>(["sandbox_not_found", "sandbox_gone", "pending_cleanup"])(
    "of a sandbox that is not there (%s) are told by its error",
    async (code) => {
      await using server = await serve({ checkpoints: { list: refusal(code) } });
      const response = await server.fetch(url);
      expect(response.status).toBe(ERRORS[code].status);
      expect(await response.json()).toMatchObject({ error: { code, operation: "listCheckpoints" } });
    },
  );

  test("need a key, as all else", async () => {
    await using server = await serve({});
    for (const [method, path] of [
      ["GET", url],
      ["POST", url],
      ["DELETE", `${url}/before`],
    ] as const) {
      const response = await fetch(server.url + path, { method });
      expect(response.status).toBe(401);
      await response.body?.cancel();
    }
  });

  test("have a path on which other methods are refused by name", async () => {
    await using server = await serve({});
    const response = await server.fetch(url, { method: "PUT" });
    expect(response.status).toBe(405);
    expect(response.headers.get("allow")).toBe("GET, POST");
    await response.body?.cancel();
    expect((await server.fetch(`${url}/before`)).headers.get("allow")).toBe("DELETE");
  });
});

describe("removing a checkpoint", () => {
  test("answers 204 with nothing, for an id and for a name", async () => {
    const asked: string[][] = [];
    const remove = async (ref: string, which: string) => {
      asked.push([ref, which]);
    };
    await using server = await serve({ checkpoints: { remove } });
    for (const which of ["ckp_0123456789abcdef", "before"]) {
      const response = await server.fetch(`${url}/${which}`, { method: "DELETE" });
      expect(response.status).toBe(204);
      expect(await response.text()).toBe("");
    }
    expect(asked).toEqual([
      ["demo", "ckp_0123456789abcdef"],
      ["demo", "before"],
    ]);
  });

  test("that is not there is a 404 of its own, other than that of its sandbox", async () => {
    for (const code of ["checkpoint_not_found", "sandbox_not_found"] as const) {
      await using server = await serve({ checkpoints: { remove: refusal(code) } });
      const response = await server.fetch(`${url}/before`, { method: "DELETE" });
      expect(response.status).toBe(404);
      expect(await response.json()).toMatchObject({ error: { code, operation: "removeCheckpoint" } });
    }
  });

  test("by what can be no name is refused here", async () => {
    const remove = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ checkpoints: { remove } });
    const response = await server.fetch(`${url}/${"a".repeat(65)}`, { method: "DELETE" });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
  });

  test("that a shutdown cuts short may have been done", async () => {
    let waits = false;
    const remove = (_ref: string, _which: string, signal: AbortSignal) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ checkpoints: { remove } });
    const call = server.fetch(`${url}/before`, { method: "DELETE" });
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown" },
    });
    await closed;
  });
});

describe("a sandbox that begins with a checkpoint", () => {
  const fromCheckpoint = "ckp_0123456789abcdef";

  test("is asked for by the checkpoint's id, and says where it comes from", async () => {
    const asked: CreateSandbox[] = [];
    const forkedFrom = {
      sandboxId: "sbx_fedcba9876543210",
      checkpointId: fromCheckpoint,
      execs: { exe_2: "exe_1" },
    };
    const create = async (input: CreateSandbox) => {
      asked.push(input);
      return { sandbox: aSandbox({ forkedFrom }), existed: false };
    };
    await using server = await serve({ sandboxes: { create } });
    const response = await server.fetch("/v1/sandboxes", json({ name: "fork", fromCheckpoint }));
    expect(response.status).toBe(201);
    expect(await response.json()).toMatchObject({ forkedFrom });
    expect(asked).toEqual([{ name: "fork", fromCheckpoint }]);
  });

  test("is refused here where that is no id of a checkpoint", async () => {
    const create = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ sandboxes: { create } });
    for (const wrong of ["before", "sbx_0123456789abcdef", "ckp_0", "", 1]) {
      const response = await server.fetch("/v1/sandboxes", json({ fromCheckpoint: wrong }));
      expect(response.status).toBe(400);
      expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
    }
  });

  test.each<ErrorCode>(["checkpoint_not_found", "checkpoint_unusable", "disk_full", "low_memory"])(
    "that can't (%s) is refused before there is anything to tell, streamed or not",
    async (code) => {
      await using server = await serve({ sandboxes: { create: refusal(code) } });
      for (const accept of ["application/json", "application/x-ndjson"]) {
        const headers = { "content-type": "application/json", accept };
        const response = await server.fetch("/v1/sandboxes", { ...json({ fromCheckpoint }), headers });
        expect(response.status).toBe(ERRORS[code].status);
        expect(await response.json()).toMatchObject({ error: { code, operation: "createSandbox" } });
      }
    },
  );
});
