import { NUMBERS, type Proof } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { InstanceIdentity, Observation } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";
import { queuedSandbox } from "../testing/samples.ts";
import { filesLeft, type Health, judge } from "./status.ts";

const NOW = 1_000_000;
const proof = (over: Partial<Proof> = {}): Proof => ({
  at: new Date(NOW - 100).toISOString(),
  generation: 1,
  ok: true,
  checks: [],
  ...over,
});
const present: Observation = {
  seen: "present",
  at: NOW,
  identity: { pid: 9 } as unknown as InstanceIdentity,
  state: "running",
  root: { dev: "1", ino: "2" },
  oomKills: 0,
  mounts: [],
  problems: [],
};

const running = queuedSandbox({
  phase: { name: "running" },
  generation: 1,
  lease: { state: "held", generation: 1, startupDeadline: 0 },
  transitionedAt: NOW - 1_000,
});
const well: Health = {
  proof: proof(),
  provenAt: NOW - 100,
  heardAt: NOW - 50,
  linkDown: null,
  observation: present,
  frozenFor: null,
  filesCheck: null,
  provenMounts: [],
};

describe("status", () => {
  it("is ready with a lease, a passed proof, a recent heartbeat and a clean observation", () => {
    expect(judge(running, well, NOW, NUMBERS)).toEqual({ status: "ready", cause: null });
  });

  const bad: [claim: string, health: Partial<Health>, record: Partial<SandboxRecord>, code: string][] = [
    ["the lease is not held", {}, { lease: { state: "none" } }, "lease_lost"],
    ["there is no proof", { proof: null }, {}, "unproven"],
    ["the proof is of an earlier generation", { proof: proof({ generation: 0 }) }, {}, "unproven"],
    [
      "the proof failed",
      { proof: proof({ ok: false, checks: [{ name: "exec", ok: false, ms: 1 }] }) },
      {},
      "proof_failed",
    ],
    ["two heartbeats were missed", { heardAt: NOW - NUMBERS.linkDeadMs - 1 }, {}, "keeper_silent"],
    ["the keeper was never heard", { heardAt: null }, {}, "keeper_silent"],
    ["the link is down", { linkDown: "closed" }, {}, "link_down"],
    [
      "the instance was seen to be absent",
      { observation: { seen: "absent", at: NOW, leftovers: [] } },
      {},
      "keeper_died",
    ],
    [
      "the instance could not be observed",
      { observation: { seen: "unknown", at: NOW, why: "?" } },
      {},
      "observation_unknown",
    ],
    [
      "the observation found a problem",
      { observation: { ...present, problems: [{ code: "root_unmounted", message: "gone" }] } },
      {},
      "root_unmounted",
    ],
  ];
  it.each(bad)("is degraded when %s", (_claim, health, record, code) => {
    const judged = judge({ ...running, ...record }, { ...well, ...health }, NOW, NUMBERS);
    expect(judged.status).toBe("degraded");
    expect(judged.cause?.code).toBe(code);
  });

  it("follows from the phase if no instance should be serving", () => {
    const cause = { code: "x", message: "y" };
    const phases = [
      [{ name: "queued" }, "queued"],
      [{ name: "launching", deadline: 1 }, "creating"],
      [{ name: "deleting", cause: null }, "stopping"],
      [{ name: "gone", cause }, "terminated"],
      [{ name: "failed", cause, keptUntil: 1 }, "failed"],
    ] as const;
    for (const [phase, status] of phases)
      expect(judge({ ...running, phase }, well, NOW, NUMBERS).status).toBe(status);
  });

  const failed: SandboxRecord = {
    ...running,
    phase: { name: "failed", cause: { code: "keeper_died", message: "It died" }, keptUntil: 1 },
  };
  const looked = (generation: number, missing: string | null): Health => ({
    ...well,
    filesCheck: { generation, missing },
  });

  it("says of a failed sandbox that its files are missing only after a look at this failure", () => {
    const messageAfter = (health: Health, record = failed) =>
      judge(record, health, NOW, NUMBERS).cause?.message;
    expect(messageAfter(looked(1, "the disk is missing"))).toBe(
      "It died. Its files can't be read, and a restart can't start it again: the disk is missing.",
    );
    expect(messageAfter(looked(1, null))).toBe("It died");
    expect(messageAfter(looked(0, "the disk is missing"))).toBe("It died");
    expect(messageAfter(looked(1, "the disk is missing"), { ...failed, nameHeld: false })).toBe("It died");
  });

  it("claims that files are kept only after a look", () => {
    expect(filesLeft(failed, well)).toEqual({ are: "unknown" });
    expect(filesLeft(failed, looked(0, null))).toEqual({ are: "unknown" });
    expect(filesLeft(failed, looked(1, null))).toEqual({ are: "kept" });
    expect(filesLeft(failed, looked(1, "x"))).toEqual({ are: "incomplete", missing: "x" });
    expect(filesLeft({ ...failed, nameHeld: false }, looked(1, null))).toEqual({ are: "removed" });
  });
});
