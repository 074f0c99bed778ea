import { type Check, causeOf, type Proof, randomText } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { wantedMounts } from "../model/mount-machine.ts";
import { hasServed } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import {
  type ExecOrder,
  KeeperRefusal,
  type Link,
  type MountPoint,
  MountRefused,
  type Observation,
} from "../ports/index.ts";

/**
 * Proves that an instance serves, along the path of a caller's requests: it starts a command and reads its output,
 * writes, reads and removes a file, and compares the root and every mount from inside and outside. A ping is not
 * enough: an instance whose root was unmounted answers pings and fails every exec.
 */
export class Prover {
  readonly #context: EngineContext;
  readonly #inProgress = new Map<LiveSandbox, { linkEpoch: number; proof: Promise<Proof> }>();

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /**
   * Runs a new proof, or returns the proof in progress. A proof in progress that began before a standby or a new
   * launch, and thus over an earlier link, is not returned. Never rejects: failures are part of the proof.
   */
  prove(live: LiveSandbox): Promise<Proof> {
    const { linkEpoch } = live;
    const running = this.#inProgress.get(live);
    if (running?.linkEpoch === linkEpoch) return running.proof;
    const proof = this.#proveNow(live).finally(() => {
      if (this.#inProgress.get(live)?.proof === proof) this.#inProgress.delete(live);
    });
    this.#inProgress.set(live, { linkEpoch, proof });
    return proof;
  }

  async #proveNow(live: LiveSandbox): Promise<Proof> {
    const { clock, numbers, log } = this.#context;
    const { linkEpoch } = live;
    const { generation, id: sandbox } = live.record;
    const startedAt = clock.now();
    const checks = await within(clock, { ms: numbers.proofDeadlineMs, what: "the proof" }, (signal) =>
      this.#check(live, signal),
    ).catch((error: unknown): Check[] => [
      { name: "link", ok: false, ms: clock.now() - startedAt, message: causeOf(error).message },
    ]);
    const at = clock.now();
    const proof: Proof = {
      at: iso(at),
      generation,
      ok: checks.every((check) => check.ok),
      checks,
    };
    // The proof is ignored if the sandbox was suspended or its instance ended in the meantime.
    if (live.linkEpoch === linkEpoch) live.learn(proof.ok ? { proof, provenAt: at } : { proof });
    if (!proof.ok) log.warn({ sandbox, generation, checks }, "the proof failed");
    return proof;
  }

  async #check(live: LiveSandbox, signal: AbortSignal): Promise<Check[]> {
    const { driver, clock, numbers } = this.#context;
    const link = await live.waitForLink(numbers.linkWaitMs, signal);
    if (!link) throw new Error("there is no link");
    const observed = driver.observe([live.id], signal).then((seen) => {
      const observation = seen.get(live.id) ?? { seen: "unknown", at: clock.now(), why: "not looked at" };
      live.learn({ observation });
      return observation;
    });
    const mounts = wantedMounts(live.record).filter(({ path }) => !live.isMounting(path));
    return Promise.all([
      this.#timed("link", () => link.ping(signal)),
      this.#timed("exec", () => unlessFull(live, () => runsCommand(link, signal))),
      this.#timed("files", () => unlessFull(live, () => keepsFiles(link, signal))),
      this.#timed("root", async () => this.#sameRoot(live, await observed, link, signal)),
      ...(mounts.length === 0
        ? []
        : [this.#timed("mounts", async () => sameMounts(live, mounts, await observed, link, signal))]),
    ]);
  }

  /**
   * Compares the root from inside and outside. If the last observation found a problem, observes again, because the
   * problem may be gone by now.
   */
  async #sameRoot(
    live: LiveSandbox,
    before: Observation,
    link: Link,
    signal: AbortSignal,
  ): Promise<undefined> {
    const inside = await link.probe(signal);
    if (before.seen === "present" && before.problems.length === 0) return sameRoot(before, inside);
    const observation = (await this.#context.driver.observe([live.id], signal)).get(live.id) ?? before;
    live.learn({ observation });
    return sameRoot(observation, inside);
  }

  /** Compares one mount from inside and outside. Rejects with the problem, if there is one. */
  async proveMount(live: LiveSandbox, mount: MountPoint): Promise<void> {
    const { driver, clock, numbers } = this.#context;
    const limit = { ms: numbers.proofDeadlineMs, what: "proving the mount", signal: live.deletedSignal };
    await within(clock, limit, async (signal) => {
      const link = await live.waitForLink(numbers.linkWaitMs, signal);
      if (!link) throw new Error("there is no link");
      const observation = (await driver.observe([live.id], signal)).get(live.id);
      if (observation === undefined) throw new Error("the sandbox was not looked at");
      live.learn({ observation });
      await sameMount(mount, observation, link, signal);
    });
    live.learn({ provenMounts: [...new Set([...live.health.provenMounts, mount.path])] });
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

/** The message of a check that passed although the disk was full. */
export const DISK_FULL = "the disk is full: nothing can be written";

class DiskFull extends Error {
  override readonly name = "DiskFull";
}

/**
 * Runs a check, and accepts its failure if the only reason is a full disk. A caller can free space only in a sandbox
 * that serves, and calls that need space report the full disk themselves. The first launch of a sandbox that is not a
 * fork must pass the check.
 */
async function unlessFull({ record }: LiveSandbox, check: () => Promise<void>): Promise<string | undefined> {
  const mayBeFull = record.phase.name !== "launching" || hasServed(record) || record.forkedFrom !== null;
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
    const output = Buffer.concat(records.map((record) => record.data)).toString("utf8");
    if (output.trim() === token) return;
    if (await lacksRoom(link, order.id, signal))
      throw new DiskFull("there is no room for the command's output");
    throw new Error(`the command printed ${JSON.stringify(output.slice(0, 200))}`);
  } finally {
    // If the request fails, the keeper keeps the proof's exec in its list and is asked again over the next link to
    // forget it.
    link.forgetExec(order.id, { keepJournal: false }, signal).catch(() => undefined);
  }
}

/** Whether the command succeeded and only its output could not be stored. */
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
  live: LiveSandbox,
  mounts: readonly MountPoint[],
  observation: Observation,
  link: Link,
  signal: AbortSignal,
): Promise<undefined> {
  const { linkEpoch } = live;
  const looks = await Promise.allSettled(mounts.map((mount) => sameMount(mount, observation, link, signal)));
  const looked = new Set(mounts.map(({ path }) => path));
  const proven = mounts.filter((_, index) => looks[index]?.status === "fulfilled").map(({ path }) => path);
  // Mounts that this proof did not check keep their earlier results.
  const others = live.health.provenMounts.filter((path) => !looked.has(path));
  if (live.linkEpoch === linkEpoch) live.learn({ provenMounts: [...others, ...proven] });
  // A mount that was removed during the proof can't make the proof fail.
  const wanted = new Set(wantedMounts(live.record).map(({ path }) => path));
  for (const [index, look] of looks.entries())
    if (look.status === "rejected" && wanted.has(mounts[index]?.path ?? "")) throw look.reason;
}

/**
 * Checks that the directory at the mount path inside the sandbox is the drive's directory outside. It writes nothing to
 * the drive.
 */
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
    throw new Error(`the directory at ${path} is not the drive`);
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
