/** The server that kills itself with SIGKILL at one moment of a standby, a wake, a checkpoint or a fork. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Driver, Ports, SandboxRecord, Store } from "@holdfast/engine";
import { replacing } from "./replacing.ts";
import type { SleepPoint } from "./sleep-crash.ts";
import { serve } from "./wrapped-server.ts";

const chosen = process.env.HOLDFAST_CRASH_AT;
/** Long enough for criu to be at work, and shorter than it takes. */
const AT_WORK_MS = 25;

function at(point: SleepPoint): void {
  if (point === chosen) process.kill(process.pid, "SIGKILL");
}

/** Before and after the commit that makes a record say this. */
function pointsOf(record: SandboxRecord, before: SandboxRecord | undefined): (SleepPoint | null)[] {
  const { phase, lease, instance, forkedFrom } = record;
  if (phase.name === "queued" && forkedFrom !== null)
    return ["before the fork is stored", "when the fork is stored"];
  if (phase.name === "launching" && forkedFrom !== null)
    return [null, instance === null ? "when its lease is stored" : "when its launch is stored"];
  if (phase.name === "running" && before?.phase.name === "launching" && forkedFrom !== null)
    return ["before its proof is stored", "when its proof is stored"];
  if (phase.name === "running" && before?.phase.name === "suspending")
    return ["before the checkpoint is stored", "when the checkpoint is stored"];
  if (phase.name === "suspending")
    return ["before the suspending is stored", "when the suspending is stored"];
  if (phase.name === "standby" && before?.phase.name === "suspending")
    return ["before the standby is stored", "when the standby is stored"];
  if (phase.name === "standby" && lease.state === "none" && before?.phase.name === "standby")
    return ["when its processes are ended", "when their absence is stored"];
  if (phase.name === "waking" && !phase.consumed)
    return ["before the waking is stored", "when the waking is stored"];
  if (phase.name === "waking") return ["before the spending is stored", "when the spending is stored"];
  if (phase.name === "running" && before?.phase.name === "waking")
    return ["before the waking up is stored", "when the waking up is stored"];
  return [];
}

function dyingStore<S extends Store>(store: S): S {
  const last = new Map<string, SandboxRecord>();
  return replacing(store, {
    commit: async (commit) => {
      const records = commit.changes.flatMap((change) =>
        change.kind === "sandbox.update" || change.kind === "sandbox.insert" ? [change.record] : [],
      );
      const points = records.map((record) => pointsOf(record, last.get(record.id)));
      for (const [before] of points) if (before) at(before);
      await store.commit(commit);
      for (const record of records) last.set(record.id, record);
      for (const [, after] of points) if (after) at(after);
    },
  } as Partial<S>);
}

/** Asks, and dies while it is being done. */
async function during<Answer>(point: SleepPoint, work: Promise<Answer>): Promise<Answer> {
  if (point === chosen) await Promise.race([sleep(AT_WORK_MS), work]);
  at(point);
  return work;
}

let wasThawed = false;

const dyingDriver = (driver: Driver): Driver =>
  replacing(driver, {
    freeze: async (...given) => {
      at("before the freeze");
      await driver.freeze(...given);
      at("when it is frozen");
    },
    checkpoint: async (...given) => {
      const made = await during("while its memory is written", driver.checkpoint(...given));
      at("when its memory is written");
      return made;
    },
    save: async (...given) => {
      const made = await during("while it is copied", driver.save(...given));
      at("when it is copied");
      return made;
    },
    launch: async (...given) => {
      if (given[0].fork === undefined) return driver.launch(...given);
      const instance = await during("while it is launched", driver.launch(...given));
      at("when it is launched");
      return instance;
    },
    stop: async (...given) => {
      at("before its processes are ended");
      return driver.stop(...given);
    },
    restore: async (...given) => {
      const instance = await during("while its memory is restored", driver.restore(...given));
      at("when its memory is restored");
      return instance;
    },
    thaw: async (...given) => {
      at("before the thaw");
      await driver.thaw(...given);
      wasThawed = true;
      at("when it is thawed");
    },
    connect: async (...given) => {
      // Links are made at other times too; only one that follows a restore counts.
      if (given[0].generation > 1) at("when its keeper is asked");
      return driver.connect(...given);
    },
    discard: async (...given) => {
      // Also what is left of earlier ones is discarded, when a server starts.
      if (wasThawed) at("before its checkpoint is discarded");
      return driver.discard(...given);
    },
  });

await serve((ports: Ports) => ({
  ...ports,
  store: dyingStore(ports.store),
  driver: dyingDriver(ports.driver),
}));
