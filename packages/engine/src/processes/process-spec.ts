import { hash } from "node:crypto";
import { PROCESS_DEFAULTS, type ReadyWhen, type StartProcess } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { specOf } from "./exec-spec.ts";
import type { ProcessSpec } from "./records.ts";

/** The process that a request asks for, with all defaults filled in; what can't be run is refused here. */
export function processSpecOf(input: StartProcess, cell: Cell): ProcessSpec {
  const { name: _name, restart, readyWhen, connectBy, ...rest } = input;
  // Nobody types to it, on a terminal or not: the next run would not have heard what was typed.
  const command = { ...specOf({ keepAwake: false, ...rest }, cell), stdin: null };
  const { restartsMax, backoffMs } = PROCESS_DEFAULTS;
  return {
    command,
    restart: restart === undefined ? null : { max: restartsMax, backoffMs, ...restart },
    readyWhen: readyWhenOf(readyWhen),
    connectBy: connectBy ?? null,
  };
}

function readyWhenOf(readyWhen: StartProcess["readyWhen"]): ReadyWhen | null {
  if (readyWhen === undefined) return null;
  const withinMs = readyWhen.withinMs ?? PROCESS_DEFAULTS.readyWithinMs;
  return "port" in readyWhen ? { port: readyWhen.port, withinMs } : { output: readyWhen.output, withinMs };
}

/** The same for all who ask for the same. */
export const processDigest = (spec: ProcessSpec): string => hash("sha256", JSON.stringify(spec));
