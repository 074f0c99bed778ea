import type { Numbers } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { Fact } from "../world/facts.ts";

/** A caller's request to the engine: how to send it, how long its answer may take, and what to do with the answer. */
export interface ClientRequest {
  readonly what: string;
  /** Id of the sandbox or exec that the request is about; null if it does not exist yet. */
  readonly ref: string | null;
  readonly boundMs: number;
  /** Sends the request; resolves with a function that processes the answer. */
  readonly send: (engine: EngineApi, signal: AbortSignal) => Promise<() => void>;
}

export interface Parts {
  time: VirtualTime;
  numbers: Numbers;
  report(fact: Fact): void;
  note(line: () => string): void;
  /** The stored record of the sandbox with this id or name. */
  recordOf(ref: string): SandboxRecord | undefined;
}

export function clientRequest<Answer>(
  [what, ref]: [what: string, ref?: string],
  boundMs: number,
  send: (engine: EngineApi, signal: AbortSignal) => Promise<Answer>,
  onAnswer: (answer: Answer) => void = () => undefined,
): ClientRequest {
  return {
    what,
    ref: ref ?? null,
    boundMs,
    send: async (engine, signal) => {
      const answer = await send(engine, signal);
      return () => onAnswer(answer);
    },
  };
}
