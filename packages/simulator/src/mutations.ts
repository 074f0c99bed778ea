import { registerHooks } from "node:module";

interface Edit {
  /** Source file of the engine to mutate. */
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

interface Mutation {
  readonly name: string;
  /** Describes the mistake that a programmer might make. */
  readonly about: string;
  readonly edits: readonly Edit[];
}

/**
 * Mistakes that the simulator must find. Each is inserted into the engine's source while that source is loaded, so that
 * everything except the mistake is the real engine. A mutation that no longer matches the source is an error, because
 * it would test nothing.
 */
export const MUTATIONS: readonly Mutation[] = [
  {
    name: "lease-after-launch",
    about: "the lease is stored after the launch, not before",
    edits: [
      {
        file: "model/transitions-launch.ts",
        from: "{ ...record, generation, memorySince, lease, instance: null }",
        to: "{ ...record, generation, memorySince, instance: null }",
      },
      {
        file: "model/transitions-launch.ts",
        from: "return outcome({ ...record, instance }, now, [",
        to: 'const lease = { state: "held", generation: record.generation, startupDeadline: now } as const;\n  return outcome({ ...record, instance, lease }, now, [',
      },
    ],
  },
  {
    name: "unknown-is-absent",
    about: "an instance that can't be observed counts as absent",
    edits: [
      {
        file: "healing/observer.ts",
        from: 'if (observation.seen === "absent") {',
        to: 'if (observation.seen !== "present") {',
      },
      {
        file: "launch/reaper.ts",
        from: 'if (seen.seen === "unknown") throw',
        to: "if (seen.seen === undefined) throw",
      },
    ],
  },
  {
    name: "ended-by-sweeps-only",
    about: "a sandbox past the end of its TTL is what it was until a sweep finds it",
    edits: [
      {
        file: "model/status.ts",
        from: 'if (isExpired(record, now)) return { status: "stopping", cause: EXPIRED };',
        to: "void isExpired, EXPIRED;",
      },
      {
        file: "cleanup/expiry.ts",
        from: "if (dueAt === null || !this.#isRunning || stopping.aborted) return;",
        to: "if (dueAt === null || this.#isRunning || stopping.aborted) return;",
      },
    ],
  },
  {
    name: "previous-status",
    about: "a sandbox that was proven once keeps that status after its evidence has expired",
    edits: [
      {
        file: "model/status.ts",
        from: "return cause === null ?",
        to: "return cause === null || health.provenAt !== null ?",
      },
    ],
  },
  {
    name: "spent-after-thaw",
    about: "a restored instance runs before its checkpoint is stored as spent",
    edits: [
      {
        file: "lifecycle/wake.ts",
        from: 'const spent = await live.decideUntil({ type: "restored", generation, instance }, signal);',
        to: 'await driver.thaw(sandboxId, signal);\n    const spent = await live.decide({ type: "restored", generation, instance });',
      },
    ],
  },
  {
    name: "one-link-only",
    about: "a proof on the way into service is not repeated when it gets no answer or fails",
    edits: [
      {
        file: "launch/prove-entry.ts",
        from: "if (lastProof.aborted || (isAnswer && !hasMemory))",
        to: "if (lastProof.aborted || keeperBootId !== null)",
      },
    ],
  },
  {
    name: "spent-is-tried-again",
    about: "a checkpoint is restored again although processes restored from it have run",
    edits: [
      {
        file: "model/transitions-standby.ts",
        from: 'if (phase.consumed || blame === "checkpoint"',
        to: 'if (blame === "checkpoint"',
      },
    ],
  },
  {
    name: "discarded-too-soon",
    about: "old checkpoints are removed, including the new one, before the new one is stored",
    edits: [
      {
        file: "lifecycle/suspend.ts",
        from: "const done = await live.decideSurely({",
        to: "await driver.discard(live.id, null, signal).catch(() => undefined);\n    const done = await live.decideSurely({",
      },
    ],
  },
  {
    name: "fork-keeps-names",
    about: "a fork's keeper is asked for its commands by ids that only the record knows",
    edits: [
      {
        file: "live/persistent-link.ts",
        from: "renamedLink(bare, this.#names)",
        to: "bare",
      },
    ],
  },
  {
    name: "saved-before-it-is-kept",
    about: "files without a record are removed while a checkpoint has files but no record yet",
    edits: [
      {
        file: "lifecycle/checkpoints.ts",
        from: "const done = await live.decide(input, [",
        to: "await this.#clear(live);\n      const done = await live.decide(input, [",
      },
    ],
  },
  {
    name: "forgotten-before-it-is-off",
    about: "a mount is removed from the record before it is observed to be gone",
    edits: [
      {
        file: "drives/mounts.ts",
        from: "await this.#driverUnmount(live, path, { keepClosed: false }, signal);",
        to: 'await live.decide({ type: "unmounted", path });\n    await this.#driverUnmount(live, path, { keepClosed: false }, signal);',
      },
    ],
  },
  {
    name: "deleted-under-sleepers",
    about: "a drive is deleted although sleeping sandboxes have it",
    edits: [
      {
        file: "drives/drives.ts",
        from: "!ENDED.has(record.phase.name) && mountsOf",
        to: 'record.phase.name === "running" && mountsOf',
      },
    ],
  },
  {
    name: "left-open",
    about: "a drive is unmounted, and processes that expect it write to the sandbox's own disk",
    edits: [{ file: "drives/mounts.ts", from: "{ keepClosed: true }", to: "{ keepClosed: false }" }],
  },
  {
    name: "unknown-is-evidence",
    about: "a sandbox that can't be observed is given up like one that does not serve",
    edits: [
      {
        file: "healing/healing-ladder.ts",
        from: 'disk_failed: ["restart"],',
        to: 'disk_failed: ["restart"],\n  observation_unknown: ["restart"],',
      },
      { file: "healing/healer.ts", from: "await this.#parts.observer.observe([live]);", to: "" },
    ],
  },
  {
    name: "left-broken",
    about: "a missing root is not healed",
    edits: [{ file: "healing/healing-ladder.ts", from: 'root_unmounted: ["remount", "restart"],', to: "" }],
  },
];

/** Installs a mutation. Must be called before the engine is imported. */
export function installMutation(name: string): void {
  const mutation = MUTATIONS.find((each) => each.name === name);
  if (mutation === undefined)
    throw new Error(`there is no mutation ${name}: ${MUTATIONS.map((each) => each.name).join(", ")}`);
  registerHooks({
    load(url, context, nextLoad) {
      const loaded = nextLoad(url, context);
      const edits = mutation.edits.filter(({ file }) => url.endsWith(`/engine/src/${file}`));
      return edits.length === 0 ? loaded : { ...loaded, source: edited(String(loaded.source), name, edits) };
    },
  });
}

function edited(source: string, name: string, edits: readonly Edit[]): string {
  return edits.reduce((text, { file, from, to }) => {
    if (!text.includes(from))
      throw new Error(`mutation ${name} no longer fits ${file}: "${from}" is not there`);
    return text.replace(from, to);
  }, source);
}
