import type { Process, StartProcess } from "@holdfast/contract";
import { gateMs } from "./bounds.ts";
import { argvOf } from "./command.ts";
import { type Parts, type Question, question } from "./questions.ts";
import type { Act } from "./schedule.ts";

type ProcessAct = Extract<Act, { do: "process" | "stop-process" | "restart-process" | "processes" }>;

/** So many of the same name may be started before it, each of which waits for its sandbox and its keeper. */
const TURNS = 4;
const READY_MS = 3_000;

/** What callers ask about named processes. */
export class ProcessQuestions {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  of(act: ProcessAct, ref: string): Question {
    const { numbers, recordOf, tell } = this.#parts;
    const gate = gateMs(recordOf(ref), numbers);
    // Its turn may be held by what is asked of its keeper.
    const turnMs = 2 * numbers.keeperCallMs;
    if (act.do === "processes")
      return question(
        [`processes of ${ref.slice(-6)}`, ref],
        0,
        (to) => to.processes.list(ref),
        ({ items }) => {
          for (const process of items) this.#told(process);
        },
      );
    const name = `process-${act.name}`;
    const what: [string, string] = [`${act.do} ${name} of ${ref.slice(-6)}`, ref];
    const unwanted = () => {
      tell({ type: "unwanted", id: `${ref}/${name}` });
      const id = recordOf(ref)?.id;
      if (id !== undefined) tell({ type: "unwanted", id: `${id}/${name}` });
    };
    const heard = (process: Process) => this.#told(process);
    if (act.do === "process") {
      const { waitMs } = act;
      return question(
        what,
        TURNS * (gate + numbers.execStartDeadlineMs) + waitMs + turnMs,
        (to, signal) => to.processes.start(ref, inputOf(act, name), { waitMs, signal }),
        ({ process }) => heard(process),
      );
    }
    if (act.do === "stop-process")
      return question(
        what,
        gate + numbers.keeperCallMs + turnMs,
        (to, signal) => {
          unwanted();
          return to.processes.stop(ref, name, signal);
        },
        heard,
      );
    return question(
      what,
      gate + numbers.execStartDeadlineMs + turnMs,
      (to, signal) => {
        unwanted();
        return to.processes.restart(ref, name, { waitMs: 0, signal });
      },
      heard,
    );
  }

  #told(process: Process): void {
    const { note, tell } = this.#parts;
    note(() => `${process.id.slice(-3)} ${process.name} is ${process.status}, run ${process.runs}`);
    tell({ type: "told-process", process });
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
