import {
  newAlertId,
  newAttemptId,
  newCheckpointId,
  newDeliveryId,
  newDriveId,
  newExecId,
  newProcessId,
  newSandboxId,
  newTokenId,
  randomText,
} from "@holdfast/contract";
import type { Ids } from "../ports/index.ts";

const FIRST = [
  "amber",
  "brisk",
  "calm",
  "dusky",
  "early",
  "fleet",
  "green",
  "hardy",
  "inner",
  "jolly",
  "keen",
  "lucid",
];
const SECOND = [
  "anchor",
  "beacon",
  "cove",
  "delta",
  "eddy",
  "fjord",
  "gully",
  "harbor",
  "islet",
  "jetty",
  "kelp",
  "lagoon",
];

export const systemIds: Ids = {
  sandbox: newSandboxId,
  exec: newExecId,
  attempt: newAttemptId,
  checkpoint: newCheckpointId,
  drive: newDriveId,
  alert: newAlertId,
  delivery: newDeliveryId,
  token: newTokenId,
  process: newProcessId,
  name: () => `${pick(FIRST)}-${pick(SECOND)}-${randomText(5)}`,
  random: Math.random,
};

const pick = (words: readonly string[]): string =>
  words[Math.floor(Math.random() * words.length)] ?? "holdfast";
