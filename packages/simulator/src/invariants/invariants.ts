import { ANSWER_INVARIANTS } from "./answer-invariants.ts";
import { DRIVE_INVARIANTS } from "./drive-invariants.ts";
import { EXEC_INVARIANTS } from "./exec-invariants.ts";
import { FORK_INVARIANTS } from "./fork-invariants.ts";
import { HEAL_INVARIANTS } from "./heal-invariants.ts";
import { INSTANCE_INVARIANTS } from "./instance-invariants.ts";
import type { Invariant } from "./invariant.ts";
import { PROCESS_INVARIANTS } from "./process-invariants.ts";
import { REMOVAL_INVARIANTS } from "./removal-invariants.ts";
import { SLEEP_INVARIANTS } from "./sleep-invariants.ts";

/** All invariants, in the order in which they are checked. */
export const INVARIANTS: readonly Invariant[] = [
  ...INSTANCE_INVARIANTS,
  ...EXEC_INVARIANTS,
  ...REMOVAL_INVARIANTS,
  ...ANSWER_INVARIANTS,
  ...SLEEP_INVARIANTS,
  ...FORK_INVARIANTS,
  ...DRIVE_INVARIANTS,
  ...HEAL_INVARIANTS,
  ...PROCESS_INVARIANTS,
];
