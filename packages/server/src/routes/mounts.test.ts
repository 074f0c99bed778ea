import {
  type CreateSandbox,
  ERRORS,
  type ErrorCode,
  HoldfastError,
  type MountDrive,
} from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { aMount, aSandbox, json, serve, until } from "../testing/double.ts";

const url = "/v1/sandboxes/demo/mounts";
const put = (body: unknown): RequestInit => ({ ...json(body), method: "PUT" });
const untilAborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const refusal = (code: ErrorCode) => () => Promise.reject(new HoldfastError(code, { sandboxId: "sbx_a" }));
const neverAsked = () => Promise.reject(new Error("it was asked"));

describe("mounting a drive", () => {
  test("returns 201 with the mount once it is proven, and not before", async () => {
    const proven = Promise.withResolvers<void>();
    const asked: unknown[] = [];
    const mount = async (ref: string, input: MountDrive) => {
      asked.push([ref, input]);
      await proven.promise;
      return { mount: aMount(), existed: false };
    };
    await using server = await serve({ mounts: { mount } });
    let isAnswered = false;
    const wanted = { drive: "data", path: "/workspace", subpath: "a/b", readOnly: true };
    const call = server.fetch(url, put(wanted)).finally(() => {
      isAnswered = true;
    });
    await until(() => asked.length === 1);
    expect(isAnswered).toBe(false);
    proven.resolve();
    const response = await call;
    expect(response.status).toBe(201);
    expect(await response.json()).toEqual(aMount());
    expect(asked).toEqual([["demo", wanted]]);
  });

  test("that exists returns 200", async () => {
    const mount = async () => ({ mount: aMount(), existed: true });
    await using server = await serve({ mounts: { mount } });
    expect((await server.fetch(url, put({ drive: "data", path: "/workspace" }))).status).toBe(200);
  });

  test("is refused before it reaches the engine if the request is malformed", async () => {
    await using server = await serve({ mounts: { mount: neverAsked } });
    const wrong = [
      {},
      { drive: "data" },
      { path: "/workspace" },
      { drive: "", path: "/workspace" },
      { drive: "data", path: "" },
      { drive: "data", path: "/workspace", readOnly: "yes" },
      { drive: "data", path: "/workspace", readonly: true },
    ];
    for (const body of wrong) {
      const response = await server.fetch(url, put(body));
      expect([body, response.status]).toEqual([body, 400]);
      expect(await response.json()).toMatchObject({
        error: { code: "invalid_request", operation: "mountDrive", dispatched: "no" },
      });
    }
  });

  test.each<ErrorCode>([
    "sandbox_not_found",
    "drive_not_found",
    "drive_deleting",
    "drive_degraded",
    "mount_conflict",
    "mount_refused",
    "mount_failed",
    "wrong_state",
  ])("that fails (%s) reports the code", async (code) => {
    await using server = await serve({ mounts: { mount: refusal(code) } });
    const response = await server.fetch(url, put({ drive: "data", path: "/workspace" }));
    const { status, retryable } = ERRORS[code];
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { code, retryable, sandboxId: "sbx_a", operation: "mountDrive" },
    });
    expect(response.headers.has("retry-after")).toBe(status === 503);
  });

  test("reports that it may have been done if a shutdown interrupts the wait", async () => {
    let waits = false;
    const mount = (_ref: string, _input: MountDrive, signal: AbortSignal) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ mounts: { mount } });
    const call = server.fetch(url, put({ drive: "data", path: "/workspace" }));
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown", retryable: true },
    });
    await closed;
  });
});

describe("the mounts of a sandbox", () => {
  test("are listed", async () => {
    const found = { items: [aMount(), aMount({ path: "/models", state: "broken" })] };
    const refs: string[] = [];
    const list = async (ref: string) => {
      refs.push(ref);
      return found;
    };
    await using server = await serve({ mounts: { list } });
    const response = await server.fetch(url);
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(found);
    expect(refs).toEqual(["demo"]);
  });

  test("need a key, and refuse other methods by name", async () => {
    await using server = await serve({});
    for (const method of ["GET", "PUT", "DELETE"])
      expect((await fetch(server.url + url, { method })).status).toBe(401);
    expect((await server.fetch(url, { method: "POST" })).headers.get("allow")).toBe("DELETE, GET, PUT");
  });
});

describe("unmounting", () => {
  test("returns 204 without a body when the mount is observed to be gone", async () => {
    const asked: unknown[] = [];
    const unmount = async (ref: string, path: string) => {
      asked.push([ref, path]);
    };
    await using server = await serve({ mounts: { unmount } });
    const response = await server.fetch(`${url}?path=%2Fwork%20space`, { method: "DELETE" });
    expect(response.status).toBe(204);
    expect(await response.text()).toBe("");
    expect(asked).toEqual([["demo", "/work space"]]);
  });

  test("needs a path", async () => {
    await using server = await serve({ mounts: { unmount: neverAsked } });
    for (const path of [url, `${url}?path=`])
      expect((await server.fetch(path, { method: "DELETE" })).status).toBe(400);
  });

  test("a path without a mount is a 404 distinct from that of the sandbox", async () => {
    for (const code of ["mount_not_found", "sandbox_not_found"] as const) {
      await using server = await serve({ mounts: { unmount: refusal(code) } });
      const response = await server.fetch(`${url}?path=/workspace`, { method: "DELETE" });
      expect(response.status).toBe(404);
      expect(await response.json()).toMatchObject({ error: { code, operation: "unmountDrive" } });
    }
  });

  test("reports that it may have been done if a shutdown interrupts it", async () => {
    let waits = false;
    const unmount = (_ref: string, _path: string, signal: AbortSignal) => {
      waits = true;
      return untilAborted(signal);
    };
    await using server = await serve({ mounts: { unmount } });
    const call = server.fetch(`${url}?path=/workspace`, { method: "DELETE" });
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown" },
    });
    await closed;
  });
});

describe("a sandbox created with mounts", () => {
  const mounts = [{ drive: "data", path: "/workspace" }];

  test("is requested with its mounts, and shows their state", async () => {
    const asked: CreateSandbox[] = [];
    const create = async (input: CreateSandbox) => {
      asked.push(input);
      return { sandbox: aSandbox({ mounts: [aMount()] }), existed: false };
    };
    await using server = await serve({ sandboxes: { create } });
    const response = await server.fetch("/v1/sandboxes", json({ mounts }));
    expect(response.status).toBe(201);
    expect(await response.json()).toMatchObject({ mounts: [aMount()] });
    expect(asked).toEqual([{ mounts }]);
  });

  test("is refused if one of the mounts is malformed", async () => {
    await using server = await serve({ sandboxes: { create: neverAsked } });
    const wrong = [{}, [{}], [{ drive: "data" }], [{ drive: "data", path: "" }], Array(33).fill(mounts[0])];
    for (const each of wrong)
      expect((await server.fetch("/v1/sandboxes", json({ mounts: each }))).status).toBe(400);
  });

  test.each<ErrorCode>(["drive_not_found", "mount_conflict", "mount_refused", "mount_failed"])(
    "that cannot start (%s) is refused before the first record, streamed or not",
    async (code) => {
      await using server = await serve({ sandboxes: { create: refusal(code) } });
      for (const accept of ["application/json", "application/x-ndjson"]) {
        const headers = { "content-type": "application/json", accept };
        const response = await server.fetch("/v1/sandboxes", { ...json({ mounts }), headers });
        expect(response.status).toBe(ERRORS[code].status);
        expect(await response.json()).toMatchObject({ error: { code, operation: "createSandbox" } });
      }
    },
  );
});
