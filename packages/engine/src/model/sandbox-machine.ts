import { unreachable } from "@holdfast/contract";
import type { SandboxRecord } from "../ports/records.ts";
import { type MountInput, mountStep } from "./mount-machine.ts";
import { hasInstance } from "./sandbox-facts.ts";
import { type Decision, enter, outcome, type SandboxInput, type Settings } from "./transition.ts";
import { loseMemory, requestedRestart } from "./transitions-failure.ts";
import { failLaunch, launch, launchAgain, launched, proven } from "./transitions-launch.ts";
import { standbyStep } from "./transitions-standby.ts";
import { linger, remove, stopStep } from "./transitions-stop.ts";

/** Everything that can happen to a sandbox. */
export type Input = SandboxInput | MountInput;

/**
 * The sandbox's state machine. It is pure and total, and the only code that changes phase and lease. Null means that
 * the input no longer applies. Every effect checks for null, so that late results of an earlier generation are ignored.
 */
export function decide(
  record: SandboxRecord,
  input: Input,
  now: number,
  settings: Settings,
): Decision | null {
  switch (input.type) {
    case "launch":
      return launch(record, input, now, settings);
    case "launched":
      if (record.phase.name !== "launching" || record.generation !== input.generation) return null;
      return launched(record, input, now);
    case "proven":
      return proven(record, input, now);
    case "launch_failed":
      if (record.phase.name !== "launching" && record.phase.name !== "queued") return null;
      return failLaunch(record, input.cause, now, settings);
    case "launch_interrupted":
      if (record.phase.name !== "launching") return null;
      return launchAgain(record, input.cause, now, settings);
    case "died":
      if (!hasInstance(record) || record.generation !== input.generation) return null;
      return loseMemory(record, input.cause, now, settings);
    case "given_up":
      if (record.phase.name !== "running" || record.generation !== input.generation) return null;
      return loseMemory(record, input.cause, now, settings);
    case "restart":
      return requestedRestart(record, input.cause, now, settings);
    case "pause":
      if (record.phase.name !== "running") return null;
      return outcome(enter(record, { name: "paused" }, now), now, [
        ["sandbox.paused", "The sandbox is frozen in memory."],
      ]);
    case "resume":
      if (record.phase.name !== "paused") return null;
      return outcome(enter(record, { name: "running" }, now), now, [
        ["sandbox.resumed", "The sandbox continues where it was paused."],
      ]);
    case "suspend":
    case "suspend_failed":
    case "suspended":
    case "saved":
    case "copied":
    case "wake":
    case "restored":
    case "wake_failed":
      return standbyStep(record, input, now, settings);
    case "update":
      if (record.phase.name === "deleting" || record.phase.name === "gone") return null;
      return outcome({ ...record, spec: input.spec }, now, [["sandbox.updated", `Changed: ${input.what}.`]]);
    case "lingered":
      return linger(record, now, settings);
    case "delete":
      return remove(record, input.cause, now, settings);
    case "stop_attempt":
    case "stop_failed":
    case "absence_observed":
      return stopStep(record, input, now, settings);
    case "mount":
    case "mounted":
    case "mount_failed":
    case "unmount":
    case "unmounted":
      return mountStep(record, input, now);
    default:
      return unreachable(input);
  }
}
