import { HoldfastError, type Numbers } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import type { Act } from "../schedule/schedule.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { Fact } from "../world/facts.ts";
import type { Process } from "../world/process.ts";
import type { ClientRequest } from "./request.ts";
import { ClientRequests } from "./requests.ts";

/** A server that accepts calls. */
interface Serving {
  readonly process: Process;
  readonly engine: EngineApi;
}

/** A call without an answer yet. */
export interface OpenCall {
  readonly what: string;
  readonly since: number;
  /** Maximum duration of the call, computed from the engine's own numbers. */
  readonly boundMs: number;
  readonly abort: AbortController;
  readonly process: Process;
}

/**
 * Time added to the maximum duration of every call, for latencies and short waits. Calls that should complete
 * immediately have only this time.
 */
const SLACK_MS = 2_000;
/** Abort reason for a caller that disconnects. */
const LEFT = new Error("the caller went away");

interface Parts {
  time: VirtualTime;
  numbers: Numbers;
  serving(): Serving | null;
  report(fact: Fact): void;
  note(line: () => string): void;
  recordOf(ref: string): SandboxRecord | undefined;
}

/**
 * Simulates the callers: sends their requests, tracks how long each caller has waited, and disconnects some of them.
 */
export class Clients {
  readonly open = new Set<OpenCall>();
  readonly #parts: Parts;
  readonly #requests: ClientRequests;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#requests = new ClientRequests(parts);
  }

  /** Removes the open calls to a dead server, because these are never answered. */
  readonly forgetCallsTo = (process: Process): void => {
    for (const call of this.open) if (call.process === process) this.open.delete(call);
  };

  /** Answers all waiting callers with an error, as a server does on shutdown. */
  dismiss(process: Process): void {
    for (const call of [...this.open])
      if (call.process === process) call.abort.abort(new HoldfastError("shutting_down"));
  }

  act(act: Exclude<Act, { do: "fault" }>): void {
    if (act.do === "leave") this.#leave();
    else this.#send(this.#requests.of(act));
  }

  delete(ref: string, waitMs: number): void {
    this.#send(this.#requests.delete(ref, waitMs));
  }

  removeDrive(id: string): void {
    this.#send(this.#requests.removeDrive(id));
  }

  resumeOrWake(id: string, what: "resume" | "wake"): void {
    this.#send(this.#requests.resumeOrWake(id, what));
  }

  #leave(): void {
    const [oldest] = this.open;
    if (oldest === undefined) return;
    this.#parts.note(() => `the caller of ${oldest.what} leaves`);
    this.open.delete(oldest);
    oldest.abort.abort(LEFT);
  }

  /** Sends the request, unless it is null or no server accepts calls. */
  #send(request: ClientRequest | null): void {
    const { time, report, note } = this.#parts;
    const serving = this.#parts.serving();
    if (request === null || serving === null) return;
    const { what, ref, boundMs, send } = request;
    const { process, engine } = serving;
    const abort = new AbortController();
    const call = { what, since: time.elapsed, boundMs: boundMs + SLACK_MS, abort, process };
    this.open.add(call);
    note(() => `${what}?`);
    const settle = (use: () => void) => {
      this.open.delete(call);
      if (process.alive) use();
    };
    send(engine, abort.signal).then(settle, (error: unknown) =>
      settle(() => {
        note(() => `${what}: ${error instanceof Error ? error.message : String(error)}`);
        if (error !== LEFT) report({ type: "refused", call: what, ref, error });
      }),
    );
  }
}
