import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it, vi } from "vitest";
import { isLong } from "../setup/long.ts";
import { Random } from "../support/faults/random.ts";
import { importBroken } from "../support/runbook/broken-image.ts";
import { Tally } from "../support/runbook/tally.ts";
import { TestServer } from "../support/server/test-server.ts";

const OPERATIONS = isLong ? 500 : 200;
const WORKERS = 8;
const NAMES = 24;
const SMALL = { memoryMb: 64, pids: 32 };
const numbers = { launchFailuresMax: 1_000_000, observeEveryMs: 500 };

interface RunbookStats {
  active: number;
  provisioning: number;
  terminating: number;
  total_created: number;
  total_destroyed: number;
}
interface Item {
  id: string;
  status: string;
}

const statsOf = async (server: TestServer) =>
  (await (await server.fetch("/api/sandbox/stats")).json()) as RunbookStats;
const listOf = async (server: TestServer) =>
  (await (await server.fetch("/api/sandbox/list")).json()) as Item[];

/** Returns the sandboxes with living processes, according to the kernel. */
function alive(installation: string): string[] {
  const ids = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const environment = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
        if (!environment.includes(`HOLDFAST_INSTALLATION=${installation}`)) return [];
        return environment
          .filter((entry) => entry.startsWith("HOLDFAST_SANDBOX="))
          .map((entry) => entry.slice(17));
      } catch {
        return [];
      }
    });
  return [...new Set(ids)].sort();
}

/** A random workload of 500 operations by several concurrent workers. */
class Workload {
  readonly #server: TestServer;
  readonly #random: Random;
  readonly tally: Tally;
  /** Sandboxes on which no worker operates. */
  readonly #free: string[] = [];
  readonly killed = new Set<string>();
  done = 0;

  constructor(server: TestServer, random: Random) {
    this.#server = server;
    this.#random = random;
    this.tally = new Tally(server);
  }

  async run(onHalf: () => Promise<void>): Promise<void> {
    let begun = 0;
    let half: Promise<void> | null = null;
    const worker = async () => {
      while (begun < OPERATIONS) {
        begun += 1;
        if (begun === OPERATIONS / 2) half = onHalf();
        await this.#operation();
        this.done += 1;
      }
    };
    // All workers finish before a failure is thrown, because the server must not be stopped while it starts.
    const ends = await Promise.allSettled(Array.from({ length: WORKERS }, worker));
    await half;
    for (const end of ends) if (end.status === "rejected") throw end.reason;
  }

  async #operation(): Promise<void> {
    const random = this.#random;
    const dice = random.next();
    if (dice < 0.35) return this.#delete();
    if (dice < 0.42) return this.#killKeeper();
    const name = random.chance(0.6) ? { name: `box-${random.between(0, NAMES)}` } : {};
    const image = dice < 0.48 ? { image: "nowhere" } : dice < 0.58 ? { image: "broken" } : {};
    const ifExists = random.chance(0.3) ? { ifExists: "return" } : {};
    const before = this.tally.created.size;
    const body = { ...name, ...image, ...ifExists, resources: SMALL };
    const id = await this.tally.create(body, { wait: random.chance(0.5) });
    if (id !== null && this.tally.created.size > before && !this.#free.includes(id)) this.#free.push(id);
  }

  #take(): string | null {
    if (this.#free.length === 0) return null;
    return this.#free.splice(this.#random.between(0, this.#free.length), 1)[0] ?? null;
  }

  /** Deletes from any state, sometimes twice at once, which counts once. */
  async #delete(): Promise<void> {
    const id = this.#take();
    if (id === null) return;
    const api = this.#random.chance(0.5) ? "/api/sandbox" : "/v1/sandboxes";
    const other = this.#random.chance(0.25) ? this.tally.destroy(id, "/v1/sandboxes") : null;
    await Promise.all([this.tally.destroy(id, api), other]);
  }

  /** No other worker uses the sandbox meanwhile, so its pid cannot have been reused. */
  async #killKeeper(): Promise<void> {
    const id = this.#take();
    if (id === null) return;
    const found = await this.#server.fetch(`/v1/sandboxes/${id}`).catch(() => null);
    const { status } = ((await found?.json().catch(() => null)) ?? {}) as { status?: string };
    if (status === "ready") {
      process.kill(this.#server.keeperPid(id), "SIGKILL");
      this.killed.add(id);
    }
    this.#free.push(id);
  }
}

