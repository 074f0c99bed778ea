import type { Numbers } from "@holdfast/contract";
import { ADAPTERS } from "./adapters.ts";
import { StartFailure } from "./start-failure.ts";

/** A set of defaults for one way of operating. It applies only if HOLDFAST_PROFILE names it. */
interface Profile {
  numbers: Partial<Numbers>;
  /** Labels that every sandbox should have; a diagnosis reports the missing ones. */
  expectedLabels: readonly string[];
}

const NO_PROFILE: Profile = { numbers: {}, expectedLabels: [] };

const labelsOf = (adapter: string): readonly string[] =>
  ADAPTERS.find(({ name }) => name === adapter)?.expectedLabels ?? [];

const PROFILES: Readonly<Record<string, Profile>> = {
  /**
   * For operators who run few, short sandboxes, one for each task. Alerts and diagnoses report what does not fit that:
   * many active sandboxes, a sandbox that is awake for more than five minutes, and a sandbox without a task.
   */
  runbook: {
    numbers: {
      ...{ alertActive: 20, clearActive: 15, targetActive: 5 },
      ...{ alertEscalationActive: 50, clearEscalationActive: 40, alertEscalationForMs: 1_800_000 },
      alertRunningMs: 300_000,
    },
    expectedLabels: labelsOf("runbook"),
  },
};

export function readProfile(name: string | undefined): Profile {
  if (!name) return NO_PROFILE;
  const profile = Object.hasOwn(PROFILES, name) ? PROFILES[name] : undefined;
  if (profile !== undefined) return profile;
  throw new StartFailure(
    `HOLDFAST_PROFILE is "${name}".`,
    `Set it to ${Object.keys(PROFILES).join(" or ")}, or unset it.`,
  );
}
