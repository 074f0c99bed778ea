import { type Check, causeOf, type Proof, randomText } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { hasServed } from "./machine.ts";
import { wantedMounts } from "./mount-step.ts";
import {
  type ExecOrder,
  KeeperRefusal,
  type Link,
  type MountPoint,
  MountRefused,
  type Observation,
} from "./ports.ts";
import type { World } from "./world.ts";

/**
 * A proof goes the way a caller's requests go: a command is started and its output read back, a file is written, read
 * and removed, and the root and every mount are compared from inside and outside. Answering a ping is not enough: an instance whose root
 * was taken away pings and fails every exec.
 */
export class Prover {
  readonly #world: World;
  readonly #underWay = new Map<Cell, { links: Cell["links"]; proof: Promise<Proof> }>();

  constructor(world: World) {
    this.#world = world;
  }

  /**
   * A fresh proof; callers at the same time share one, unless it was begun before a sleep, or a life, that is over. Never
   * rejects: what went wrong is in the proof.
   */
  prove(cell: Cell): Promise<Proof> {
    const { links } = cell;
    const running = this.#underWay.get(cell);
    if (running?.links === links) return running.proof;
    const proof = this.#proveNow(cell).finally(() => {
      if (this.#underWay.get(cell)?.proof === proof) this.#underWay.delete(cell);
    });
    this.#underWay.set(cell, { links, proof });
    return proof;
  }

  async #proveNow(cell: Cell): Promise<Proof> {
    const { clock, numbers, log } = this.#world;
    const { links } = cell;
    const { generation, id: sandbox } = cell.record;
    const startedAt = clock.now();
    const checks = await within(clock, { ms: numbers.proofDeadlineMs, what: "the proof" }, (signal) =>
      this.#check(cell, signal),
    ).catch((error: unknown): Check[] => [
      { name: "link", ok: false, ms: clock.now() - startedAt, message: causeOf(error).message },
    ]);
    const at = clock.now();
    const proof: Proof = {
      at: new Date(at).toISOString(),
      generation,
      ok: checks.every((check) => check.ok),
      checks,
    };
    // Of what has slept or ended meanwhile it says nothing any more.
    if (cell.links === links) cell.learn(proof.ok ? { proof, provenAt: at } : { proof });
    if (!proof.ok) log.warn({ sandbox, generation, checks }, "the proof failed");
    return proof;
  }

  async #check(cell: Cell, signal: AbortSignal): Promise<Check[]> {
    const { driver, clock, numbers } = this.#world;
    const link = await cell.links?.get(numbers.linkWaitMs, signal);
    if (!link) throw new Error("there is no link");
    const observed = driver.observe([cell.id], signal).then((seen) => {
      const observation = seen.get(cell.id) ?? { seen: "unknown", at: clock.now(), why: "not looked at" };
      cell.learn({ observation });
      return observation;
    });
    const mounts = wantedMounts(cell.record).filter(({ path }) => !cell.mounting.has(path));
    return Promise.all([
      this.#timed("link", () => link.ping(signal)),
      this.#timed("exec", () => unlessFull(cell, () => runsCommand(link, signal))),
      this.#timed("files", () => unlessFull(cell, () => keepsFiles(link, signal))),
      this.#timed("root", async () => this.#sameRoot(cell, await observed, link, signal)),
      ...(mounts.length === 0
        ? []
        : [this.#timed("mounts", async () => sameMounts(cell, mounts, await observed, link, signal))]),
    ]);
  }

  /** What was seen wrong before the keeper answered may be past by then: it is looked at once more. */
  async #sameRoot(cell: Cell, before: Observation, link: Link, signal: AbortSignal): Promise<undefined> {
    const inside = await link.probe(signal);
    if (before.seen === "present" && before.problems.length === 0) return sameRoot(before, inside);
    const observation = (await this.#world.driver.observe([cell.id], signal)).get(cell.id) ?? before;
    cell.learn({ observation });
    return sameRoot(observation, inside);
  }

  /** A look at one mount, from both sides. Rejects with what is wrong with it. */
  async proveMount(cell: Cell, mount: MountPoint): Promise<void> {
    const { driver, clock, numbers } = this.#world;
    const limit = { ms: numbers.proofDeadlineMs, what: "proving the mount", signal: cell.fence.signal };
    await within(clock, limit, async (signal) => {
      const link = await cell.links?.get(numbers.linkWaitMs, signal);
      if (!link) throw new Error("there is no link");
      const observation = (await driver.observe([cell.id], signal)).get(cell.id);
      if (observation === undefined) throw new Error("the sandbox was not looked at");
      cell.learn({ observation });
      await sameMount(mount, observation, link, signal);
    });
    cell.learn({ provenMounts: [...new Set([...cell.health.provenMounts, mount.path])] });
  }

  async #timed(name: Check["name"], check: () => Promise<unknown>): Promise<Check> {
    const startedAt = performance.now();
    const ms = () => Math.round((performance.now() - startedAt) * 100) / 100;
    try {
      const message = await check();
      return { name, ok: true, ms: ms(), ...(typeof message === "string" ? { message } : {}) };
    } catch (error) {
      return { name, ok: false, ms: ms(), message: causeOf(error).message };
    }
  }
}

export const PROOF_EXEC_PREFIX = "proof-";

/** What a check says that passed but for that. */
export const DISK_FULL = "the disk is full: nothing can be written";

class DiskFull extends Error {
  override readonly name = "DiskFull";
}

