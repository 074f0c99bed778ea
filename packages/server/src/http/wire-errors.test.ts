import { createConnection } from "node:net";
import { TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { ErrorBody, HoldfastError } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { authorized, json, serve } from "../testing/double.ts";
import { createScrub } from "./scrub.ts";
import { toWireError } from "./wire-errors.ts";

const refusing = (error: unknown) => ({ sandboxes: { get: () => Promise.reject(error) } });
const isErrorBody = (value: unknown): boolean => {
  const check = TypeBoxValidatorCompiler({ schema: ErrorBody, method: "GET", url: "/" });
  const result = check(value) as { error?: unknown };
  return result.error === undefined;
};

async function errorOf(response: Response) {
  expect(response.headers.get("content-type")).toContain("application/json");
  const body = (await response.json()) as { error: Record<string, unknown> };
  expect(isErrorBody(body)).toBe(true);
  return { status: response.status, ...body.error } as Record<string, unknown> & { status: number };
}

describe("errors of the engine", () => {
  test("a typed error arrives with its code, status, hint and cause chain", async () => {
    const cause = new HoldfastError("link_lost", { cause: new Error("socket closed") });
    await using server = await serve(
      refusing(new HoldfastError("sandbox_degraded", { sandboxId: "sbx_a", dispatched: "unknown", cause })),
    );
    const error = await errorOf(await server.fetch("/v1/sandboxes/a"));
    expect(error).toMatchObject({
      status: 503,
      code: "sandbox_degraded",
      retryable: true,
      dispatched: "unknown",
      operation: "getSandbox",
      sandboxId: "sbx_a",
      cause: { code: "link_lost", cause: { message: "socket closed" } },
    });
    expect(error.requestId).toMatch(/^req_/);
  });

  test("an unexpected error reveals nothing to the caller, and is logged completely", async () => {
    await using server = await serve(refusing(new Error("the password is hunter2")));
    const response = await server.fetch("/v1/sandboxes/a");
    const text = await response.clone().text();
    const error = await errorOf(response);
    expect(error).toMatchObject({ status: 500, code: "internal", dispatched: "unknown" });
    expect(text).not.toContain("hunter2");
    const line = server.lines.find(({ level }) => level === "error");
    expect(line?.fields).toMatchObject({ requestId: error.requestId });
    expect(String((line?.fields.err as Error | undefined)?.stack)).toContain("hunter2");
  });

  test("an internal deadline is reported as a deadline", async () => {
    await using server = await serve(refusing(new DOMException("too late", "TimeoutError")));
    const error = await errorOf(await server.fetch("/v1/sandboxes/a"));
    expect(error).toMatchObject({ status: 504, code: "deadline", dispatched: "unknown" });
  });

  test("no host path gets into a message, at any depth", () => {
    const scrub = createScrub(["/var/lib/holdfast", "/sys/fs/cgroup"]);
    const inner = new Error("ENOENT: no such file '/var/lib/holdfast/sandboxes/a/config.json', open");
    const error = new HoldfastError("launch_failed", {
      message: "no /sys/fs/cgroup/memory/holdfast/x: gone",
      cause: inner,
    });
    const text = JSON.stringify(toWireError(error, { requestId: "req_1", scrub }).body);
    expect(text).not.toContain("/var/lib");
    expect(text).not.toContain("/sys/fs");
    expect(scrub("/var/lib/holdfast-other and /home/user/var/lib")).toBe(
      "/var/lib/holdfast-other and /home/user/var/lib",
    );
  });
});

describe("bad requests", () => {
  test.each([
    ["invalid JSON", { ...json({}), body: "{nope" }, "invalid_request", 400],
    ["no body", { ...json({}), body: "" }, "invalid_request", 400],
    ["a wrong type", json({ resources: { memoryMb: "64" } }), "invalid_request", 400],
    ["an unknown field", json({ nmae: "a" }), "invalid_request", 400],
    ["a bad name", json({ name: "Not A Name" }), "invalid_request", 400],
    ["a bad label key", json({ labels: { "!": "x" } }), "invalid_request", 400],
    ["a bad variable name", json({ env: { "A=B": "x" } }), "invalid_request", 400],
    ["a poisoned object", { ...json({}), body: '{"__proto__":{"a":1}}' }, "invalid_request", 400],
    ["a body that is not JSON", { method: "POST", body: "a=b" }, "unsupported_media_type", 415],
    ["a body that is too large", json({ name: "a".repeat(2_000_000) }), "too_large", 413],
  ])("%s is the caller's error", async (_name, init, code, status) => {
    await using server = await serve({});
    const error = await errorOf(await server.fetch("/v1/sandboxes", init));
    expect(error).toMatchObject({ code, status, operation: "createSandbox" });
  });

  test("the message names the field", async () => {
    await using server = await serve({});
    const wrong = await errorOf(await server.fetch("/v1/sandboxes", json({ resources: { memoryMb: "64" } })));
    expect(wrong.message).toContain("body/resources/memoryMb");
    const limit = await errorOf(await server.fetch("/v1/sandboxes?limit=1001"));
    expect(limit.message).toContain("query/limit");
  });

  test.each(["limit=1.5", "limit=x", "limit=0", "status=happy", "label=novalue"])(
    "a list with %s is refused",
    async (query) => {
      await using server = await serve({ sandboxes: {} });
      expect(await errorOf(await server.fetch(`/v1/sandboxes?${query}`))).toMatchObject({ status: 400 });
    },
  );

  test("an unknown path is 404, a wrong method 405 with the allowed methods", async () => {
    await using server = await serve({});
    expect(await errorOf(await server.fetch("/v1/nothing"))).toMatchObject({
      status: 404,
      code: "not_found",
    });
    const response = await server.fetch("/v1/sandboxes/a", { method: "PUT" });
    expect(response.headers.get("allow")).toBe("DELETE, GET, PATCH");
    expect(await errorOf(response)).toMatchObject({ status: 405, code: "method_not_allowed" });
  });

  test.each(["/v1/sandboxes/%ZZ", `/v1/sandboxes/${"a".repeat(300)}`, `/v1/sandboxes/${"a".repeat(100)}`])(
    "an invalid URL is refused: %#",
    async (path) => {
      await using server = await serve({});
      expect(await errorOf(await server.fetch(path))).toMatchObject({ status: 400, code: "invalid_request" });
    },
  );
});

describe("requests refused by the HTTP parser", () => {
  async function raw(url: string, ...parts: (string | Buffer)[]): Promise<string> {
    const { hostname, port } = new URL(url);
    const socket = createConnection(Number(port), hostname);
    let answer = "";
    socket.on("data", (chunk) => {
      answer += chunk;
    });
    for (const part of parts) socket.write(part);
    await new Promise((resolve, reject) => {
      socket.on("end", resolve);
      socket.on("error", reject);
    });
    socket.destroy();
    return answer;
  }

  test("a header of 10 MB is answered with 431, and the response arrives", async () => {
    await using server = await serve({});
    const answer = await raw(
      server.url,
      `GET /v1/sandboxes HTTP/1.1\r\nhost: a\r\nauthorization: ${authorized.authorization}\r\nx-big: `,
      Buffer.alloc(10_000_000, "a"),
    );
    expect(answer).toMatch(/^HTTP\/1\.1 431 /);
    const body: unknown = JSON.parse(answer.slice(answer.indexOf("\r\n\r\n") + 4));
    expect(isErrorBody(body)).toBe(true);
    expect(body).toMatchObject({ error: { code: "headers_too_large" } });
  });

  test("bytes that are not HTTP get a typed 400", async () => {
    await using server = await serve({});
    const answer = await raw(server.url, "this is not HTTP\r\n\r\n");
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer).toContain('"code":"invalid_request"');
  });
});
