import { execFile } from "node:child_process";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { HoldfastError } from "@holdfast/sdk";
import { type ChaosWorld, list } from "./chaos-world.ts";

const run = promisify(execFile);
/** How long to wait for a helper process, because helpers live only for milliseconds. */
const HELPER_WAIT_MS = 500;
const HELPER_POLL_MS = 2;

/** Injects a fault; returns whether there was a target. */
type Strike = (world: ChaosWorld) => Promise<boolean>;

/** A fault on a random sandbox that has a directory. */
const onSandbox =
  (strike: (world: ChaosWorld, id: string) => boolean | Promise<boolean>): Strike =>
  async (world) => {
    const ids = world.sandboxIds();
    return ids.length > 0 && strike(world, world.random.pick(ids));
  };

const onHelper =
  (signal: "SIGKILL" | "SIGSTOP"): Strike =>
  async (world) => {
    for (const end = Date.now() + HELPER_WAIT_MS; Date.now() < end; await sleep(HELPER_POLL_MS)) {
      const pids = world.helpers();
      if (pids.length > 0 && world.signal(world.random.pick(pids), signal)) return true;
    }
    return false;
  };

const onCommand = (signal: "SIGKILL" | "SIGSTOP"): Strike =>
  onSandbox((world, id) => {
    const pids = world.commandsOf(id);
    return pids.length > 0 && world.signal(world.random.pick(pids), signal);
  });

/** Some stopped keepers continue after a while, some never do. */
const stopKeeper = onSandbox((world, id) => {
  const pid = world.keeperOf(id);
  if (pid === null) return false;
  if (world.random.chance(0.7)) return world.suspend(pid, world.random.between(500, 9_000));
  world.damage(id, "stopped");
  return world.signal(pid, "SIGSTOP");
});

const REMOVABLE = ["upper", "work", "control", "bundle", "instance.json", "order.json", "disk.img"] as const;

/** Removes a part of a sandbox's directory, or all of it except mounts. */
const removeFiles = onSandbox(async (world, id) => {
  const whole = world.random.chance(0.3);
  const path = world.place(id, ...(whole ? [] : [world.random.pick(REMOVABLE)]));
  world.damage(id, "files");
  await run("rm", ["-rf", "--one-file-system", path]).catch(() => undefined);
  return true;
});

const removeRuntimeState: Strike = async ({ server, random }) => {
  const ids = list(join(server.dir, "runtime"));
  if (ids.length === 0) return false;
  rmSync(join(server.dir, "runtime", random.pick(ids)), { recursive: true, force: true });
  return true;
};

/** Applies to sandboxes that have such a path. */
const unmount =
  (name: "root" | "disk"): Strike =>
  async (world) => {
    const ids = world.sandboxIds().filter((id) => existsSync(world.place(id, name)));
    if (ids.length === 0) return false;
    const id = world.random.pick(ids);
    world.damage(id, "unmounted");
    return run("umount", ["-l", world.place(id, name)]).then(
      () => true,
      () => false,
    );
  };

const freeze = onSandbox((world, id) => {
  const state = `/sys/fs/cgroup/freezer/holdfast-${world.server.installation}/${id}/freezer.state`;
  try {
    writeFileSync(state, "FROZEN", { flag: "r+" });
    return true;
  } catch {
    return false;
  }
});

/** Writes of sandboxes to their sparse disks fail while the disk is full. */
function noteDisks(world: ChaosWorld): void {
  for (const id of world.sandboxIds()) if (existsSync(world.place(id, "disk"))) world.damage(id, "full");
}

/** Fills the disk from outside for a while. */
const fillFromOutside: Strike = async (world) => {
  noteDisks(world);
  world.disk.fill();
  await sleep(world.random.between(1_000, 8_000));
  noteDisks(world);
  world.disk.empty();
  return true;
};

/** A command fills the disk until its sandbox is deleted. */
const fillFromInside: Strike = async (world) => {
  noteDisks(world);
  const client = world.server.client({ outageMs: 90_000 });
  try {
    const box = await client.sandboxes.create({ name: "filler", ifExists: "return" });
    await box.execs.start("cat /dev/zero > ~/fill").catch(() => undefined);
    await sleep(world.random.between(1_000, 6_000));
    noteDisks(world);
    await box.delete();
    return true;
  } catch (error) {
    if (error instanceof HoldfastError) return false;
    throw error;
  } finally {
    client.close();
  }
};

const replace =
  (signal: "SIGKILL" | "SIGTERM"): Strike =>
  (world) =>
    world.replaceServer(signal, world.random.between(0, 3_000));

const stopServer: Strike = async (world) =>
  !world.isDown && world.suspend(world.server.pid, world.random.between(500, 6_000));

const keeperKilled = onSandbox((world, id) => {
  const pid = world.keeperOf(id);
  return pid !== null && world.signal(pid, "SIGKILL");
});

/** The faults by name, each with its relative frequency. */
const FAULTS: Record<string, [weight: number, strike: Strike]> = {
  "server killed": [4, replace("SIGKILL")],
  "server asked to stop": [1, replace("SIGTERM")],
  "server stopped": [2, stopServer],
  "keeper killed": [20, keeperKilled],
  "keeper stopped": [8, stopKeeper],
  "helper killed": [20, onHelper("SIGKILL")],
  "helper stopped": [3, onHelper("SIGSTOP")],
  "command killed": [10, onCommand("SIGKILL")],
  "command stopped": [6, onCommand("SIGSTOP")],
  "files removed": [8, removeFiles],
  "runtime state removed": [4, removeRuntimeState],
  "root unmounted": [6, unmount("root")],
  "disk unmounted": [3, unmount("disk")],
  frozen: [4, freeze],
  "disk filled from outside": [2, fillFromOutside],
  "disk filled from inside": [1, fillFromInside],
};

/** Faults of the whole server run one at a time; the others run concurrently with everything else. */
const ALONE = new Set([
  "server killed",
  "server asked to stop",
  "server stopped",
  "disk filled from outside",
  "disk filled from inside",
]);

/**
 * Injects random faults one after the other until `over` is aborted; returns how often each struck. A fault that
 * can't be undone ends the run.
 */
export async function storm(
  world: ChaosWorld,
  pauseMs: number,
  over: AbortController,
): Promise<Record<string, number>> {
  const struck: Record<string, number> = Object.fromEntries(Object.keys(FAULTS).map((name) => [name, 0]));
  const inProgress = new Map<string, Promise<void>>();
  const begin = (name: string, strike: Strike) => {
    const done = strike(world)
      .then((didHarm) => {
        if (didHarm) struck[name] = (struck[name] ?? 0) + 1;
      })
      .catch((error: unknown) => {
        world.problems.push(`${name}: ${error}`);
        over.abort();
      })
      .finally(() => inProgress.delete(key));
    const key = ALONE.has(name) ? name : `${name} ${Math.random()}`;
    inProgress.set(key, done);
  };
  while (!over.signal.aborted) {
    const [name, strike] = choose(world);
    if (!inProgress.has(name)) begin(name, strike);
    await sleep(world.random.between(0, pauseMs * 2), undefined, { signal: over.signal }).catch(
      () => undefined,
    );
  }
  await Promise.all(inProgress.values());
  return struck;
}

function choose({ random }: ChaosWorld): [string, Strike] {
  const entries = Object.entries(FAULTS);
  let at = random.next() * entries.reduce((sum, [, [weight]]) => sum + weight, 0);
  for (const [name, [weight, strike]] of entries) {
    at -= weight;
    if (at < 0) return [name, strike];
  }
  throw new RangeError("no fault to choose from");
}
