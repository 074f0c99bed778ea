import { registerHooks } from "node:module";

interface Edit {
  /** Of the engine's sources. */
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

interface Mutation {
  readonly name: string;
  /** The mistake, as somebody might make it. */
  readonly about: string;
  readonly edits: readonly Edit[];
}

/**
 * Mistakes that the simulator has to find. They are made in the engine's source while it is loaded, so that everything
 * but the mistake is the real engine. One that no longer fits the source is an error: it would prove nothing.
 */
export const MUTATIONS: readonly Mutation[] = [
  {
    name: "lease-after-launch",
    about: "the lease is taken when the instance was launched, not before",
    edits: [
      {
        file: "machine.ts",
        from: "{ ...record, generation, memorySince, lease, instance: null }",
        to: "{ ...record, generation, memorySince, instance: null }",
      },
      {
        file: "machine.ts",
        from: "lease: booted(record.lease, instance)",
        to: 'lease: { state: "held", generation: record.generation, startupDeadline: now, hostBootId: null }',
      },
    ],
  },
  {
    name: "unknown-is-absent",
    about: "an instance that can't be observed is taken for absent",
    edits: [
      {
        file: "observer.ts",
        from: 'if (observation.seen === "absent") {',
        to: 'if (observation.seen !== "present") {',
      },
      {
        file: "reaper.ts",
        from: 'if (seen.seen === "unknown") throw',
        to: "if (seen.seen === undefined) throw",
      },
    ],
  },
  {
    name: "previous-status",
    about: "a sandbox that was proven once keeps that status when its evidence is gone",
    edits: [
      {
        file: "status.ts",
        from: "return cause === null ?",
        to: "return cause === null || health.provenAt !== null ?",
      },
    ],
  },
  {
    name: "spent-after-thaw",
    about: "what comes out of a checkpoint runs before that is stored as spent",
    edits: [
      {
        file: "wakes.ts",
        from: 'const spent = await cell.decide({ type: "restored", generation, instance });',
        to: 'await driver.thaw(sandboxId, signal);\n    const spent = await cell.decide({ type: "restored", generation, instance });',
      },
    ],
  },
  {
    name: "spent-is-tried-again",
    about: "a checkpoint is restored again though processes have run that came out of it",
    edits: [
      {
        file: "machine.ts",
        from: 'if (phase.consumed || blame === "checkpoint"',
        to: 'if (blame === "checkpoint"',
      },
    ],
  },
  {
    name: "discarded-too-soon",
    about: "old checkpoints are removed, with the new one among them, before it is stored that there is one",
    edits: [
      {
        file: "standby.ts",
        from: "const done = await cell.decideSurely({",
        to: "await driver.discard(cell.id, null, signal).catch(() => undefined);\n    const done = await cell.decideSurely({",
      },
    ],
  },
  {
    name: "fork-keeps-names",
    about: "a fork's keeper is asked for its commands by names that only the outside knows",
    edits: [
      {
        file: "link-holder.ts",
        from: "renamedLink(bare, this.#names)",
        to: "bare",
      },
    ],
  },
  {
    name: "saved-before-it-is-kept",
    about: "what no row speaks of is removed while a checkpoint has its files and not yet its row",
    edits: [
      {
        file: "checkpoints.ts",
        from: "const done = await cell.decide(input, [",
        to: "await this.#clear(cell);\n      const done = await cell.decide(input, [",
      },
    ],
  },
  {
    name: "forgotten-before-it-is-off",
    about: "a mount is taken off the record before it is seen to be gone",
    edits: [
      {
        file: "mounts.ts",
        from: "await this.#driverUnmount(cell, path, { keepClosed: false }, signal);",
        to: 'await cell.decide({ type: "unmounted", path });\n    await this.#driverUnmount(cell, path, { keepClosed: false }, signal);',
      },
    ],
  },
  {
    name: "deleted-under-sleepers",
    about: "a drive is deleted though sandboxes have it that sleep",
    edits: [
      {
        file: "drives.ts",
        from: "!ENDED.has(record.phase.name) && mountsOf",
        to: 'record.phase.name === "running" && mountsOf',
      },
    ],
  },
  {
    name: "left-open",
    about: "a drive is taken from a sandbox, and what expects it there writes onto the sandbox's own disk",
    edits: [{ file: "mounts.ts", from: "{ keepClosed: true }", to: "{ keepClosed: false }" }],
  },
  {
    name: "unknown-is-evidence",
    about: "a sandbox that can't be looked at is given up like one that does not serve",
    edits: [
      {
        file: "ladder.ts",
        from: 'disk_failed: ["restart"],',
        to: 'disk_failed: ["restart"],\n  observation_unknown: ["restart"],',
      },
      { file: "healer.ts", from: "await this.#parts.look(cell);", to: "" },
    ],
  },
  {
    name: "left-broken",
    about: "nothing is done about a root that is gone",
    edits: [{ file: "ladder.ts", from: 'root_unmounted: ["remount", "restart"],', to: "" }],
  },
];

/** Before the engine is imported. */
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
