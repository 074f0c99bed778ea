import type { CreateProgress } from "@holdfast/sdk";
import type { Progress } from "./spinner.ts";

/** The steps of a launch as a person reads them. */
const WORDS: ReadonlyMap<string, string> = new Map([
  ["accepted", "accepted"],
  ["waiting", "waiting for a turn"],
  ["launching", "launching"],
  ["checkpoint", "looking into the checkpoint"],
  ["files", "making its files"],
  ["root", "mounting its root"],
  ["memory", "bringing its memory back"],
  ["runtime", "starting the runtime"],
  ["keeper", "waiting for the keeper"],
  ["proving", "proving it"],
]);

/** Shows what a create is doing. A step without words changes nothing. */
export const showSteps =
  (text: string, { update }: Progress) =>
  ({ step }: CreateProgress): void => {
    const words = WORDS.get(step);
    if (words !== undefined) update(`${text}: ${words}`);
  };
