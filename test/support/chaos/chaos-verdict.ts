/** Conditions that hold after the faults have stopped, without any repair from outside. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { type Holdfast, HoldfastError, type SandboxInfo } from "@holdfast/sdk";
import { descriptors, residentBytes } from "../server/observe.ts";
import type { Workload } from "./chaos-workload.ts";
import { type ChaosWorld, list, read } from "./chaos-world.ts";

const SETTLE_MS = 150_000;
const POLL_MS = 500;
const AT_ONCE = 8;

export interface Burden {
  descriptors: number;
  residentBytes: number;
}

export const burdenOf = (pid: number): Burden => ({
  descriptors: descriptors(pid).length,
  residentBytes: residentBytes(pid),
});

/** Repeats a check until it finds nothing wrong or the time is over; returns what is still wrong then. */
async function until(look: () => Promise<string[]> | string[], withinMs = SETTLE_MS): Promise<string[]> {
  const end = Date.now() + withinMs;
  for (;;) {
    const wrong = await Promise.resolve(look()).catch((error: unknown) => [`the check failed: ${error}`]);
    if (wrong.length === 0 || Date.now() > end) return wrong;
    await sleep(POLL_MS);
  }
}

async function all(client: Holdfast): Promise<SandboxInfo[]> {
  const items: SandboxInfo[] = [];
  for (let cursor: string | undefined; ; ) {
    const page = await client.sandboxes.list({ limit: 1_000, cursor });
    items.push(...page.items);
    if (page.nextCursor === null) return items;
    cursor = page.nextCursor;
  }
}

