import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HoldfastError, type LogList, NUMBERS } from "@holdfast/contract";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createLogger } from "../../telemetry/logger.ts";
import { ServerLog } from "../../telemetry/server-log.ts";
import { aDrive, aSandbox, serve } from "../../testing/double.ts";

let directory: string;
let serverLog: ServerLog;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "holdfast-logs-"));
  serverLog = new ServerLog(NUMBERS);
  serverLog.open(directory);
});
afterEach(async () => {
  await serverLog.close();
  rmSync(directory, { recursive: true, force: true });
});

const sandbox = aSandbox();
const drive = aDrive();
const engine = {
  sandboxes: {
    get: async (ref: string) => {
      if (ref === sandbox.name) return sandbox;
      throw new HoldfastError("sandbox_not_found");
    },
  },
  drives: { get: async () => drive },
};

describe("the server's log", () => {
  const listed = async (query: string) => {
    await using server = await serve(engine, { logs: serverLog, hostPaths: ["/srv/state"] });
    const response = await server.fetch(`/v1/logs?${query}`);
    const body = (await response.json()) as LogList;
    return { status: response.status, body, messages: body.items?.map(({ message }) => message) };
  };
  const log = () => createLogger({ level: "silent", serverLog });

  test("is found by the names of its subjects, and by ids of deleted ones", async () => {
    log().info({ sandbox: sandbox.id }, "of the sandbox");
    log().info({ sandbox: "sbx_gone000000000000" }, "of one that is gone");
    log().warn({ drive: drive.id, exec: "exe_1", requestId: "req_1" }, "of the drive");
    expect((await listed(`sandbox=${sandbox.name}`)).messages).toEqual(["of the sandbox"]);
    expect((await listed("sandbox=sbx_gone000000000000")).messages).toEqual(["of one that is gone"]);
    expect((await listed(`drive=${drive.name}`)).messages).toEqual(["of the drive"]);
    expect((await listed("exec=exe_1&request=req_1&level=warn&text=DRIVE")).messages).toEqual([
      "of the drive",
    ]);
    expect((await listed("sandbox=nobody")).status).toBe(404);
    const page = await listed("limit=1");
    expect(page.messages).toEqual(["of the drive"]);
    expect((await listed(`limit=2&cursor=${page.body.nextCursor}`)).messages).toEqual([
      "of one that is gone",
      "of the sandbox",
    ]);
  });

  test("is found by time", async () => {
    log().info({}, "now");
    const at = (ms: number) => new Date(Date.now() + ms).toISOString();
    expect((await listed(`since=${at(-60_000)}&until=${at(60_000)}`)).messages).toEqual(["now"]);
    expect((await listed(`since=${at(60_000)}`)).messages).toEqual([]);
    expect((await listed("since=lately")).status).toBe(400);
    expect((await listed("level=loud")).status).toBe(400);
  });

  test("names no host path", async () => {
    log().info({ path: "/srv/state/x" }, "opened /srv/state/y");
    expect((await listed("")).body.items).toMatchObject([
      { message: "opened <host path>", fields: { path: "<host path>" } },
    ]);
  });

  test("is not found if none is stored", async () => {
    await using server = await serve(engine);
    expect((await server.fetch("/v1/logs")).status).toBe(501);
  });
});

describe("a rejected request", () => {
  test("is logged with its id, unless it came without a key", async () => {
    await using server = await serve(engine);
    const refused = await server.fetch("/v1/sandboxes/nobody");
    const { error } = (await refused.json()) as { error: { requestId: string } };
    const lines = () => server.lines.filter(({ message }) => message === "request rejected");
    expect(lines()).toMatchObject([
      { level: "info", fields: { requestId: error.requestId, code: "sandbox_not_found" } },
    ]);
    const stranger = await fetch(`${server.url}/v1/sandboxes/nobody`, {
      headers: { authorization: "Bearer hf_wrong" },
    });
    expect(stranger.status).toBe(401);
    expect(lines()).toHaveLength(1);
  });
});