it(`after ${OPERATIONS} random creates, failures and deletes, with the server killed in the middle, every count is exact`, async () => {
  const random = Random.fromEnvironment();
  console.log(`HOLDFAST_SEED=${random.seed}`);
  await using server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers) });
  importBroken(server);
  const work = new Workload(server, random);
  const seen: RunbookStats[] = [];
  const watching = new AbortController();
  const watch = (async () => {
    while (!watching.signal.aborted) {
      await statsOf(server).then(
        (stats) => seen.push(stats),
        () => undefined,
      );
      await sleep(40);
    }
  })();

  await work.run(async () => {
    await server.kill("SIGKILL");
    await server.start();
  });
  expect(work.done).toBe(OPERATIONS);
  const { tally, killed } = work;

  // Launches and failures that no call waited for finish.
  await vi.waitFor(
    async () => {
      const { provisioning, terminating } = await statsOf(server);
      expect({ provisioning, terminating }).toEqual({ provisioning: 0, terminating: 0 });
      expect(
        (await listOf(server)).filter(({ id, status }) => killed.has(id) && status !== "failed"),
      ).toEqual([]);
    },
    { timeout: 30_000, interval: 100 },
  );
  watching.abort();
  await watch;

  const list = await listOf(server);
  const running = list.filter(({ status }) => status === "running").map(({ id }) => id);
  const failed = list.filter(({ status }) => status === "failed").map(({ id }) => id);
  const left = [...tally.created].filter((id) => !tally.destroyed.has(id));
  expect(list.map(({ id }) => id).sort()).toEqual(left.sort());
  expect(running.length + failed.length).toBe(list.length);
  expect(await statsOf(server)).toEqual({
    active: running.length,
    provisioning: 0,
    terminating: 0,
    total_created: tally.created.size,
    total_destroyed: tally.destroyed.size,
  });

  // The other API, and the processes, cgroups, mounts and directories on the machine, agree with the counters.
  const client = server.client();
  const stats = await client.stats();
  const { items: failures } = await client.events.list({ types: ["sandbox.failed"], limit: 1_000 });
  const everFailed = new Set(failures.map(({ sandboxId }) => sandboxId ?? ""));
  for (const id of [...failed, ...tally.unlaunched]) expect(everFailed).toContain(id);
  expect(stats.totals).toMatchObject({
    created: tally.created.size,
    terminated: tally.destroyed.size,
    failed: everFailed.size,
  });
  expect(stats.sandboxes).toMatchObject({ ready: running.length, failed: failed.length });
  expect(alive(server.installation)).toEqual(running.sort());
  const things = server.leftovers().join("\n");
  for (const id of tally.destroyed) expect(things).not.toContain(id);
  for (const id of running) expect(things).toContain(id);

  // Every kind of operation has happened.
  expect(tally.created.size).toBeGreaterThan(OPERATIONS / 5);
  expect(tally.destroyed.size).toBeGreaterThan(OPERATIONS / 10);
  expect(tally.unlaunched.size).toBeGreaterThan(0);
  expect(killed.size).toBeGreaterThan(OPERATIONS / 100);
  for (const code of ["name_taken", "image_not_found"]) expect(tally.refused.get(code)).toBeGreaterThan(0);

  // The totals never decreased, not even across the server's death.
  expect(seen.length).toBeGreaterThan(10);
  for (const [i, { total_created, total_destroyed }] of seen.entries()) {
    const before = seen[i - 1];
    expect(total_created).toBeGreaterThanOrEqual(before?.total_created ?? 0);
    expect(total_destroyed).toBeGreaterThanOrEqual(before?.total_destroyed ?? 0);
    expect(total_destroyed).toBeLessThanOrEqual(total_created);
  }

  await Promise.all(left.map((id) => tally.destroy(id, "/api/sandbox")));
  expect(await statsOf(server)).toEqual({
    ...{ active: 0, provisioning: 0, terminating: 0 },
    total_created: tally.created.size,
    total_destroyed: tally.created.size,
  });
  expect(server.leftovers()).toEqual([]);
  client.close();
}, 180_000);
