import type { Cause, ExecStatus, ProcessId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { KeptRun } from "./ports.ts";
import {
  goalsOf,
  judgeProcess,
  type LastRun,
  type ProcessFacts,
  readyOf,
  runId,
  runOf,
  type Verdict,
  verdict,
} from "./process.ts";
import type { ProcessRecord, ProcessSpec, Seen } from "./records.ts";
import { someExec, someProcess } from "./testing/samples.ts";

const id = "prc_0123456789abcdef" as ProcessId;
const keep = { on: "failure", max: 3, backoffMs: 10 } as const;

const over = (status: ExecStatus, exitCode: number | null = null, cause: Cause | null = null): LastRun => ({
  is: "over",
  exec: someExec({ status, exitCode, cause, endedAt: 1 }),
});
const open: LastRun = { is: "open", stage: "running" };
const forgotten: LastRun = { is: "over", exec: null };
const row = (state: KeptRun["state"], run = 2): KeptRun => ({
  execId: runId(id, run),
  state,
  restarts: 1,
  nextAt: null,
});

const facts = (
  spec: Partial<ProcessSpec>,
  last: LastRun,
  kept: ProcessFacts["kept"],
  more: Partial<ProcessRecord> & { isRemembered?: boolean } = {},
): ProcessFacts => {
  const { isRemembered = true, ...record } = more;
  return { record: someProcess({ id, run: 2, ...record }, spec), last, kept, isRemembered };
};

describe("a run's id", () => {
  it("names its process and its number, and nothing else is taken for one", () => {
    expect(runOf(runId(id, 12))).toEqual({ process: id, run: 12 });
    for (const other of [id, `${id}-`, `${id}-0`, `${id}-01`, `${id}-1-2`, "x-1", `${id}-1x`])
      expect(runOf(other)).toBeNull();
  });
});

describe("what is done about a process", () => {
  const stop = { order: { do: "stop" } } as const;
  const again = { order: { do: "restart", after: 2 } } as const;
  const gone = { isRemembered: false } as const;
  type Case = [claim: string, facts: ProcessFacts, want: Partial<Verdict>];
  const cases: Case[] = [
    ["one that runs is left alone", facts({}, open, "unknown"), { do: "nothing" }],
    ["one that runs is ended by order", facts({}, open, "unknown", stop), { do: "cancel" }],
    [
      "one that runs is ended to be begun anew",
      facts({ restart: keep }, open, row("running"), again),
      { do: "cancel" },
    ],
    [
      "a restart that was done is not done again",
      facts({ restart: keep }, open, row("running"), { order: { do: "restart", after: 1 } }),
      { do: "nothing" },
    ],
    [
      "an exit is the end where nothing follows",
      facts({}, over("exited", 3), "unknown"),
      { do: "end", state: "exited" },
    ],
    ["so is a timeout", facts({}, over("timed_out"), "unknown"), { do: "end", state: "exited" }],
    ["a cancel is an order", facts({}, over("cancelled"), "unknown"), { do: "end", state: "stopped" }],
    ["what can't be known is lost", facts({}, over("lost"), "unknown"), { do: "end", state: "lost" }],
    ["and so is what nobody remembers", facts({}, forgotten, "unknown"), { do: "end", state: "lost" }],
    ["what was refused is given up", facts({}, over("refused"), "unknown"), { do: "end", state: "given_up" }],
    ["its keeper is asked first", facts({ restart: keep }, over("exited", 1), "unknown"), { do: "nothing" }],
    ["its keeper waits", facts({ restart: keep }, over("exited", 1), row("waiting")), { do: "nothing" }],
    [
      "its keeper has gone on",
      facts({ restart: keep }, over("exited", 1), row("running", 3)),
      { do: "nothing" },
    ],
    [
      "what its keeper did since is put on record first",
      facts({ restart: keep }, over("exited", 1), row("given_up", 3)),
      { do: "nothing" },
    ],
    [
      "its keeper is done",
      facts({ restart: keep }, over("exited", 0), row("done")),
      { do: "end", state: "exited" },
    ],
    [
      "its keeper gave up",
      facts({ restart: keep }, over("exited", 1), row("given_up")),
      { do: "end", state: "given_up" },
    ],
    [
      "its keeper was told to stop",
      facts({ restart: keep }, over("cancelled"), row("stopped")),
      { do: "end", state: "stopped" },
    ],
    [
      "one that waits is stopped at its keeper",
      facts({ restart: keep }, over("exited", 1), row("waiting"), stop),
      { do: "cancel" },
    ],
    [
      "an order waits for its keeper",
      facts({ restart: keep }, over("exited", 1), "unknown", stop),
      { do: "nothing" },
    ],
    [
      "an order waits for the run that its keeper began",
      facts({ restart: keep }, over("exited", 1), row("running", 3), stop),
      { do: "nothing" },
    ],
    [
      "one that was stopped at its keeper is over",
      facts({ restart: keep }, over("exited", 1), row("stopped"), stop),
      { do: "end", state: "stopped" },
    ],
    [
      "an order needs no keeper where there is no memory",
      facts({ restart: keep }, over("lost"), "unknown", { ...stop, ...gone }),
      { do: "end", state: "stopped" },
    ],
    [
      "the next run follows a restart",
      facts({ restart: keep }, over("cancelled"), row("stopped"), again),
      { do: "begin" },
    ],
    [
      "also where nothing would follow by itself",
      facts({}, over("cancelled"), "unknown", again),
      { do: "begin" },
    ],
    ["lost memory is begun anew", facts({ restart: keep }, over("lost"), "unknown", gone), { do: "begin" }],
    [
      "also where it was between two runs",
      facts({ restart: keep }, over("exited", 1), row("waiting"), gone),
      { do: "begin" },
    ],
    [
      "but not what was done",
      facts({ restart: keep }, over("exited", 0), "unknown", gone),
      { do: "end", state: "exited" },
    ],
    [
      "unless it is always started again",
      facts({ restart: { ...keep, on: "always" } }, over("exited", 0), "unknown", gone),
      { do: "begin" },
    ],
    [
      "nor what was cancelled",
      facts({ restart: keep }, over("cancelled"), "unknown", gone),
      { do: "end", state: "stopped" },
    ],
    [
      "a keeper that has no row begins nothing",
      facts({ restart: keep }, over("exited", 1), null),
      { do: "begin" },
    ],
    [
      "what a keeper refused is given up",
      facts({ restart: keep }, over("refused"), null),
      { do: "end", state: "given_up" },
    ],
  ];
  it.each(cases)("%s", (_claim, given, want) => {
    expect(verdict(given)).toMatchObject(want);
  });
});

describe("the status of a process", () => {
  const port = { port: 80, withinMs: 10 };
  const text = { output: "up", withinMs: 10 };
  const cause = { code: "port_closed", message: "Nothing listens." };
  const ready = (generation: number, run = 2): Seen => ({
    state: "ready",
    how: "port",
    run,
    generation,
    at: 7,
  });
  const said = (generation: number): Seen => ({ state: "ready", how: "output", run: 2, generation, at: 7 });
  const unready = (generation: number): Seen => ({ state: "unready", cause, run: 2, generation, at: 7 });
  const cases: [claim: string, facts: ProcessFacts, generation: number, want: string][] = [
    ["running is ready where nothing is asked for", facts({}, open, "unknown"), 1, "ready"],
    ["a start under way", facts({}, { is: "open", stage: "starting" }, "unknown"), 1, "starting"],
    ["one in the line", facts({}, { is: "open", stage: "queued" }, "unknown"), 1, "starting"],
    ["nothing seen yet", facts({ readyWhen: port }, open, "unknown"), 1, "starting"],
    ["seen", facts({ readyWhen: port }, open, "unknown", { seen: ready(1) }), 1, "ready"],
    [
      "seen of an earlier run",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(1, 1) }),
      1,
      "starting",
    ],
    ["not seen in time", facts({ readyWhen: port }, open, "unknown", { seen: unready(1) }), 1, "unready"],
    ["a port after a wake", facts({ readyWhen: port }, open, "unknown", { seen: ready(1) }), 2, "starting"],
    [
      "a port that was seen after it",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(2) }),
      2,
      "ready",
    ],
    ["output after a wake", facts({ readyWhen: text }, open, "unknown", { seen: said(1) }), 2, "ready"],
    ["to be connected to, not woken", facts({ connectBy: port }, open, "unknown"), 1, "ready"],
    ["to be connected to after a wake", facts({ connectBy: port }, open, "unknown"), 2, "starting"],
    [
      "nothing answered after it",
      facts({ connectBy: port }, open, "unknown", { seen: unready(2) }),
      2,
      "unready",
    ],
    [
      "unready before another wake",
      facts({ connectBy: port }, open, "unknown", { seen: unready(2) }),
      3,
      "starting",
    ],
    ["between runs", facts({ restart: keep }, over("exited", 1), row("waiting")), 1, "waiting"],
    ["its keeper can't be asked", facts({ restart: keep }, over("exited", 1), "unknown"), 1, "waiting"],
    [
      "given up, and not stored yet",
      facts({ restart: keep }, over("exited", 1), row("given_up")),
      1,
      "given_up",
    ],
    ["lost, and not stored yet", facts({}, over("lost"), "unknown"), 1, "lost"],
    ["over", facts({}, open, "unknown", { end: { state: "stopped", cause: null, at: 1 } }), 1, "stopped"],
  ];
  it.each(cases)("%s", (_claim, given, generation, want) => {
    expect(judgeProcess(given, generation).status).toBe(want);
  });

  it("says how the last run ended while it waits, and why it is unready", () => {
    const waits = judgeProcess(facts({ restart: keep }, over("exited", 7), row("waiting")), 1);
    expect(waits.cause?.message).toContain("exited with 7");
    const late = facts({ readyWhen: port }, open, "unknown", { seen: unready(1) });
    expect(judgeProcess(late, 1).cause).toEqual(cause);
  });

  it("says since when and by what it is ready", () => {
    expect(readyOf({ seen: ready(1), run: 2 }, "ready", 5)).toEqual({
      at: new Date(7).toISOString(),
      how: "port",
    });
    expect(readyOf({ seen: null, run: 2 }, "ready", 5)).toEqual({
      at: new Date(5).toISOString(),
      how: "running",
    });
    expect(readyOf({ seen: ready(1), run: 2 }, "starting", 5)).toBeNull();
  });

  it("asks for both where both are to be seen after a wake", () => {
    const { record } = facts({ readyWhen: port, connectBy: { port: 81, withinMs: 5 } }, open, "unknown");
    expect(goalsOf(record, 1)).toEqual([port]);
    expect(goalsOf(record, 2)).toEqual([port, { port: 81, withinMs: 5 }]);
  });
});

it("how a run ended reads on in the middle of a sentence", () => {
  const gone = { code: "lost", message: "Its memory is gone." };
  const { cause } = judgeProcess(facts({ restart: keep }, over("lost", null, gone), "unknown"), 1);
  expect(cause?.message).toBe("Run 2 was lost: Its memory is gone; the next one follows.");
});
