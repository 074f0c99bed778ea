import type { InstanceIdentity } from "@holdfast/engine";
import { expect, test } from "vitest";
import { readSandbox, type SandboxRow, sandboxRow } from "./rows.ts";
import { sampleSandbox } from "./testing/samples.ts";

/** Returns the row as the database would. */
const stored = (row: SandboxRow) => ({ ...row, position: 1 }) as Parameters<typeof readSandbox>[0];

const instanceOf = (sandboxId: string) => ({
  sandboxId,
  generation: 1,
  pid: 4711,
  startTime: "123",
  hostBootId: "boot",
  keeperVersion: "1",
  keeperBootId: "keeper",
});

test("an instance stored with a pid, a start time and a boot id is read as an instance with that identity", () => {
  const record = sampleSandbox({ generation: 1 });
  const row = { ...stored(sandboxRow(record)), instance: JSON.stringify(instanceOf(record.id)) };
  expect(readSandbox(row).instance).toEqual({
    sandboxId: record.id,
    generation: 1,
    identity: { pid: 4711, startTime: "123", hostBootId: "boot" },
    keeperVersion: "1",
    keeperBootId: "keeper",
  });
});

test("an instance is stored as earlier versions stored it", () => {
  const record = sampleSandbox({ generation: 1 });
  const { pid, startTime, hostBootId, ...fields } = instanceOf(record.id);
  const identity = { pid, startTime, hostBootId } as unknown as InstanceIdentity;
  const { instance } = sandboxRow({ ...record, instance: { ...fields, sandboxId: record.id, identity } });
  expect(JSON.parse(instance ?? "")).toEqual(instanceOf(record.id));
});

test("a held lease is read without the boot id that earlier versions stored", () => {
  const lease = { state: "held", generation: 1, startupDeadline: 5 } as const;
  const row = stored(sandboxRow(sampleSandbox({ generation: 1, lease })));
  expect(JSON.parse(row.lease)).toEqual({ ...lease, hostBootId: null });
  const earlier = { ...row, lease: JSON.stringify({ ...lease, hostBootId: "boot" }) };
  expect([readSandbox(row).lease, readSandbox(earlier).lease]).toEqual([lease, lease]);
});
