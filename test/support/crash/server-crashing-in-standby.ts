/** A server that kills itself with SIGKILL at one point of a standby, a wake, a checkpoint or a fork. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Driver, Ports, SandboxRecord, Store } from "@holdfast/engine";
import { replacing, replacingCapability } from "../server/replacing.ts";
import { serve } from "../server/wrapped-server.ts";
import type { SleepPoint } from "./standby-crash-points.ts";

const chosen = process.env.HOLDFAST_CRASH_AT;
/** Long enough for CRIU to be working, and shorter than its work takes. */
const AT_WORK_MS = 25;

function at(point: SleepPoint): void {
  if (point === chosen) process.kill(process.pid, "SIGKILL");
}

/** Returns the points before and after the commit that stores this record. */
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
    return ["before the suspension is stored", "when the suspension is stored"];
  if (phase.name === "standby" && before?.phase.name === "suspending")
    return ["before the standby is stored", "when the standby is stored"];
  if (phase.name === "standby" && lease.state === "none" && before?.phase.name === "standby")
    return ["when its processes are ended", "when their absence is stored"];
  if (phase.name === "waking" && !phase.consumed)
    return ["before the wake is stored", "when the wake is stored"];
  if (phase.name === "waking")
    return ["before the checkpoint is stored as spent", "when the checkpoint is stored as spent"];
  if (phase.name === "running" && before?.phase.name === "waking")
    return ["before the completed wake is stored", "when the completed wake is stored"];
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

/** Starts the operation, and kills the server while it is in progress. */
async function during<Answer>(point: SleepPoint, work: Promise<Answer>): Promise<Answer> {
  if (point === chosen) await Promise.race([sleep(AT_WORK_MS), work]);
  at(point);
  return work;
}

let wasThawed = false;

const dyingFreezer = (driver: Driver): Driver =>
  replacingCapability(driver, "freezer", (freezer) => ({
    freeze: async (...given) => {
      at("before the freeze");
      await freezer.freeze(...given);
      at("when it is frozen");
    },
    thaw: async (...given) => {
      at("before the thaw");
      await freezer.thaw(...given);
      wasThawed = true;
      at("when it is thawed");
    },
  }));

const dyingStandby = (driver: Driver): Driver =>
  replacingCapability(driver, "standby", (standby) => ({
    checkpoint: async (...given) => {
      const made = await during("while its memory is written", standby.checkpoint(...given));
      at("when its memory is written");
      return made;
    },
    restore: async (...given) => {
      const instance = await during("while its memory is restored", standby.restore(...given));
      at("when its memory is restored");
      return instance;
    },
    discard: async (...given) => {
      // Only a discard after a thaw counts, because a starting server discards leftovers of earlier checkpoints too.
      if (wasThawed) at("before its checkpoint is discarded");
      return standby.discard(...given);
    },
  }));

const dyingCheckpoints = (driver: Driver): Driver =>
  replacingCapability(driver, "checkpoints", (checkpoints) => ({
    save: async (...given) => {
      const made = await during("while it is copied", checkpoints.save(...given));
      at("when it is copied");
      return made;
    },
  }));

const dyingDriver = (driver: Driver): Driver =>
  replacing(dyingFreezer(dyingStandby(dyingCheckpoints(driver))), {
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
    connect: async (...given) => {
      // Only a link that follows a restore counts.
      if (given[0].generation > 1) at("when its keeper is asked");
      return driver.connect(...given);
    },
  });

await serve((ports: Ports) => ({
  ...ports,
  store: dyingStore(ports.store),
  driver: dyingDriver(ports.driver),
}));
