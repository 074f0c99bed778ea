import { type AttemptId, type Cause, type CheckpointId, NUMBERS, newSandboxId } from "@holdfast/contract";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Instance, InstanceIdentity } from "../ports/index.ts";
import type { Origin, SandboxRecord } from "../ports/records.ts";
import { queuedSandbox } from "../testing/samples.ts";
import { destroysFiles, forkSource, hasServed } from "./sandbox-facts.ts";
import { decide, type Input } from "./sandbox-machine.ts";
import { KEPT_FOR_GOOD } from "./transitions-failure.ts";

const id = newSandboxId();
const cause: Cause = { code: "test", message: "because" };
const instance = (generation: number): Instance => ({
  sandboxId: id,
  generation,
  identity: { pid: 4 } as unknown as InstanceIdentity,
  keeperVersion: "1",
});

const queued = queuedSandbox({ id });

/** Applies inputs in order; those that don't apply change nothing. */
const after = (...inputs: Input[]): SandboxRecord =>
  inputs.reduce((record, input, now) => decide(record, input, now, NUMBERS)?.record ?? record, queued);

const launch: Input = { type: "launch", deadline: 60_000 };
const launched: Input = { type: "launched", generation: 1, instance: instance(1), pid: 4 };
const proven: Input = { type: "proven", generation: 1, provenAt: 3, keeperBootId: "k" };
const attempt = (name: string) => name as AttemptId;
const begin: Input = { type: "stop_attempt", attemptId: attempt("a"), deadline: 9 };
const absent: Input = { type: "absence_observed", attemptId: attempt("a") };

