import { execFile } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { promisify } from "node:util";
import { Holdfast } from "@holdfast/sdk";
import { expect, it, onTestFinished } from "vitest";
import { CLI, TestServer } from "../support/server/test-server.ts";

const run = promisify(execFile);

/** Listens at the port of an ended server, accepts every request and records it. */
async function impostorAt(port: number): Promise<{ url: string; requests: string[] }> {
  const requests: string[] = [];
  const impostor = createServer((request, response) => {
    requests.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)}`);
    response.writeHead(200, { "content-type": "application/json" }).end('{"items":[],"nextCursor":null}');
  }).listen(port, "127.0.0.1");
  await once(impostor, "listening");
  onTestFinished(() => {
    impostor.closeAllConnections();
    impostor.close();
  });
  return { url: `http://127.0.0.1:${(impostor.address() as AddressInfo).port}`, requests };
}

it("a program that takes the port of a stopped or killed server receives no key and no request", async () => {
  for (const signal of ["SIGTERM", "SIGKILL"] as const) {
    await using server = await TestServer.start();
    const { HOLDFAST_URL: _url, HOLDFAST_API_KEY: _key, ...env } = server.env;
    const holdfast = (...args: string[]) => run(process.execPath, [CLI, ...args], { env });
    expect((await holdfast("ls", "--json")).stdout.trim()).toMatch(/^[[{]/);
    const before = new URL(server.url);

    process.env.HOLDFAST_DIR = server.dir;
    const client = new Holdfast({ outageMs: 20_000 });
    delete process.env.HOLDFAST_DIR;
    const box = await client.sandboxes.create();
    await server.kill(signal);

    const { requests } = await impostorAt(Number(before.port));
    await expect(holdfast("ls")).rejects.toMatchObject({
      stderr: expect.stringMatching(/is not running|No server is running/),
    });
    await expect(holdfast("exec", box.id, "--", "true")).rejects.toMatchObject({ stdout: "" });

    // The call waits through the outage and continues with the key of the next server, at its address.
    process.env.HOLDFAST_DIR = server.dir;
    onTestFinished(() => void delete process.env.HOLDFAST_DIR);
    const listed = client.sandboxes.list();
    await server.start();
    expect((await listed).items.map(({ id }) => id)).toContain(box.id);
    expect(server.url).not.toBe(before.href.replace(/\/$/, ""));
    expect((await box.exec("echo here")).stdout).toBe("here\n");
    delete process.env.HOLDFAST_DIR;
    client.close();
    expect(requests).toEqual([]);
  }
});
