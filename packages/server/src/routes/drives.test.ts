import { type CreateDrive, ERRORS, type ErrorCode, HoldfastError } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { aDrive, json, serve, until } from "../testing/double.ts";

type CreateOptions = Parameters<EngineApi["drives"]["create"]>[1];
type RemoveOptions = Parameters<EngineApi["drives"]["remove"]>[1];

const url = "/v1/drives";
const untilAborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const refusal = (code: ErrorCode, message?: string) => () =>
  Promise.reject(new HoldfastError(code, message === undefined ? {} : { message }));
const neverAsked = () => Promise.reject(new Error("it was asked"));

describe("creating a drive", () => {
  test("returns 201 once it can be mounted, and not before", async () => {
    const made = Promise.withResolvers<void>();
    const asked: unknown[] = [];
    const create = async (input: CreateDrive, { owner }: CreateOptions) => {
      asked.push([input, owner]);
      await made.promise;
      return { drive: aDrive(), existed: false };
    };
    await using server = await serve({ drives: { create } });
    let isAnswered = false;
    const wanted = { name: "data", sizeMb: 64, labels: { team: "red" }, ifExists: "fail" };
    const call = server.fetch(url, json(wanted)).finally(() => {
      isAnswered = true;
    });
    await until(() => asked.length === 1);
    expect(isAnswered).toBe(false);
    made.resolve();
    const response = await call;
    expect(response.status).toBe(201);
    expect(await response.json()).toEqual(aDrive());
    expect(asked).toEqual([[wanted, expect.any(String)]]);
  });

  test("that exists returns 200", async () => {
    const create = async () => ({ drive: aDrive(), existed: true });
    await using server = await serve({ drives: { create } });
    const response = await server.fetch(url, json({ name: "data", ifExists: "return" }));
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(aDrive());
  });

  test("needs no name and no body", async () => {
    const inputs: unknown[] = [];
    const create = async (input: CreateDrive) => {
      inputs.push(input);
      return { drive: aDrive(), existed: false };
    };
    await using server = await serve({ drives: { create } });
    for (const init of [{ method: "POST" }, json({})])
      expect((await server.fetch(url, init)).status).toBe(201);
    expect(inputs).toEqual([{}, {}]);
  });

  test("is refused before it reaches the engine if the request is malformed", async () => {
    await using server = await serve({ drives: { create: neverAsked } });
    const wrong = [
      { name: "" },
      { name: "Not A Label" },
      { name: "drv_0123456789abcdef" },
      { sizeMb: 31 },
      { sizeMb: 64.5 },
      { sizeMb: "64" },
      { ifExists: "replace" },
      { size: 64 },
      [],
    ];
    for (const body of wrong) {
      const response = await server.fetch(url, json(body));
      expect([body, response.status]).toEqual([body, 400]);
      expect(await response.json()).toMatchObject({
        error: { code: "invalid_request", operation: "createDrive", dispatched: "no" },
      });
    }
  });

  test.each<ErrorCode>(["drive_exists", "drive_deleting", "disk_full", "capacity"])(
    "that fails (%s) reports the code",
    async (code) => {
      await using server = await serve({ drives: { create: refusal(code) } });
      const response = await server.fetch(url, json({ name: "data" }));
      expect(response.status).toBe(ERRORS[code].status);
      expect(await response.json()).toMatchObject({ error: { code, operation: "createDrive" } });
    },
  );

  test("reports that it may have been created if a shutdown interrupts the wait", async () => {
    let waits = false;
    const create = (_input: CreateDrive, { signal }: CreateOptions) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ drives: { create } });
    const call = server.fetch(url, json({}));
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown", retryable: true },
    });
    await closed;
  });
});