/**
 * A full disk is the tenant's to empty, and needs a sandbox that serves to do it: callers are told that it is full by the
 * call that needs room. A sandbox that has never served, nor begun with what another wrote, is not called ready on a disk that has none to offer.
 */
async function unlessFull({ record }: Cell, check: () => Promise<void>): Promise<string | undefined> {
  const mayBeFull = record.phase.name === "running" || hasServed(record) || record.forkedFrom !== null;
  try {
    await check();
    return undefined;
  } catch (error) {
    if (mayBeFull && isFull(error)) return DISK_FULL;
    throw error;
  }
}

const isFull = (error: unknown): boolean =>
  error instanceof DiskFull ||
  (error instanceof KeeperRefusal && (error.errno === "ENOSPC" || error.errno === "EDQUOT"));

async function runsCommand(link: Link, signal: AbortSignal): Promise<void> {
  const token = randomText(16);
  const order: ExecOrder = {
    id: `${PROOF_EXEC_PREFIX}${token}` as ExecOrder["id"],
    argv: ["/.holdfast/keeper", "prove", token],
    env: {},
    cwd: "/",
    user: "",
    timeoutMs: 5_000,
    stdin: false,
    tty: null,
    journalCapBytes: 4096,
    digest: token,
  };
  await link.startExec(order, signal);
  try {
    const { records } = await readToEnd(link, order.id, signal);
    const said = Buffer.concat(records.map((record) => record.data)).toString("utf8");
    if (said.trim() === token) return;
    if (await lacksRoom(link, order.id, signal)) throw new DiskFull("there is no room for what it said");
    throw new Error(`the command said ${JSON.stringify(said.slice(0, 200))}`);
  } finally {
    link.forgetExec(order.id, { keepJournal: false }, signal).catch(() => undefined);
  }
}

/** Whether the command ran well, and only its output had nowhere to go. */
async function lacksRoom(link: Link, id: ExecOrder["id"], signal: AbortSignal): Promise<boolean> {
  const known = (await link.listExecs(signal)).find((exec) => exec.id === id);
  return known?.failure === "journal_full" && known.exitCode === 0;
}

async function readToEnd(link: Link, id: ExecOrder["id"], signal: AbortSignal) {
  const records = [];
  let cursor = 0;
  for (;;) {
    const slice = await link.readExec(id, { cursor, maxBytes: 4096, waitMs: 5_000 }, signal);
    records.push(...slice.records);
    cursor = slice.next;
    if (!slice.more) return { records };
  }
}

async function keepsFiles(link: Link, signal: AbortSignal): Promise<void> {
  const token = randomText(16);
  const path = `/tmp/.holdfast-proof-${token}`;
  await link.files.write(path, once(Buffer.from(token)), { parents: true }, signal);
  try {
    const { body } = await link.files.read(path, { offset: 0, length: null }, signal);
    const parts: Uint8Array[] = [];
    for await (const part of body) parts.push(part);
    const read = Buffer.concat(parts).toString("utf8");
    if (read !== token) throw new Error("a file did not read back as it was written");
  } finally {
    await link.files.remove(path, { recursive: false }, signal);
  }
}

async function* once(data: Uint8Array): AsyncIterable<Uint8Array> {
  yield data;
}

async function sameMounts(
  cell: Cell,
  mounts: readonly MountPoint[],
  observation: Observation,
  link: Link,
  signal: AbortSignal,
): Promise<undefined> {
  const { links } = cell;
  const looks = await Promise.allSettled(mounts.map((mount) => sameMount(mount, observation, link, signal)));
  const looked = new Set(mounts.map(({ path }) => path));
  const proven = mounts.filter((_, index) => looks[index]?.status === "fulfilled").map(({ path }) => path);
  // Of what was mounted meanwhile it says nothing, and what was given up meanwhile is not missed.
  const others = cell.health.provenMounts.filter((path) => !looked.has(path));
  if (cell.links === links) cell.learn({ provenMounts: [...others, ...proven] });
  const wanted = new Set(wantedMounts(cell.record).map(({ path }) => path));
  for (const [index, look] of looks.entries())
    if (look.status === "rejected" && wanted.has(mounts[index]?.path ?? "")) throw look.reason;
}

/** The directory that is seen inside is the very one that the drive has outside. Nothing is written into it. */
async function sameMount(
  { path }: MountPoint,
  observation: Observation,
  link: Link,
  signal: AbortSignal,
): Promise<void> {
  if (observation.seen !== "present") throw new Error(`the instance is ${observation.seen} from outside`);
  const seen = observation.mounts.find((each) => each.path === path);
  if (seen === undefined) throw new Error(`nothing is mounted at ${path}`);
  if (seen.problem !== null)
    throw seen.problem.code.startsWith("drive_")
      ? new MountRefused("drive_gone", seen.problem.message)
      : new Error(seen.problem.message);
  const inside = await link.files.stat(path, { follow: false }, signal);
  if (seen.outside === null || inside.dev !== seen.outside.dev || inside.ino !== seen.outside.ino)
    throw new Error(`what is seen at ${path} is not the drive`);
}

function sameRoot(observation: Observation, inside: { root: { dev: string; ino: string } }): undefined {
  if (observation.seen !== "present") throw new Error(`the instance is ${observation.seen} from outside`);
  const problem = observation.problems[0];
  if (problem !== undefined) throw new Error(problem.message);
  const outside = observation.root;
  if (outside === null) throw new Error("the root is not mounted on the host");
  if (outside.dev !== inside.root.dev || outside.ino !== inside.root.ino) {
    throw new Error("the root seen from inside is not the one mounted on the host");
  }
}
