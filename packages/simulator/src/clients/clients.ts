import { HoldfastError, type Numbers } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import type { Fact } from "./facts.ts";
import type { Process } from "./process.ts";
import { type Question, Questions } from "./questions.ts";
import type { Act } from "./schedule.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** A server that takes calls. */
export interface Serving {
  readonly process: Process;
  readonly engine: EngineApi;
}

/** A call that has no answer yet. */
export interface OpenCall {
  readonly what: string;
  readonly since: number;
  /** How long the engine may take, by its own numbers. */
  readonly boundMs: number;
  readonly abort: AbortController;
  readonly process: Process;
}

/** Nothing that the engine does at once takes longer than this; latencies and short waits are in it. */
const SLACK_MS = 2_000;
/** Of the caller who left. */
const LEFT = new Error("the caller went away");

interface Parts {
  time: VirtualTime;
  numbers: Numbers;
  serving(): Serving | null;
  tell(fact: Fact): void;
  note(line: () => string): void;
  recordOf(ref: string): SandboxRecord | undefined;
}

/** The callers: whom they ask, how long they have waited, who goes away. */
export class Clients {
  readonly open = new Set<OpenCall>();
  readonly #parts: Parts;
  readonly #questions: Questions;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#questions = new Questions(parts);
  }

  /** What was asked of a server dies with it. */
  readonly forgetCallsTo = (process: Process): void => {
    for (const call of this.open) if (call.process === process) this.open.delete(call);
  };

  /** The server shuts down, and says so to everybody who waits. */
  dismiss(process: Process): void {
    for (const call of [...this.open])
      if (call.process === process) call.abort.abort(new HoldfastError("shutting_down"));
  }

  act(act: Exclude<Act, { do: "fault" }>): void {
    if (act.do === "leave") this.#leave();
    else this.#ask(this.#questions.of(act));
  }

  delete(ref: string, waitMs: number): void {
    this.#ask(this.#questions.delete(ref, waitMs));
  }

  removeDrive(id: string): void {
    this.#ask(this.#questions.removeDrive(id));
  }

  rouse(id: string, what: "resume" | "wake"): void {
    this.#ask(this.#questions.rouse(id, what));
  }

  #leave(): void {
    const [oldest] = this.open;
    if (oldest === undefined) return;
    this.#parts.note(() => `the caller of ${oldest.what} leaves`);
    this.open.delete(oldest);
    oldest.abort.abort(LEFT);
  }

  /** Asks, unless there is nothing to ask or no server to ask. */
  #ask(question: Question | null): void {
    const { time, tell, note } = this.#parts;
    const serving = this.#parts.serving();
    if (question === null || serving === null) return;
    const { what, ref, boundMs, ask } = question;
    const { process, engine } = serving;
    const abort = new AbortController();
    const call = { what, since: time.elapsed, boundMs: boundMs + SLACK_MS, abort, process };
    this.open.add(call);
    note(() => `${what}?`);
    const settle = (hear: () => void) => {
      this.open.delete(call);
      if (process.alive) hear();
    };
    ask(engine, abort.signal).then(settle, (error: unknown) =>
      settle(() => {
        note(() => `${what}: ${error instanceof Error ? error.message : String(error)}`);
        if (error !== LEFT) tell({ type: "refused", call: what, ref, error });
      }),
    );
  }
}
