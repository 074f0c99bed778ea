/**
 * Benchmarks idle cost: CPU time of the server and of keepers, and database queries, per idle sandbox and minute; and
 * how much a thousand stored records of failed sandboxes slow down calls on a sandbox that is in use.
 *
 *   node bench/steady.ts [SANDBOXES [SECONDS]]
 */
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { DEFAULT_RESOURCES, newSandboxId } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";
import type { Sandbox } from "@holdfast/sdk";
import { openStore } from "@holdfast/store";
import { TestServer } from "../test/support/server/test-server.ts";
import { interleaved, type Sample } from "./measure.ts";
import { type Row, save, table } from "./report.ts";

const [SANDBOXES = 50, SECONDS = 60] = process.argv.slice(2).map(Number);
const RECORDS = 1_000;
const SETTLE_MS = 10_000;
const COUNTING_SERVER = fileURLToPath(new URL("counting-server.ts", import.meta.url));
const rows: Row[] = [];
const progress = (text: string) => process.stderr.write(`${text}\n`);
const add = (what: string, value: number, unit: string, sample?: Sample) =>
  rows.push({ what, who: "holdfast", value, unit, p95: sample?.p95, p99: sample?.p99 });

/** Returns the CPU time of all threads of a process, from the scheduler's statistics. */
const cpuMs = (pid: number): number =>
  readdirSync(`/proc/${pid}/task`)
    .map((thread) => Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]))
    .reduce((sum, ns) => sum + ns / 1e6, 0);

async function queries(server: TestServer): Promise<number> {
  const file = join(server.dir, "queries");
  rmSync(file, { force: true });
  process.kill(server.pid, "SIGUSR2");
  for (let tries = 0; tries < 500; tries += 1) {
    await sleep(10);
    const text = readOr(file, "");
    if (text !== "") return Number(text);
  }
  throw new Error("the server did not report its query count");
}

function readOr(file: string, otherwise: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return otherwise;
  }
}

interface Spent {
  server: number;
  keepers: number;
  queries: number;
}

/** Returns the cost per minute while no requests are made. */
async function idle(server: TestServer, boxes: readonly Sandbox[]): Promise<Spent> {
  await sleep(SETTLE_MS);
  const keepers = boxes.map(({ id }) => server.keeperPid(id));
  const look = async (): Promise<Spent> => ({
    server: cpuMs(server.pid),
    keepers: keepers.reduce((sum, pid) => sum + cpuMs(pid), 0),
    queries: await queries(server),
  });
  const before = await look();
  await sleep(SECONDS * 1_000);
  const after = await look();
  const perMinute = (key: keyof Spent) => ((after[key] - before[key]) * 60) / SECONDS;
  return { server: perMinute("server"), keepers: perMinute("keepers"), queries: perMinute("queries") };
}

async function idleCost(): Promise<void> {
  await using server = new TestServer();
  await server.start({ main: COUNTING_SERVER });
  progress(`a server without sandboxes, for ${SECONDS} s`);
  const none = await idle(server, []);
  progress(`a server with ${SANDBOXES} idle sandboxes, for ${SECONDS} s`);
  const client = server.client();
  const boxes: Sandbox[] = [];
  for (let i = 0; i < SANDBOXES; i += 1) boxes.push(await client.sandboxes.create());
  const all = await idle(server, boxes);
  const each = (key: keyof Spent) => (all[key] - none[key]) / SANDBOXES;
  add("a minute without sandboxes: CPU of the server", none.server, "ms");
  add("a minute without sandboxes: queries", none.queries, "");
  add("a minute of an idle sandbox: CPU of the server", each("server"), "ms");
  add("a minute of an idle sandbox: CPU of its keeper", each("keepers"), "ms");
  add("a minute of an idle sandbox: queries", each("queries"), "");
  await Promise.all(boxes.map((box) => box.delete()));
  client.close();
}

/**
 * A record of a failed sandbox that is kept: the server holds it in memory like any other, but it has no files or
 * processes on the machine.
 */
function keptRecord(now: number): SandboxRecord {
  const id = newSandboxId();
  return {
    id,
    name: `kept-${id.slice(-12)}`,
    nameHeld: false,
    phase: {
      name: "failed",
      cause: { code: "keeper_died", message: "It died." },
      keptUntil: now + 86_400_000,
    },
    generation: 1,
    memorySince: 1,
    lease: { state: "none" },
    instance: null,
    spec: { image: "host", env: {}, cwd: null, resources: DEFAULT_RESOURCES, lifecycle: {}, labels: {} },
    ...{ createdAt: now, lastActivityAt: now, transitionedAt: now, endedAt: now },
    ...{ owner: null, execsStarted: 0, forkedFrom: null, mounts: [], restarts: null, revision: 0 },
  };
}

async function layRecords(path: string): Promise<void> {
  const store = await openStore({ path });
  const changes = Array.from({ length: RECORDS }, () => keptRecord(Date.now())).map(
    (record) => ({ kind: "sandbox.insert", record }) as const,
  );
  await store.commit({ changes, counters: { created: RECORDS, failed: RECORDS } });
  await store.close();
}

async function crowdedLatency(): Promise<void> {
  progress(`calls with 0 and with ${RECORDS} other records`);
  await using alone = await TestServer.start();
  await using crowded = new TestServer();
  await layRecords(join(crowded.dir, "holdfast.db"));
  await crowded.start();
  const clients = [alone.client(), crowded.client()] as const;
  const [a, b] = await Promise.all([clients[0].sandboxes.create(), clients[1].sandboxes.create()]);
  const samples = await interleaved(
    {
      "GET alone": () => a.refresh(),
      "GET crowded": () => b.refresh(),
      "exec alone": () => a.exec(["true"]),
      "exec crowded": () => b.exec(["true"]),
    },
    { "GET alone": 60, "GET crowded": 60, "exec alone": 60, "exec crowded": 60 },
    20,
  );
  for (const what of ["GET", "exec"]) {
    const [none, many] = [samples[`${what} alone`], samples[`${what} crowded`]];
    if (none === undefined || many === undefined) throw new Error(`${what} was not measured`);
    add(`${what} with 0 other records`, none.p50, "ms", none);
    add(`${what} with ${RECORDS} other records`, many.p50, "ms", many);
    add(`${what}: ratio of ${RECORDS} records to 0`, many.p50 / none.p50, "×");
  }
  await Promise.all([a.delete(), b.delete()]);
  for (const client of clients) client.close();
  // The stored records are removed with the server's directory; they own nothing else that has to be deleted.
  await crowded.kill("SIGTERM");
}

await idleCost();
await crowdedLatency();
process.stdout.write(`\n${table(rows)}\n\n`);
progress(`written to ${save(rows, { sandboxes: SANDBOXES, seconds: SECONDS }).replace(process.cwd(), ".")}`);
