import type { CreateProgress } from "@holdfast/sdk";
import type { Progress } from "./spinner.ts";

/** Readable names of the launch steps. */
const WORDS: ReadonlyMap<string, string> = new Map([
  ["accepted", "accepted"],
  ["waiting", "queued"],
  ["launching", "launching"],
  ["checkpoint", "reading the checkpoint"],
  ["files", "preparing files"],
  ["root", "mounting the root file system"],
  ["memory", "restoring memory"],
  ["runtime", "starting the runtime"],
  ["keeper", "waiting for the keeper"],
  ["proving", "verifying"],
]);

/** Shows the current step of a create. Unknown steps are ignored. */
export const showSteps =
  (text: string, { update }: Progress) =>
  ({ step }: CreateProgress): void => {
    const words = WORDS.get(step);
    if (words !== undefined) update(`${text}: ${words}`);
  };
