import { ERRORS, type ErrorCode, HoldfastError, type Process, type StartProcess } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { anExec, aProcess, json, serve } from "../testing/double.ts";

const url = "/v1/sandboxes/demo/processes";
const body: StartProcess = {
  name: "web",
  command: "serve",
  restart: { on: "always" },
  readyWhen: { port: 3000 },
  connectBy: { port: 3000, withinMs: 5_000 },
};

describe("starting a process", () => {
  test.each([
    [201, false],
    [200, true],
  ])("returns %s with the process, and passes the request to the engine", async (status, followed) => {
    const asked: unknown[] = [];
    const start = async (ref: string, input: StartProcess, { waitMs }: { waitMs?: number | undefined }) => {
      asked.push([ref, input, waitMs]);
      return { process: aProcess(), followed };
    };
    await using server = await serve({ processes: { start } });
    const response = await server.fetch(`${url}?waitMs=1500`, json(body));
    expect(response.status).toBe(status);
    expect(await response.json()).toEqual(aProcess());
    expect(asked).toEqual([["demo", body, 1_500]]);
  });

  test("is refused before it reaches the engine if the request is malformed", async () => {
    const start = () => Promise.reject(new Error("it was asked"));
    await using server = await serve({ processes: { start } });
    const wrong = [
      { command: "x" },
      { name: "Not A Label", command: "x" },
      { name: "prc_0123456789abcdef", command: "x" },
      { name: "web" },
      { name: "web", command: "x", argv: ["x"] },
      { name: "web", command: "x", stdin: "text" },
      { name: "web", command: "x", restart: {} },
      { name: "web", command: "x", restart: { on: "never" } },
      { name: "web", command: "x", restart: { on: "always", max: 1_001 } },
      { name: "web", command: "x", restart: { on: "always", backoffMs: 9 } },
      { name: "web", command: "x", readyWhen: {} },
      { name: "web", command: "x", readyWhen: { port: 0 } },
      { name: "web", command: "x", readyWhen: { port: 80, output: "up" } },
      { name: "web", command: "x", connectBy: { port: 80 } },
    ];
    for (const each of wrong) {
      const response = await server.fetch(url, json(each));
      expect([each, response.status]).toEqual([each, 400]);
    }
  });

  test.each<ErrorCode>(["process_conflict", "process_unsupported", "too_many_processes", "exec_limit"])(
    "that fails (%s) reports the code",
    async (code) => {
      const start = () => Promise.reject(new HoldfastError(code, { sandboxId: "sbx_a" }));
      await using server = await serve({ processes: { start } });
      const response = await server.fetch(url, json(body));
      expect(response.status).toBe(ERRORS[code].status);
      expect(await response.json()).toMatchObject({ error: { code, sandboxId: "sbx_a" } });
    },
  );
});

describe("a process", () => {
  test("is listed, returned at once or after a wait, stopped and restarted", async () => {
    const asked: unknown[] = [];
    const tell =
      (what: string, process: Process) =>
      async (ref: string, which: string, options: AbortSignal | { waitMs?: number | undefined }) => {
        asked.push([what, ref, which, "waitMs" in options ? options.waitMs : null]);
        return process;
      };
    const stopped = aProcess({ status: "stopped", ready: null });
    await using server = await serve({
      processes: {
        list: async () => ({ items: [aProcess()], nextCursor: null }),
        wait: tell("wait", aProcess()),
        stop: tell("stop", stopped),
        restart: tell("restart", aProcess({ runs: 2 })),
      },
    });
    const read = async (path: string, init?: RequestInit) => (await server.fetch(path, init)).json();
    expect(await read(url)).toEqual({ items: [aProcess()], nextCursor: null });
    expect(await read(`${url}/web`)).toEqual(aProcess());
    expect(await read(`${url}/web?waitMs=9`)).toEqual(aProcess());
    expect(await read(`${url}/prc_0123456789abcdef`, { method: "DELETE" })).toEqual(stopped);
    expect(await read(`${url}/web/restart?waitMs=7`, { method: "POST" })).toMatchObject({ runs: 2 });
    expect(asked).toEqual([
      ["wait", "demo", "web", 0],
      ["wait", "demo", "web", 9],
      ["stop", "demo", "prc_0123456789abcdef", null],
      ["restart", "demo", "web", 7],
    ]);
  });

  test("has runs, page by page, and the output of the last run", async () => {
    const pages: unknown[] = [];
    const read: string[] = [];
    await using server = await serve({
      processes: {
        get: async () => aProcess({ execId: "prc_0123456789abcdef-7" }),
        runs: async (_ref, _which, page) => {
          pages.push(page);
          return { items: [anExec()], nextCursor: null };
        },
      },
      execs: {
        output: async function* (id) {
          read.push(id);
          yield { type: "end", cursor: "c", exec: anExec() };
        },
      },
    });
    const runs = await server.fetch(`${url}/web/runs?limit=2&cursor=prc_0123456789abcdef-3`);
    expect(await runs.json()).toMatchObject({ items: [{ id: anExec().id }] });
    expect(pages).toEqual([{ limit: 2, cursor: "prc_0123456789abcdef-3" }]);
    const output = await server.fetch(`${url}/web/output?follow=true`);
    expect(await output.text()).toContain('"type":"end"');
    expect(read).toEqual(["prc_0123456789abcdef-7"]);
  });

  test("that does not exist is a 404", async () => {
    const wait = () => Promise.reject(new HoldfastError("process_not_found"));
    await using server = await serve({ processes: { wait } });
    expect((await server.fetch(`${url}/web`)).status).toBe(404);
  });
});
