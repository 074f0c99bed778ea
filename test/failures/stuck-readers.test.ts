import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { OutputChunk } from "@holdfast/sdk";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { FaultProxy } from "../support/faults/fault-proxy.ts";
import { CLI, TestServer } from "../support/server/test-server.ts";

async function served(numbers: Record<string, number>) {
  const server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers) });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const client = server.client();
  onTestFinished(() => client.close());
  return { server, client, box: await client.sandboxes.create({ name: "box" }) };
}

async function textOf(chunks: AsyncIterable<OutputChunk>): Promise<string> {
  let text = "";
  for await (const chunk of chunks) text += chunk.text;
  return text;
}

const HTTP_FORMS = ["application/x-ndjson", "text/event-stream", "application/octet-stream"];

describe("readers of a quiet exec whose connection goes silent", () => {
  it("are disconnected and counted; a live reader continues when it can", async () => {
    const { server, client, box } = await served({
      streamKeepaliveMs: 300,
      httpStallMs: 2_000,
      streamMaxMs: 4_000,
    });
    const proxy = await FaultProxy.toUrl(server.url);
    onTestFinished(() => proxy[Symbol.asyncDispose]());
    const run = await box.execs.start("echo one; read line; echo $line", { openStdin: true });

    const dead = new AbortController();
    onTestFinished(() => dead.abort());
    const headers = { authorization: `Bearer ${server.key}` };
    for (const accept of HTTP_FORMS) {
      const url = `${proxy.url}/v1/execs/${run.id}/output?follow=true`;
      const response = await fetch(url, { headers: { ...headers, accept }, signal: dead.signal });
      expect(response.status).toBe(200);
    }
    const socket = new WebSocket(`${proxy.url.replace("http", "ws")}/v1/execs/${run.id}/attach`, { headers });
    onTestFinished(() => socket.close());
    const through = server.client({ url: proxy.url });
    onTestFinished(() => through.close());
    const whole = textOf((await through.execs.get(run.id)).output());
    await vi.waitFor(async () => expect((await client.stats()).readers).toBe(5), { timeout: 20_000 });

    proxy.set("both", { halfOpen: true });
    await vi.waitFor(async () => expect((await client.stats()).readers).toBe(0), { timeout: 40_000 });
    const { readersCut } = await client.stats();
    expect(readersCut.wedged).toBe(1);
    expect(readersCut.expired).toBeGreaterThanOrEqual(4);

    proxy.heal();
    await run.write("two\n");
    expect(await whole).toBe("one\ntwo\n");
  }, 120_000);
});

describe("a live reader", () => {
  const COUNT = 40;
  const COMMAND = `for i in $(seq ${COUNT}); do echo $i; sleep 0.1; done`;
  const LINES = Array.from({ length: COUNT }, (_, i) => `${i + 1}\n`).join("");

  it("is not affected when its stream ends by age and is resumed, in the SDK and in the CLI", async () => {
    const { server, client, box } = await served({ streamKeepaliveMs: 100, streamMaxMs: 500 });
    const run = await box.execs.start(COMMAND);
    const cli = promisify(execFile)(process.execPath, [CLI, "exec", "box", "--", "sh", "-c", COMMAND], {
      env: { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key },
    });
    expect(await textOf(run.output())).toBe(LINES);
    expect(await cli).toEqual({ stdout: LINES, stderr: "" });
    const { readers, readersCut } = await client.stats();
    expect(readers).toBe(0);
    expect(readersCut.wedged).toBe(0);
    expect(readersCut.expired).toBeGreaterThan(5);
  }, 60_000);
});