async function inParallel<Item>(
  items: Iterable<Item>,
  work: (item: Item) => Promise<unknown>,
): Promise<void> {
  const todo = [...items].values();
  const worker = async () => {
    for (const item of todo) await work(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/**
 * Checks that a sandbox is ready and proven; failed, with a cause and nothing left to stop; or degraded by permanent
 * damage.
 */
function unsettled(world: ChaosWorld, { id, status, cause, lease }: SandboxInfo): string[] {
  const description = `${id} is ${status} (${cause?.code ?? "no cause"}: ${cause?.message ?? ""}), lease ${JSON.stringify(lease)}`;
  if (status === "ready" && lease.state === "held") return [];
  if (status === "failed" && lease.state === "none" && cause !== null) return [];
  if (status === "degraded" && cause !== null && world.damaged.has(id)) return [];
  return [description];
}

/** Returns physical resources of sandboxes that have no record. */
const unowned = (world: ChaosWorld, owners: ReadonlySet<string>): string[] =>
  world.server
    .leftovers()
    .filter((thing) => !thing.startsWith("process "))
    .filter((thing) => !owners.has(/sbx_[0-9a-z]+/.exec(thing)?.[0] ?? ""));

export async function settled(world: ChaosWorld, client: Holdfast): Promise<string[]> {
  return until(async () => {
    const items = await all(client);
    const stats = await client.stats();
    const wrong = items.flatMap((item) => unsettled(world, item));
    if (stats.orphans > 0) wrong.push(`${stats.orphans} orphans`);
    wrong.push(...unowned(world, new Set(items.map(({ id }) => id))).map((thing) => `unowned: ${thing}`));
    const { totals } = stats;
    if (totals.created - totals.terminated !== items.length)
      wrong.push(`${totals.created} created, ${totals.terminated} terminated, ${items.length} there`);
    return wrong;
  });
}

/** Checks that sandboxes can be created again, regardless of how many launches failed before. */
export async function creates(client: Holdfast): Promise<string[]> {
  return until(async () => {
    const box = await client.sandboxes.create();
    await box.delete();
    const { state } = (await client.stats()).launches;
    return state === "open" ? [] : [`launches are ${state}`];
  });
}

/** Ignores findings about sandboxes that were broken permanently. */
export async function audited(world: ChaosWorld, client: Holdfast): Promise<string[]> {
  return until(async () => {
    const { complete, findings } = await client.audit();
    const unexplained = findings.filter(
      ({ sandboxId, kind }) => kind !== "unknown" || !world.damaged.has(sandboxId ?? ""),
    );
    return [
      ...(complete ? [] : ["the audit is not complete"]),
      ...unexplained.map(
        ({ kind, sandboxId, action, message }) => `audit: ${kind} ${sandboxId} ${action}: ${message}`,
      ),
    ];
  });
}

/** Ready sandboxes serve, have all acknowledged data, and ran nothing twice. */
export async function served(world: ChaosWorld, client: Holdfast, workload: Workload): Promise<string[]> {
  const wrong: string[] = [];
  const ready = (await all(client)).filter(({ status }) => status === "ready");
  await inParallel(ready, async ({ id, lifecycle }) => {
    try {
      const box = await client.sandboxes.get(id);
      const { stdout } = await box.exec("echo here", { giveUpAfterMs: 30_000 });
      if (stdout !== "here\n") wrong.push(`${id} says ready and prints ${JSON.stringify(stdout)}`);
      if (world.damaged.has(id)) return;
      const ran = (await box.exec("cat ~/ran 2>/dev/null")).stdout?.split("\n").filter(Boolean) ?? [];
      const seen = new Set(ran);
      if (seen.size < ran.length) wrong.push(`${id} ran something twice`);
      const lost = workload.known.get(id)?.acknowledged.filter((token) => !seen.has(token)) ?? [];
      if (lost.length > 0) wrong.push(`${id} lost ${lost.length} of ${ran.length} acknowledged writes`);
    } catch (error) {
      // The sandbox may have reached its maximum age meanwhile.
      const isOver = error instanceof HoldfastError && ["sandbox_gone", "wrong_state"].includes(error.code);
      if (!isOver || lifecycle.ttlMs === undefined)
        wrong.push(`${id} says ready and does not serve: ${error}`);
    }
  });
  return wrong;
}

export async function deleted(world: ChaosWorld, client: Holdfast): Promise<string[]> {
  const wrong: string[] = [];
  await inParallel(await all(client), async ({ id }) => {
    await client.sandboxes
      .delete(id)
      .catch((error: unknown) => wrong.push(`${id} can't be deleted: ${error}`));
  });
  const gone = await until(() => [...world.server.leftovers(), ...furtherLeftovers(world)], 60_000);
  return [...wrong, ...gone.map((thing) => `left behind: ${thing}`)];
}

/** Leftovers without a marker that `leftovers` checks: helpers, loop devices, archived journals, zombies. */
function furtherLeftovers({ server }: ChaosWorld): string[] {
  const { dir, pid: serverPid } = server;
  const processes = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && Number(name) !== serverPid && !isSpawnerOf(serverPid, name))
    .filter((pid) => {
      const text = `${read(`/proc/${pid}/cmdline`)}\0${read(`/proc/${pid}/environ`)}`;
      return text.includes(`${dir}/`) || text.includes(`HOLDFAST_HELPER=${server.installation}/`);
    });
  const zombies = read(`/proc/${serverPid}/task/${serverPid}/children`)
    .split(" ")
    .filter((pid) => pid !== "" && /^State:\s+Z/m.test(read(`/proc/${pid}/status`)));
  const loops = list("/sys/block").filter((name) =>
    read(`/sys/block/${name}/loop/backing_file`).startsWith(`${dir}/`),
  );
  return [
    ...processes.map((pid) => `process ${pid}`),
    ...zombies.map((pid) => `zombie ${pid}`),
    ...loops.map((name) => `loop device ${name}`),
    ...list(join(dir, "journals")).map((name) => `journals of ${name}`),
  ];
}

/** The spawner of the server's helpers lives as long as the server. */
const isSpawnerOf = (serverPid: number, pid: string): boolean =>
  read(`/proc/${pid}/cmdline`).endsWith("/porter\0spawn\0") &&
  new RegExp(`^PPid:\\s+${serverPid}$`, "m").test(read(`/proc/${pid}/status`));

/** Compares the stored counters with the stored records, after the server has closed the database. */
export function counted({ server }: ChaosWorld): string[] {
  const database = new DatabaseSync(join(server.dir, "holdfast.db"));
  try {
    const number = (sql: string) => Number(Object.values(database.prepare(sql).get() ?? {})[0]);
    const counter = (name: string) => number(`SELECT value FROM counters WHERE name = '${name}'`);
    const events = (type: string) => number(`SELECT count(*) FROM events WHERE type = '${type}'`);
    const pairs: [string, number, number][] = [
      ["created = records", counter("created"), number("SELECT count(*) FROM sandboxes")],
      ["created = said to be", counter("created"), events("sandbox.created")],
      ["terminated = created", counter("terminated"), counter("created")],
      ["terminated = said to be", counter("terminated"), events("sandbox.terminated")],
      ["failed = said to have", counter("failed"), events("sandbox.failed")],
      ["execs started = said to be", counter("execsStarted"), events("exec.started")],
      ["execs ended = started", counter("execsEnded"), counter("execsStarted")],
      ["execs ended = said to be", counter("execsEnded"), events("exec.ended")],
      ["records that are not gone", number("SELECT count(*) FROM sandboxes WHERE phase <> 'gone'"), 0],
      ["execs without an end", number("SELECT count(*) FROM execs WHERE ended_at IS NULL"), 0],
    ];
    const wrong = pairs.filter(([, a, b]) => a !== b).map(([what, a, b]) => `${what}: ${a}, ${b}`);
    const sound = database.prepare("PRAGMA integrity_check").get()?.integrity_check;
    return sound === "ok" ? wrong : [...wrong, `the database is ${sound}`];
  } finally {
    database.close();
  }
}

/**
 * Checks that the server without sandboxes uses as few resources as a new one, within what a runtime keeps in stock.
 */
export function lightened(now: Burden, fresh: Burden): string[] {
  const wrong: string[] = [];
  if (now.descriptors > fresh.descriptors + 10)
    wrong.push(`${now.descriptors} descriptors, ${fresh.descriptors} when it was new`);
  if (now.residentBytes > fresh.residentBytes + 250 * 1_048_576)
    wrong.push(`${now.residentBytes} bytes of memory, ${fresh.residentBytes} when it was new`);
  return wrong;
}

/** Returns files that a killed crun leaves in the host's temporary directory, without a sign of their owner. */
export const strayFiles = (): string[] => readdirSync("/tmp").filter((name) => name.startsWith("crun."));
