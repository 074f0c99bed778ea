import { NUMBERS } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { systemClock } from "../lib/clock.ts";
import { systemIds } from "../lib/ids.ts";
import { EngineEvents } from "../live/engine-events.ts";
import { LiveSandbox } from "../live/live-sandbox.ts";
import type { Input } from "../model/sandbox-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import type { SandboxRecord } from "../ports/records.ts";
import { queuedSandbox } from "../testing/samples.ts";
import { Reaper } from "./reaper.ts";

const quiet = { debug() {}, info() {}, warn() {}, error() {}, child: () => quiet };

describe("the reaper", () => {
  it("works on a duty that is stored right after it found none", async () => {
    const stopping = new AbortController();
    const context = {
      ...{ clock: systemClock, ids: systemIds, log: quiet, numbers: NUMBERS },
      stopping: stopping.signal,
    } as unknown as EngineContext;
    const reaper = new Reaper(context, new EngineEvents());
    const free = queuedSandbox();
    const lease = { state: "stop_needed", generation: 1, reason: "died" } as const;
    const owing: SandboxRecord = {
      ...free,
      lease: { ...lease, attempts: 0, nextAttemptAt: 0, lastError: null },
    };
    const decided: Input["type"][] = [];
    /** The duty appears in the first microtask after the reaper has read, for the second time, that there is none. */
    class LateDuty extends LiveSandbox {
      #reads = 0;
      override get record(): SandboxRecord {
        this.#reads += 1;
        if (this.#reads === 2) queueMicrotask(() => reaper.reap(this));
        return this.#reads <= 2 ? free : owing;
      }
      override async decide(input: Input) {
        decided.push(input.type);
        stopping.abort();
        return null;
      }
    }
    reaper.reap(new LateDuty(context, free));
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(decided).toEqual(["stop_attempt"]);
  });
});
