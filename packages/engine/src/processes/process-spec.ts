import { PROCESS_DEFAULTS, type ReadyWhen, type StartProcess } from "@holdfast/contract";
import { specOf } from "../execs/exec-spec.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { ProcessSpec } from "../ports/records.ts";

/** Returns the spec of the requested process with all defaults filled in. Throws if the process could not be run. */
export function processSpecOf(input: StartProcess, live: LiveSandbox): ProcessSpec {
  const { name: _name, restart, readyWhen, connectBy, ...rest } = input;
  // A process gets no input, not even through its terminal, because its next run would not get the same input.
  const command = { ...specOf({ keepAwake: false, ...rest }, live), stdin: null };
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
