import type { Process, StartProcess } from "@holdfast/contract";
import { argvOf } from "../schedule/command.ts";
import type { Act } from "../schedule/schedule.ts";
import { gateMs } from "./bounds.ts";
import { type ClientRequest, clientRequest, type Parts } from "./request.ts";

type ProcessAct = Extract<Act, { do: "process" | "stop-process" | "restart-process" | "processes" }>;

/**
 * Maximum number of earlier starts under the same process name that are handled before the start whose duration is
 * computed. Each earlier start waits for its sandbox and its keeper.
 */
const TURNS = 4;
const READY_MS = 3_000;

/** Creates the requests of callers about named processes. */
export class ProcessRequests {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  of(act: ProcessAct, ref: string): ClientRequest {
    const { numbers, recordOf, report } = this.#parts;
    const gate = gateMs(recordOf(ref), numbers);
    // Maximum time in which the keeper handles other requests and then the request about the process.
    const turnMs = 2 * numbers.keeperCallMs;
    if (act.do === "processes")
      return clientRequest(
        [`processes of ${ref.slice(-6)}`, ref],
        0,
        (to) => to.processes.list(ref),
        ({ items }) => {
          for (const process of items) this.#reported(process);
        },
      );
    const name = `process-${act.name}`;
    const what: [string, string] = [`${act.do} ${name} of ${ref.slice(-6)}`, ref];
    const unwanted = () => {
      report({ type: "unwanted", id: `${ref}/${name}` });
      const id = recordOf(ref)?.id;
      if (id !== undefined) report({ type: "unwanted", id: `${id}/${name}` });
    };
    const onAnswer = (process: Process) => this.#reported(process);
    if (act.do === "process") {
      const { waitMs } = act;
      return clientRequest(
        what,
        TURNS * (gate + numbers.execStartDeadlineMs) + waitMs + turnMs,
        (to, signal) => to.processes.start(ref, inputOf(act, name), { waitMs, signal }),
        ({ process }) => onAnswer(process),
      );
    }
    if (act.do === "stop-process")
      return clientRequest(
        what,
        gate + numbers.keeperCallMs + turnMs,
        (to, signal) => {
          unwanted();
          return to.processes.stop(ref, name, signal);
        },
        onAnswer,
      );
    return clientRequest(
      what,
      gate + numbers.execStartDeadlineMs + turnMs,
      (to, signal) => {
        unwanted();
        return to.processes.restart(ref, name, { waitMs: 0, signal });
      },
      onAnswer,
    );
  }

  #reported(process: Process): void {
    const { note, report } = this.#parts;
    note(() => `${process.id.slice(-3)} ${process.name} is ${process.status}, run ${process.runs}`);
    report({ type: "reported-process", process });
  }
}

function inputOf(
  { command, restart, ready, connect }: Extract<Act, { do: "process" }>,
  name: string,
): StartProcess {
  return {
    name,
    argv: argvOf(command),
    ...(restart && { restart }),
    ...(ready === "port" ? { readyWhen: { port: 80, withinMs: READY_MS } } : {}),
    ...(ready === "output" ? { readyWhen: { output: "says 1", withinMs: READY_MS } } : {}),
    ...(connect ? { connectBy: { port: 80, withinMs: READY_MS } } : {}),
  };
}
