/** A server that kills itself with SIGKILL at one point in the life of a drive or of a mount. */
import type { Change, DriveDirectories, Driver, Ports, SandboxRecord, Store } from "@holdfast/engine";
import { replacing, replacingCapability } from "../server/replacing.ts";
import { serve } from "../server/wrapped-server.ts";
import type { DrivePoint } from "./drive-crash-points.ts";

const chosen = process.env.HOLDFAST_CRASH_AT;

function at(point: DrivePoint | null): void {
  if (point !== null && point === chosen) process.kill(process.pid, "SIGKILL");
}

type Points = [before: DrivePoint | null, after: DrivePoint | null];

function pointsOf(change: Change, before: SandboxRecord | undefined): Points | null {
  if (change.kind === "drive.insert") return ["before the drive is stored", "when the drive is stored"];
  if (change.kind === "drive.remove") return [null, "when the drive's absence is stored"];
  if (change.kind === "drive.update")
    return change.record.phase === "ready"
      ? [null, "when the drive's creation is stored"]
      : ["before the removal is stored", "when the removal is stored"];
  if (change.kind !== "sandbox.update" || before === undefined) return null;
  return pointsOfMounts(change.record, before);
}

function pointsOfMounts({ mounts, phase }: SandboxRecord, before: SandboxRecord): Points | null {
  if (phase.name !== "running" || before.phase.name !== "running") return null;
  const [now, then] = [mounts[0]?.state ?? null, before.mounts[0]?.state ?? null];
  if (now === "wanted")
    return then === null ? ["before the mount is stored", "when the mount is stored"] : COMPLETED;
  if (now === "removing") return ["before the unmount is stored", "when the unmount is stored"];
  return then === "removing" ? [null, "when the completed unmount is stored"] : null;
}

const COMPLETED: Points = ["before the completed mount is stored", "when the completed mount is stored"];

function dyingStore<S extends Store>(store: S): S {
  const last = new Map<string, SandboxRecord>();
  return replacing(store, {
    liveSandboxes: async () => {
      const records = await store.liveSandboxes();
      for (const record of records) last.set(record.id, record);
      return records;
    },
    commit: async (commit) => {
      const points = commit.changes.map((change) =>
        pointsOf(change, "record" in change ? last.get(change.record.id) : undefined),
      );
      for (const each of points) at(each?.[0] ?? null);
      await store.commit(commit);
      for (const change of commit.changes)
        if (change.kind === "sandbox.update" || change.kind === "sandbox.insert")
          last.set(change.record.id, change.record);
      for (const each of points) at(each?.[1] ?? null);
    },
  } as Partial<S>);
}

const dyingDrives = (drives: DriveDirectories): DriveDirectories =>
  replacing(drives, {
    make: async (...given) => {
      await drives.make(...given);
      at("when the drive is created");
    },
    destroy: async (...given) => {
      await drives.destroy(...given);
      at("when the drive is removed");
    },
  });

const dyingDriver = (driver: Driver): Driver =>
  replacingCapability(driver, "drives", (support) => ({
    directories: dyingDrives(support.directories),
    mount: async (...given) => {
      await support.mount(...given);
      at("when it is mounted");
    },
    unmount: async (...given) => {
      await support.unmount(...given);
      at("when it is unmounted");
    },
  }));

await serve((ports: Ports) => ({
  ...ports,
  store: dyingStore(ports.store),
  driver: dyingDriver(ports.driver),
}));