describe("drives", () => {
  test("are listed page by page, filtered by label on request", async () => {
    const filters: unknown[] = [];
    const found = { items: [aDrive()], nextCursor: "2" };
    const list = async (filter: unknown) => {
      filters.push(filter);
      return found;
    };
    await using server = await serve({ drives: { list } });
    const response = await server.fetch(`${url}?label=a=b&label=c=d%3De&limit=7&cursor=x`);
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(found);
    await server.fetch(url);
    expect(filters).toEqual([
      { labels: { a: "b", c: "d=e" }, limit: 7, cursor: "x" },
      { labels: undefined, limit: 100, cursor: undefined },
    ]);
    expect((await server.fetch(`${url}?label=nothing`)).status).toBe(400);
  });

  test("are found by name and by id, and measuring ends with the caller", async () => {
    const asked: string[] = [];
    let given: AbortSignal | undefined;
    const get = async (ref: string, signal: AbortSignal) => {
      asked.push(ref);
      given = signal;
      return ref === "slow" ? untilAborted(signal) : aDrive();
    };
    await using server = await serve({ drives: { get } });
    for (const ref of ["data", "drv_0123456789abcdef"])
      expect(await (await server.fetch(`${url}/${ref}`)).json()).toEqual(aDrive());
    expect(asked).toEqual(["data", "drv_0123456789abcdef"]);
    const leaving = new AbortController();
    const call = server.fetch(`${url}/slow`, { signal: leaving.signal });
    await until(() => asked.length === 3);
    leaving.abort();
    await expect(call).rejects.toThrow();
    await until(() => given?.aborted === true);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });

  test("that do not exist are a 404 with its own code", async () => {
    await using server = await serve({ drives: { get: refusal("drive_not_found") } });
    const response = await server.fetch(`${url}/data`);
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({
      error: { code: "drive_not_found", operation: "getDrive" },
    });
  });

  test("need a key", async () => {
    await using server = await serve({});
    for (const [method, path] of [
      ["GET", url],
      ["POST", url],
      ["GET", `${url}/data`],
      ["DELETE", `${url}/data`],
    ] as const) {
      const response = await fetch(server.url + path, { method });
      expect(response.status).toBe(401);
      await response.body?.cancel();
    }
  });

  test("refuse other methods by name", async () => {
    await using server = await serve({});
    expect((await server.fetch(url, { method: "PUT" })).headers.get("allow")).toBe("GET, POST");
    expect((await server.fetch(`${url}/data`, { method: "PUT" })).headers.get("allow")).toBe(
      "DELETE, GET, PATCH",
    );
  });

  test("get new labels, and null removes one", async () => {
    const asked: unknown[] = [];
    const update: EngineApi["drives"]["update"] = async (ref, changes) => {
      asked.push([ref, changes]);
      return aDrive({ labels: { team: "b" } });
    };
    await using server = await serve({ drives: { update } });
    const labels = { team: "b", old: null };
    const answer = await server.fetch(`${url}/data`, { ...json({ labels }), method: "PATCH" });
    expect([answer.status, await answer.json()]).toEqual([200, aDrive({ labels: { team: "b" } })]);
    expect(asked).toEqual([["data", { labels }]]);
    const wrong = await server.fetch(`${url}/data`, { ...json({ sizeMb: 64 }), method: "PATCH" });
    expect(wrong.status).toBe(400);
  });
});

describe("deleting a drive", () => {
  const remover = (left: ReturnType<typeof aDrive> | null) => {
    const asked: unknown[] = [];
    const remove = async (ref: string, { force }: RemoveOptions) => {
      asked.push([ref, force]);
      return left;
    };
    return { asked, remove };
  };

  test("returns 204 without a body when it is gone", async () => {
    const { asked, remove } = remover(null);
    await using server = await serve({ drives: { remove } });
    for (const path of ["data", "data?force=false", "drv_0123456789abcdef?force=true"]) {
      const response = await server.fetch(`${url}/${path}`, { method: "DELETE" });
      expect(response.status).toBe(204);
      expect(await response.text()).toBe("");
    }
    expect(asked).toEqual([
      ["data", false],
      ["data", false],
      ["drv_0123456789abcdef", true],
    ]);
  });

  test("returns 202 with the drive while it takes longer", async () => {
    const left = aDrive({ status: "deleting" });
    await using server = await serve({ drives: { remove: remover(left).remove } });
    const response = await server.fetch(`${url}/data`, { method: "DELETE" });
    expect(response.status).toBe(202);
    expect(await response.json()).toEqual(left);
  });

  test("that a sandbox mounts is refused, and names the sandbox", async () => {
    const remove = refusal("drive_mounted", "Drive data is mounted in box and other.");
    await using server = await serve({ drives: { remove } });
    const response = await server.fetch(`${url}/data`, { method: "DELETE" });
    expect(response.status).toBe(409);
    expect(await response.json()).toMatchObject({
      error: { code: "drive_mounted", message: "Drive data is mounted in box and other.", retryable: false },
    });
  });

  test("is forced only by a boolean", async () => {
    await using server = await serve({ drives: { remove: neverAsked } });
    for (const wrong of ["yes", "1", ""])
      expect((await server.fetch(`${url}/data?force=${wrong}`, { method: "DELETE" })).status).toBe(400);
  });

  test("reports that it may have been done if a shutdown interrupts it", async () => {
    let waits = false;
    const remove = (_ref: string, { signal }: RemoveOptions) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ drives: { remove } });
    const call = server.fetch(`${url}/data`, { method: "DELETE" });
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown" },
    });
    await closed;
  });
});

test("events of a drive are found by its name or id", async () => {
  const filters: unknown[] = [];
  const events = async (filter: Parameters<EngineApi["events"]>[0]) => {
    filters.push(filter);
    return { items: [], nextCursor: null };
  };
  await using server = await serve({ events });
  expect((await server.fetch("/v1/events?drive=data&type=drive.deleted,mount.added")).status).toBe(200);
  expect(filters).toMatchObject([{ drive: "data", types: ["drive.deleted", "mount.added"], ref: undefined }]);
  expect((await server.fetch(`/v1/events?drive=${"a".repeat(65)}`)).status).toBe(400);
});
