import { newCheckpointId, newDriveId, newSandboxId } from "@holdfast/contract";
import { KEPT_FOR_GOOD, type PhaseState, type SandboxRecord } from "@holdfast/engine";
import { expect, test } from "vitest";
import { groupsOf } from "./groups.ts";
import { restoredRecord } from "./restored-record.ts";

const HOUR = 3_600_000;
const FACTS = { now: 10 * HOUR, takenAt: 4 * HOUR, hasFiles: true, hasMemory: false };
const checkpoint = {
  ...{ id: newCheckpointId(), takenAt: 1, generation: 3, sizeBytes: 9, keeperBootId: "boot" },
};

const recordIn = (phase: PhaseState, ttlMs?: number): SandboxRecord => ({
  ...{ id: newSandboxId(), name: "box", nameHeld: true, phase, generation: 3, memorySince: 3 },
  ...{ lease: { state: "held", generation: 3, startupDeadline: 0 }, instance: null },
  spec: {
    ...{ image: "host", env: {}, cwd: null, labels: {} },
    resources: { memoryMb: 512, cpus: 1, pids: 512 },
    lifecycle: ttlMs === undefined ? {} : { ttlMs },
  },
  ...{ createdAt: 0, lastActivityAt: 0, transitionedAt: 0, endedAt: null, owner: null, execsStarted: 0 },
  ...{ forkedFrom: null, mounts: [], restarts: null, revision: 5 },
});

test.each(["running", "paused"] as const)(
  "a sandbox that was %s sleeps without memory, and says so",
  (name) => {
    const { record, events } = restoredRecord(recordIn({ name }), FACTS);
    expect(record).toMatchObject({
      phase: { name: "standby", checkpoint: null },
      lease: { state: "stop_needed", reason: "standby" },
      restarts: { restoredAt: FACTS.now },
      revision: 6,
    });
    expect(events.map(({ type }) => type)).toEqual(["sandbox.memory_lost"]);
  },
);

test("a sleeping sandbox keeps its memory if that was restored, marked as restored", () => {
  const asleep = recordIn({ name: "standby", checkpoint, failedWakes: 1 });
  const kept = restoredRecord(asleep, { ...FACTS, hasMemory: true });
  expect(kept.record.phase).toEqual({
    name: "standby",
    checkpoint: { ...checkpoint, restored: true },
    failedWakes: 0,
  });
  expect(kept.record.lease).toEqual({ state: "none" });
  expect(kept.events).toEqual([]);
  const lost = restoredRecord(asleep, FACTS);
  expect(lost.record.phase).toMatchObject({ name: "standby", checkpoint: null });
  expect(lost.events.map(({ type }) => type)).toEqual(["sandbox.memory_lost"]);
});

test("a failed sandbox is kept until a request removes it", () => {
  const cause = { code: "died", message: "It died." };
  const { record } = restoredRecord(recordIn({ name: "failed", cause, keptUntil: 1 }), FACTS);
  expect(record.phase).toEqual({ name: "failed", cause, keptUntil: KEPT_FOR_GOOD });
});

test("the time in the backup does not count against the TTL", () => {
  const { record } = restoredRecord(recordIn({ name: "running" }, 5 * HOUR), FACTS);
  expect(record.spec.lifecycle.ttlMs).toBe(11 * HOUR);
});

test("a sandbox without files is gone, unless it had not been launched yet", () => {
  const without = { ...FACTS, hasFiles: false };
  const gone = restoredRecord(recordIn({ name: "running" }), without);
  expect(gone.record).toMatchObject({
    phase: { name: "gone", cause: { code: "not_in_backup" } },
    nameHeld: false,
  });
  expect(restoredRecord(recordIn({ name: "launching", deadline: 1 }), without).record).toMatchObject({
    phase: { name: "queued" },
    lease: { state: "none" },
    restarts: null,
  });
  const deleting = restoredRecord(recordIn({ name: "deleting", cause: null }), FACTS);
  expect(deleting.record.phase.name).toBe("gone");
});

test("sandboxes that share a drive are copied at one moment, and others are not", () => {
  const [one, two, three] = [newDriveId(), newDriveId(), newDriveId()];
  const using = (...ids: (typeof one)[]) => ({
    id: newSandboxId(),
    mounts: ids.map((driveId) => ({
      ...{ driveId, path: "/work", subpath: "/", readOnly: false, drive: "d", state: "wanted" as const },
    })),
  });
  const [a, b, c, alone] = [using(one), using(one, two), using(two), using()];
  const groups = groupsOf([a, b, c, alone], [{ id: one }, { id: two }, { id: three }]).map(
    ({ sandboxes, drives }) => [new Set(sandboxes), new Set(drives)],
  );
  expect(groups).toHaveLength(3);
  expect(groups).toContainEqual([new Set([a.id, b.id, c.id]), new Set([one, two])]);
  expect(groups).toContainEqual([new Set([alone.id]), new Set()]);
  expect(groups).toContainEqual([new Set(), new Set([three])]);
});