describe("the sandbox machine", () => {
  it("holds a lease from before the launch", () => {
    const record = after(launch);
    expect(record.phase.name).toBe("launching");
    expect(record.lease).toMatchObject({ state: "held", generation: 1 });
  });

  it("enters `running` only for an instance launched and proven in this generation", () => {
    expect(after(launch, proven).phase.name).toBe("launching");
    expect(
      after(launch, { type: "launched", generation: 2, instance: instance(2), pid: 4 }, proven).phase.name,
    ).toBe("launching");
    expect(after(launch, launched, proven).phase.name).toBe("running");
  });

  it("keeps the files of a sandbox for good if a person may have copied them into their place", () => {
    const because = (code: string): Cause => ({
      code: "wake_failed",
      message: "no",
      cause: { code, message: "no" },
    });
    const keptFor = (code: string) => {
      const { phase } = after(launch, launched, proven, {
        type: "given_up",
        generation: 1,
        cause: because(code),
      });
      return phase.name === "failed" ? phase.keptUntil : null;
    };
    expect(keptFor("died")).toBe(3 + NUMBERS.failedKeptMs);
    for (const code of ["restore_root", "launch_root", "drive_replaced"])
      expect(keptFor(code), code).toBe(KEPT_FOR_GOOD);
  });

  it("limits restarts even if healing takes as long as it can each time", () => {
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    let record: SandboxRecord = { ...queued, spec: { ...queued.spec, lifecycle } };
    const apply = (input: Input, now: number) => {
      record = decide(record, input, now, NUMBERS)?.record ?? record;
    };
    let starts = 0;
    for (let now = 0; record.phase.name !== "failed" && starts < 50; now += NUMBERS.healGiveUpMs) {
      apply(launch, now);
      const { generation } = record;
      apply({ type: "launched", generation, instance: instance(generation), pid: 4 }, now);
      apply({ type: "proven", generation, provenAt: now, keeperBootId: "k" }, now);
      starts += 1;
      apply({ type: "given_up", generation, cause }, now + NUMBERS.healGiveUpMs);
      apply(begin, now + NUMBERS.healGiveUpMs);
      apply(absent, now + NUMBERS.healGiveUpMs);
    }
    expect(starts).toBe(NUMBERS.restartsMax + 1);
    expect(record.phase.name).toBe("failed");
  });

  it("alerts before a sandbox that is not serving is ended", () => {
    expect(NUMBERS.healGiveUpMs).toBeGreaterThan(NUMBERS.alertStuckMs + 2 * NUMBERS.alertEveryMs);
  });

  it("releases the name and needs a stop when a launch fails", () => {
    const record = after(launch, { type: "launch_failed", cause });
    expect(record).toMatchObject({
      nameHeld: false,
      phase: { name: "failed", cause },
      lease: { reason: "launch_failed" },
    });
    expect(destroysFiles(record)).toBe(true);
  });

  const checkpointId = "ckp_0123456789abcdef" as CheckpointId;
  const suspend = { type: "suspend", checkpointId, kind: "memory", deadline: 9, why: "" } as const;
  const saved: Input = { type: "saved", checkpointId, name: "one", sizeBytes: 1 };
  const suspended: Input = { type: "suspended", checkpointId, checkpoint: null };

  it("returns to running after a checkpoint and to standby after a suspension, never the other way round", () => {
    const running = [launch, launched, proven];
    expect(after(...running, { ...suspend, saving: true }, saved).phase.name).toBe("running");
    expect(after(...running, { ...suspend, saving: true }, suspended).phase.name).toBe("suspending");
    expect(after(...running, suspend, saved).phase.name).toBe("suspending");
    expect(after(...running, suspend, suspended).phase.name).toBe("standby");
    const other: Input = { ...saved, checkpointId: "ckp_zzzzzzzzzzzzzzzz" as CheckpointId };
    expect(after(...running, { ...suspend, saving: true }, other).phase.name).toBe("suspending");
    const failed = decide(
      after(...running, { ...suspend, saving: true }),
      { type: "suspend_failed", checkpointId, cause },
      9,
      NUMBERS,
    );
    expect(failed).toMatchObject({
      record: { phase: { name: "running" } },
      events: [{ type: "sandbox.checkpoint_failed" }],
    });
  });

  describe("of a fork", () => {
    const forkedFrom: Origin = {
      sandboxId: newSandboxId(),
      sandboxName: "one",
      checkpointId,
      kind: "memory",
      generation: 4,
      keeperBootId: "k",
      execs: [],
      processes: [],
    };
    const from = (origin: Origin, ...inputs: Input[]): SandboxRecord =>
      inputs.reduce(
        (record, input, now) => decide(record, input, now, NUMBERS)?.record ?? record,
        queuedSandbox({ id, generation: 4, memorySince: 4, forkedFrom: origin }),
      );
    const forked: Input = { type: "launched", generation: 5, instance: instance(5), pid: 4 };
    const interrupted: Input = { type: "launch_interrupted", cause };

    it("has a higher generation than the checkpoint, with its memory and keeper", () => {
      const record = from(forkedFrom, launch, forked);
      expect(record).toMatchObject({ generation: 5, memorySince: 4, instance: { keeperBootId: "k" } });
      const files = from({ ...forkedFrom, kind: "files" }, launch, forked);
      expect(files).toMatchObject({ generation: 5, memorySince: 5 });
      expect(files.instance?.keeperBootId).toBeUndefined();
    });

    it("is launched again only once, and not if its commands may have ended", () => {
      const again = from(forkedFrom, launch, interrupted);
      expect(again).toMatchObject({ phase: { name: "queued" }, lease: { reason: "launch_failed" } });
      expect(forkSource(again)).toBe(forkedFrom);
      const twice = from(forkedFrom, launch, interrupted, begin, absent, launch, interrupted);
      expect(twice).toMatchObject({ generation: 6, phase: { name: "failed" }, nameHeld: false });
      expect(from(forkedFrom, launch, forked, interrupted).phase.name).toBe("failed");
      // No command can have ended in a fork of files only.
      expect(from({ ...forkedFrom, kind: "files" }, launch, forked, interrupted).phase.name).toBe("queued");
    });

    it("is launched from its own files once it has served", () => {
      const lifecycle = { onMemoryLoss: "cold-start" } as const;
      const { spec } = queued;
      const served = from(forkedFrom, launch, forked, {
        type: "proven",
        generation: 5,
        provenAt: 3,
        keeperBootId: "k",
      });
      const died = { type: "died", generation: 5, cause } as const;
      const lost = decide({ ...served, spec: { ...spec, lifecycle } }, died, 9, NUMBERS)?.record;
      expect(lost?.phase.name).toBe("queued");
      expect(lost && forkSource(lost)).toBeNull();
    });
  });

  it("repeats a first launch that the end of the server interrupted, from scratch and only once", () => {
    const interrupted: Input = { type: "launch_interrupted", cause };
    const record = after(launch, interrupted);
    expect(record).toMatchObject({
      nameHeld: true,
      phase: { name: "queued" },
      lease: { state: "stop_needed", reason: "launch_failed" },
    });
    expect(destroysFiles(record)).toBe(true);
    expect(hasServed(after(launch, interrupted, begin, absent, launch))).toBe(false);
    expect(after(launch, interrupted, begin, absent, launch, interrupted)).toMatchObject({
      nameHeld: false,
      phase: { name: "failed", cause },
      generation: 2,
    });
    expect(decide(after(launch, launched, proven), interrupted, 9, NUMBERS)).toBeNull();
  });

  it("repeats the launch of a sandbox that has served, on its files, as its policy says", () => {
    const cold: SandboxRecord = {
      ...queued,
      spec: { ...queued.spec, lifecycle: { onMemoryLoss: "cold-start" } },
    };
    const died: Input = { type: "died", generation: 1, cause };
    const inputs: Input[] = [launch, launched, proven, died, begin, absent, launch];
    const relaunching = inputs.reduce(
      (record, input, now) => decide(record, input, now, NUMBERS)?.record ?? record,
      cold,
    );
    expect(relaunching).toMatchObject({ phase: { name: "launching" }, generation: 2 });
    const again = decide(relaunching, { type: "launch_interrupted", cause }, 9, NUMBERS);
    expect(again?.record).toMatchObject({
      phase: { name: "queued", restart: cause },
      lease: { reason: "replace" },
      restarts: { count: 2 },
    });
    expect(again && destroysFiles(again.record)).toBe(false);
  });

  it("keeps name and files of a sandbox that died, and needs a stop", () => {
    const record = after(launch, launched, proven, { type: "died", generation: 1, cause });
    expect(record).toMatchObject({ nameHeld: true, phase: { name: "failed" }, lease: { reason: "died" } });
    expect(destroysFiles(record)).toBe(false);
  });

  it("enters `gone` only after the current attempt observed absence", () => {
    const deleting = after(launch, launched, proven, { type: "delete", cause: null }, begin);
    expect(deleting.phase.name).toBe("deleting");
    const stale = decide(deleting, { type: "absence_observed", attemptId: attempt("old") }, 9, NUMBERS);
    expect(stale).toBeNull();
    const gone = decide(deleting, absent, 9, NUMBERS);
    expect(gone?.record).toMatchObject({
      phase: { name: "gone" },
      nameHeld: false,
      lease: { state: "none" },
    });
    expect(gone?.counters).toEqual({ terminated: 1 });
  });

  it("ignores late inputs for a sandbox that is being deleted", () => {
    const deleting = after(launch, { type: "delete", cause: null });
    for (const late of [
      launched,
      proven,
      { type: "launch_failed", cause },
      { type: "died", generation: 1, cause },
    ] as const) {
      expect(decide(deleting, late, 9, NUMBERS)).toBeNull();
    }
  });

  it("lets a delete replace an unreadable lease, and keeps the lease's raw form in the timeline", () => {
    const record: SandboxRecord = { ...queued, lease: { state: "quarantined", raw: "{broken" } };
    const decision = decide(record, { type: "delete", cause: null }, 1, NUMBERS);
    expect(decision?.record.lease).toMatchObject({ state: "stop_needed", reason: "delete" });
    expect(decision?.events[0]?.data).toEqual({ quarantinedLease: "{broken" });
    expect(decide(record, launch, 1, NUMBERS)).toBeNull();
  });

  const anyInput: fc.Arbitrary<Input> = fc.oneof(
    fc.constantFrom<Input>(launch, launched, proven, begin, absent, { type: "delete", cause: null }),
    fc.constantFrom<Input>({ type: "launch_failed", cause }, { type: "died", generation: 1, cause }),
    fc.constantFrom<Input>({ type: "launch_interrupted", cause }),
    fc.constantFrom<Input>({ type: "stop_failed", attemptId: attempt("a"), error: "no" }),
    fc.constantFrom<Input>(
      { type: "proven", generation: 2, provenAt: 1, keeperBootId: "k" },
      { type: "launched", generation: 0, instance: instance(0), pid: 4 },
    ),
  );

  it("never has a running sandbox without a lease or a gone one with a lease, and counts each end once, for any inputs", () => {
    fc.assert(
      fc.property(fc.array(anyInput, { maxLength: 60 }), (inputs) => {
        let record = queued;
        const counted = { failed: 0, terminated: 0 };
        inputs.forEach((input, now) => {
          const decision = decide(record, input, now, NUMBERS);
          if (decision === null) return;
          record = decision.record;
          counted.failed += decision.counters.failed ?? 0;
          counted.terminated += decision.counters.terminated ?? 0;
          const { phase, lease } = record;
          if (phase.name === "running") expect(lease.state).toBe("held");
          if (phase.name === "gone") expect(lease.state).toBe("none");
          if (phase.name === "launching") expect(lease.state).toBe("held");
        });
        expect(counted.failed).toBeLessThanOrEqual(1);
        expect(counted.terminated).toBe(record.phase.name === "gone" ? 1 : 0);
      }),
    );
  });
});
