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

describe("creating a checkpoint", () => {
  test("returns 201 once it is stored, and not before", async () => {
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

  test("needs no name and no body", async () => {
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

  test("is refused before it reaches the engine if the request is malformed", async () => {
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
  ])("that fails (%s) reports the code and the cause", async (code) => {
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
    expect(response.headers.has("retry-after")).toBe([429, 503, 507].includes(status));
  });

  test("reports that it may have been created if a shutdown interrupts the wait", async () => {
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

  test("is not awaited for a disconnected caller, which is not an error", async () => {
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
  test("are listed", async () => {
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
    "of a missing sandbox (%s) return its error",
    async (code) => {
      await using server = await serve({ checkpoints: { list: refusal(code) } });
      const response = await server.fetch(url);
      expect(response.status).toBe(ERRORS[code].status);
      expect(await response.json()).toMatchObject({ error: { code, operation: "listCheckpoints" } });
    },
  );

  test("need a key", async () => {
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

  test("refuse other methods by name", async () => {
    await using server = await serve({});
    const response = await server.fetch(url, { method: "PUT" });
    expect(response.status).toBe(405);
    expect(response.headers.get("allow")).toBe("GET, POST");
    await response.body?.cancel();
    expect((await server.fetch(`${url}/before`)).headers.get("allow")).toBe("DELETE");
  });
});

describe("removing a checkpoint", () => {
  test("returns 204 without a body, for an id and for a name", async () => {
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

  test("that does not exist is a 404 distinct from that of its sandbox", async () => {
    for (const code of ["checkpoint_not_found", "sandbox_not_found"] as const) {
      await using server = await serve({ checkpoints: { remove: refusal(code) } });
      const response = await server.fetch(`${url}/before`, { method: "DELETE" });
      expect(response.status).toBe(404);
      expect(await response.json()).toMatchObject({ error: { code, operation: "removeCheckpoint" } });
    }
  });

  test("with an invalid name is refused before it reaches the engine", async () => {
    const remove = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ checkpoints: { remove } });
    const response = await server.fetch(`${url}/${"a".repeat(65)}`, { method: "DELETE" });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
  });

  test("reports that it may have been done if a shutdown interrupts it", async () => {
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

describe("a sandbox forked from a checkpoint", () => {
  const fromCheckpoint = "ckp_0123456789abcdef";

  test("is requested by the checkpoint's id, and shows its origin", async () => {
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

  test("is refused if the id is malformed", async () => {
    const create = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ sandboxes: { create } });
    for (const wrong of ["before", "sbx_0123456789abcdef", "ckp_0", "", 1]) {
      const response = await server.fetch("/v1/sandboxes", json({ fromCheckpoint: wrong }));
      expect(response.status).toBe(400);
      expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
    }
  });

  test.each<ErrorCode>(["checkpoint_not_found", "checkpoint_unusable", "disk_full", "low_memory"])(
    "that cannot start (%s) is refused before the first record, streamed or not",
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
