/**
 * Benchmarks port access: the same web server in a sandbox, reached through Holdfast, and on the host, reached directly
 * over loopback, in turns in one run.
 *
 *   node bench/ports.ts
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { Agent, request as ask } from "node:http";
import { join } from "node:path";
import { TestServer } from "../test/support/server/test-server.ts";
import { interleaved, timed } from "./measure.ts";
import { type Row, save, table } from "./report.ts";

const PROGRAM = join(import.meta.dirname, "web-program.mjs");
const INSIDE_PORT = 3000;
const HOST_PORT = 4799;
const AT_ONCE = 50;
const REQUESTS = 5_000;
const BIG_MB = 64;
const rows: Row[] = [];
const progress = (text: string) => process.stderr.write(`${text}\n`);

interface Way {
  url: URL;
  headers: Record<string, string>;
  agent: Agent;
}

/** Resolves with the number of bytes received; rejects unless the response is a complete 200. */
function get({ url, headers, agent }: Way, path: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const request = ask(
      new URL(url.pathname.replace(/\/$/, "") + path, url),
      { headers, agent },
      (response) => {
        let bytes = 0;
        response.on("data", (chunk: Buffer) => {
          bytes += chunk.length;
        });
        response.on("error", reject);
        response.on("end", () =>
          response.statusCode === 200 ? resolve(bytes) : reject(new Error(`answered ${response.statusCode}`)),
        );
      },
    );
    request.on("error", reject);
    request.end();
  });
}

const way = (url: string, headers: Record<string, string> = {}): Way => ({
  url: new URL(url),
  headers,
  agent: new Agent({ keepAlive: true, maxSockets: AT_ONCE }),
});

async function hosted(): Promise<ChildProcess> {
  const child = spawn(process.execPath, [PROGRAM, String(HOST_PORT)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(child.stdout, "data");
  return child;
}

async function measure(ways: Record<string, Way>): Promise<void> {
  const rounds = Object.fromEntries(Object.keys(ways).map((who) => [who, 10]));
  progress("latency, one at a time");
  const small = Object.fromEntries(Object.entries(ways).map(([who, to]) => [who, () => get(to, "/")]));
  for (const [who, sample] of Object.entries(await interleaved(small, rounds, 100)))
    rows.push({
      what: "small request, one at a time",
      who,
      value: sample.p50,
      p95: sample.p95,
      p99: sample.p99,
      unit: "ms",
    });
  progress(`${REQUESTS} requests, ${AT_ONCE} at once`);
  for (const [who, to] of Object.entries(ways)) {
    const { sample, perSecond } = await timed(REQUESTS, () => get(to, "/"), { width: AT_ONCE, warmUp: 50 });
    rows.push({
      what: `small requests, ${AT_ONCE} at once`,
      who,
      value: perSecond,
      unit: "/s",
      higherIsBetter: true,
    });
    rows.push({
      what: `one of ${AT_ONCE} at once`,
      who,
      value: sample.p50,
      p95: sample.p95,
      p99: sample.p99,
      unit: "ms",
    });
  }
  progress("downloads");
  const big = Object.fromEntries(Object.entries(ways).map(([who, to]) => [who, () => get(to, "/big")]));
  for (const [who, sample] of Object.entries(await interleaved(big, rounds, 1)))
    rows.push({
      what: `download of ${BIG_MB} MB`,
      who,
      value: (BIG_MB * 1000) / sample.p50,
      unit: "MB/s",
      higherIsBetter: true,
    });
}

const server = await TestServer.start();
const host = await hosted();
const client = server.client();
try {
  const box = await client.sandboxes.create();
  await box.files.write("/tmp/web.mjs", readFileSync(PROGRAM));
  const run = await box.execs.start(`node /tmp/web.mjs ${INSIDE_PORT}`);
  for await (const chunk of run.output()) if (chunk.stream === "stdout") break;
  await measure({
    holdfast: way(`${server.url}/v1/sandboxes/${box.id}/ports/${INSIDE_PORT}/`, {
      authorization: `Bearer ${server.key}`,
    }),
    "direct loopback": way(`http://127.0.0.1:${HOST_PORT}/`),
  });
  await box.delete();
} finally {
  client.close();
  host.kill();
  await server[Symbol.asyncDispose]();
}
process.stdout.write(`\n${table(rows)}\n\n`);
progress(`written to ${save(rows, {}).replace(process.cwd(), ".")}`);
process.exit(0);
