import { request } from "node:http";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
  expect((await post("/v1/sandboxes", { name: "box" })).status).toBe(201);
});
afterAll(() => server[Symbol.asyncDispose]());

const json = { "content-type": "application/json" };
const post = (path: string, body: unknown) =>
  server.fetch(path, {
    method: "POST",
    headers: json,
    body: typeof body === "string" ? body : JSON.stringify(body),
  });

async function refused(answer: Promise<Response>, status: number, code: string) {
  const response = await answer;
  const { error } = (await response.json()) as { error: Record<string, unknown> };
  expect([response.status, error.code]).toEqual([status, code]);
  expect(error.hint).toBeTruthy();
  expect(error.requestId).toBeTruthy();
  expect(JSON.stringify(error)).not.toContain(server.dir);
}

describe("bad input is a 4xx with a code and a hint", () => {
  it.each<[string, string, unknown, number, string]>([
    ["an unknown image", "/v1/sandboxes", { image: "nope" }, 404, "image_not_found"],
    ["a bad name", "/v1/sandboxes", { name: "Not A Name" }, 400, "invalid_request"],
    ["a name that looks like an id", "/v1/sandboxes", { name: "sbx_abc" }, 400, "invalid_request"],
    ["a taken name", "/v1/sandboxes", { name: "box" }, 409, "name_taken"],
    ["an unknown field", "/v1/sandboxes", { nmae: "x" }, 400, "invalid_request"],
    ["a wrong type", "/v1/sandboxes", { resources: { memoryMb: "much" } }, 400, "invalid_request"],
    ["a limit out of range", "/v1/sandboxes", { resources: { pids: -1 } }, 400, "invalid_request"],
    ["invalid JSON", "/v1/sandboxes", "{nope", 400, "invalid_request"],
    ["a body that is no object", "/v1/sandboxes", "[]", 400, "invalid_request"],
    [
      "a command and argv at once",
      "/v1/sandboxes/box/execs",
      { command: "x", argv: ["y"] },
      400,
      "invalid_request",
    ],
    ["neither command nor argv", "/v1/sandboxes/box/execs", {}, 400, "invalid_request"],
    ["a bad exec id", "/v1/sandboxes/box/execs", { id: "../x", command: "true" }, 400, "invalid_request"],
    ["a relative cwd", "/v1/sandboxes/box/execs", { cwd: "tmp", command: "true" }, 400, "invalid_path"],
    ["an unknown sandbox", "/v1/sandboxes/none/execs", { command: "true" }, 404, "sandbox_not_found"],
    ["an unknown exec", "/v1/execs/none/signal", { signal: "TERM" }, 404, "exec_not_found"],
  ])("%s", async (_what, path, body, status, code) => {
    await refused(post(path, body), status, code);
  });

  it.each<[string, string, number, string]>([
    ["path traversal", "/v1/sandboxes/box/files?path=/tmp/../../etc/shadow", 400, "invalid_path"],
    ["a relative path", "/v1/sandboxes/box/files?path=etc/passwd", 400, "invalid_path"],
    ["a NUL in a path", "/v1/sandboxes/box/files?path=/tmp/%00", 400, "invalid_path"],
    ["a missing path", "/v1/sandboxes/box/files", 400, "invalid_request"],
    ["a reserved path", "/v1/sandboxes/box/files?path=/.holdfast/keeper", 403, "forbidden_path"],
    ["a missing file", "/v1/sandboxes/box/files?path=/tmp/none", 404, "file_not_found"],
    ["a directory read as a file", "/v1/sandboxes/box/files?path=/tmp", 422, "not_a_file"],
    ["a range outside the file", "/v1/sandboxes/box/files?path=/etc/passwd", 416, "range_not_satisfiable"],
    ["an unknown route", "/v1/nothing", 404, "not_found"],
    ["a limit that is too large", "/v1/sandboxes?limit=5000", 400, "invalid_request"],
    ["a foreign cursor", "/v1/sandboxes?cursor=zzz", 400, "invalid_request"],
  ])("%s", async (_what, path, status, code) => {
    const headers: Record<string, string> = status === 416 ? { range: "bytes=99999999-" } : {};
    await refused(server.fetch(path, { headers }), status, code);
  });

  it("the image of this machine cannot be removed, and the message says why", async () => {
    const answer = await server.fetch("/v1/images/host", { method: "DELETE" });
    expect([answer.status, await answer.json()]).toMatchObject([
      400,
      { error: { message: "The image 'host' is part of this machine and can't be removed." } },
    ]);
  });

  it("a missing or wrong key", async () => {
    await refused(fetch(`${server.url}/v1/sandboxes`), 401, "unauthorized");
    await refused(
      fetch(`${server.url}/v1/sandboxes`, { headers: { authorization: "Bearer hf_wrong" } }),
      401,
      "unauthorized",
    );
    await refused(fetch(`${server.url}/metrics`), 401, "unauthorized");
    for (const open of ["/healthz", "/readyz", "/openapi.json"])
      expect((await fetch(`${server.url}${open}`)).status).toBe(200);
  });

  it("a header of 10 MB", async () => {
    const { status, body } = await new Promise<{ status: number; body: string }>((resolve, reject) => {
      const ask = request(
        `${server.url}/v1/sandboxes`,
        { headers: { "x-large": "x".repeat(10 << 20) } },
        (response) => {
          let body = "";
          response.setEncoding("utf8").on("data", (text: string) => {
            body += text;
          });
          response.on("end", () => resolve({ status: response.statusCode ?? 0, body }));
        },
      );
      ask.on("error", reject).end();
    });
    expect(status).toBe(431);
    expect(JSON.parse(body).error.code).toBe("headers_too_large");
  });

  it("a JSON body that is too large", async () => {
    await refused(post("/v1/sandboxes", { env: { BIG: "x".repeat(2 << 20) } }), 413, "too_large");
  });

  it("and the server keeps serving", async () => {
    const answer = await post("/v1/sandboxes/box/execs", { command: "echo ok" });
    expect(await answer.json()).toMatchObject({ status: "exited", exitCode: 0, stdout: "ok\n" });
  });
});
