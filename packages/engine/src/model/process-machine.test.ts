import type { Cause, ExecStatus, ProcessId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { SupervisedRun } from "../ports/index.ts";
import type { ProcessRecord, ProcessSpec, Seen } from "../ports/records.ts";
import { someExec, someProcess } from "../testing/samples.ts";
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
} from "./process-machine.ts";

const id = "prc_0123456789abcdef" as ProcessId;
const keep = { on: "failure", max: 3, backoffMs: 10 } as const;

const over = (status: ExecStatus, exitCode: number | null = null, cause: Cause | null = null): LastRun => ({
  is: "over",
  exec: someExec({ status, exitCode, cause, endedAt: 1 }),
});
const open: LastRun = { is: "open", stage: "running" };
const forgotten: LastRun = { is: "over", exec: null };
const row = (state: SupervisedRun["state"], run = 2): SupervisedRun => ({
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
  it("contains process and number, and other texts are not parsed as one", () => {
    expect(runOf(runId(id, 12))).toEqual({ process: id, run: 12 });
    for (const other of [id, `${id}-`, `${id}-0`, `${id}-01`, `${id}-1-2`, "x-1", `${id}-1x`])
      expect(runOf(other)).toBeNull();
  });
});

describe("the decision about a process", () => {
  const stop = { order: { do: "stop" } } as const;
  const again = { order: { do: "restart", after: 2 } } as const;
  const gone = { isRemembered: false } as const;
  type Case = [claim: string, facts: ProcessFacts, want: Partial<Verdict>];
  const cases: Case[] = [
    ["a running process is left alone", facts({}, open, "unknown"), { do: "nothing" }],
    ["a running process is cancelled on a stop request", facts({}, open, "unknown", stop), { do: "cancel" }],
    [
      "a running process is cancelled on a restart request",
      facts({ restart: keep }, open, row("running"), again),
      { do: "cancel" },
    ],
    [
      "a fulfilled restart request is not repeated",
      facts({ restart: keep }, open, row("running"), { order: { do: "restart", after: 1 } }),
      { do: "nothing" },
    ],
    [
      "an exit ends a process without a restart policy",
      facts({}, over("exited", 3), "unknown"),
      { do: "end", state: "exited" },
    ],
    [
      "a timeout ends a process without a restart policy",
      facts({}, over("timed_out"), "unknown"),
      { do: "end", state: "exited" },
    ],
    [
      "a cancelled run stops the process",
      facts({}, over("cancelled"), "unknown"),
      { do: "end", state: "stopped" },
    ],
    [
      "a run that was lost ends the process as lost",
      facts({}, over("lost"), "unknown"),
      { do: "end", state: "lost" },
    ],
    [
      "a run without a record ends the process as lost",
      facts({}, forgotten, "unknown"),
      { do: "end", state: "lost" },
    ],
    [
      "a refused run ends the process as given up",
      facts({}, over("refused"), "unknown"),
      { do: "end", state: "given_up" },
    ],
    [
      "nothing is done until the keeper was asked",
      facts({ restart: keep }, over("exited", 1), "unknown"),
      { do: "nothing" },
    ],
    [
      "nothing is done while the keeper waits for the next run",
      facts({ restart: keep }, over("exited", 1), row("waiting")),
      { do: "nothing" },
    ],
    [
      "nothing is done if the keeper has started the next run",
      facts({ restart: keep }, over("exited", 1), row("running", 3)),
      { do: "nothing" },
    ],
    [
      "nothing is done until the keeper's last run is recorded",
      facts({ restart: keep }, over("exited", 1), row("given_up", 3)),
      { do: "nothing" },
    ],
    [
      "the process has exited if its keeper is done",
      facts({ restart: keep }, over("exited", 0), row("done")),
      { do: "end", state: "exited" },
    ],
    [
      "the process is given up if its keeper gave up",
      facts({ restart: keep }, over("exited", 1), row("given_up")),
      { do: "end", state: "given_up" },
    ],
    [
      "the process is stopped if its keeper has stopped it",
      facts({ restart: keep }, over("cancelled"), row("stopped")),
      { do: "end", state: "stopped" },
    ],
    [
      "a process between two runs is cancelled in its keeper on a stop request",
      facts({ restart: keep }, over("exited", 1), row("waiting"), stop),
      { do: "cancel" },
    ],
    [
      "a stop request waits until the keeper was asked",
      facts({ restart: keep }, over("exited", 1), "unknown", stop),
      { do: "nothing" },
    ],
    [
      "a stop request waits until the keeper's last run is recorded",
      facts({ restart: keep }, over("exited", 1), row("running", 3), stop),
      { do: "nothing" },
    ],
    [
      "a stop request is fulfilled when the keeper has stopped the process",
      facts({ restart: keep }, over("exited", 1), row("stopped"), stop),
      { do: "end", state: "stopped" },
    ],
    [
      "a stop request needs no keeper once the memory is lost",
      facts({ restart: keep }, over("lost"), "unknown", { ...stop, ...gone }),
      { do: "end", state: "stopped" },
    ],
    [
      "a restart request starts the next run after the cancelled one",
      facts({ restart: keep }, over("cancelled"), row("stopped"), again),
      { do: "begin" },
    ],
    [
      "a restart request starts a run even without a restart policy",
      facts({}, over("cancelled"), "unknown", again),
      { do: "begin" },
    ],
    [
      "a run lost with its memory is followed by the next one",
      facts({ restart: keep }, over("lost"), "unknown", gone),
      { do: "begin" },
    ],
    [
      "memory lost between two runs is followed by the next run",
      facts({ restart: keep }, over("exited", 1), row("waiting"), gone),
      { do: "begin" },
    ],
    [
      "a process that succeeded is not restarted after its memory was lost",
      facts({ restart: keep }, over("exited", 0), "unknown", gone),
      { do: "end", state: "exited" },
    ],
    [
      "a process with the policy `always` is restarted after its memory was lost",
      facts({ restart: { ...keep, on: "always" } }, over("exited", 0), "unknown", gone),
      { do: "begin" },
    ],
    [
      "a cancelled process is not restarted after its memory was lost",
      facts({ restart: keep }, over("cancelled"), "unknown", gone),
      { do: "end", state: "stopped" },
    ],
    [
      "a process that is unknown to its keeper is restarted by the server",
      facts({ restart: keep }, over("exited", 1), null),
      { do: "begin" },
    ],
    [
      "a process that its keeper refused is given up",
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
    ["a running process without readiness conditions is ready", facts({}, open, "unknown"), 1, "ready"],
    [
      "a run that is being started is starting",
      facts({}, { is: "open", stage: "starting" }, "unknown"),
      1,
      "starting",
    ],
    ["a queued run is starting", facts({}, { is: "open", stage: "queued" }, "unknown"), 1, "starting"],
    [
      "a run that is not observed as ready yet is starting",
      facts({ readyWhen: port }, open, "unknown"),
      1,
      "starting",
    ],
    [
      "a run that was observed as ready is ready",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(1) }),
      1,
      "ready",
    ],
    [
      "a run is starting if only an earlier run was observed as ready",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(1, 1) }),
      1,
      "starting",
    ],
    [
      "a run that was not ready in time is unready",
      facts({ readyWhen: port }, open, "unknown", { seen: unready(1) }),
      1,
      "unready",
    ],
    [
      "a run with a port is starting after a wake",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(1) }),
      2,
      "starting",
    ],
    [
      "a run whose port was reached after the wake is ready",
      facts({ readyWhen: port }, open, "unknown", { seen: ready(2) }),
      2,
      "ready",
    ],
    [
      "a run that was ready by output is ready after a wake",
      facts({ readyWhen: text }, open, "unknown", { seen: said(1) }),
      2,
      "ready",
    ],
    [
      "a run with connectBy is ready before its first wake",
      facts({ connectBy: port }, open, "unknown"),
      1,
      "ready",
    ],
    [
      "a run with connectBy is starting after a wake",
      facts({ connectBy: port }, open, "unknown"),
      2,
      "starting",
    ],
    [
      "a run whose port accepted no connection after the wake is unready",
      facts({ connectBy: port }, open, "unknown", { seen: unready(2) }),
      2,
      "unready",
    ],
    [
      "an unready run is starting after another wake",
      facts({ connectBy: port }, open, "unknown", { seen: unready(2) }),
      3,
      "starting",
    ],
    [
      "a process between two runs is waiting",
      facts({ restart: keep }, over("exited", 1), row("waiting")),
      1,
      "waiting",
    ],
    [
      "a process whose keeper can't be asked is waiting",
      facts({ restart: keep }, over("exited", 1), "unknown"),
      1,
      "waiting",
    ],
    [
      "a process that its keeper gave up is given_up before that is stored",
      facts({ restart: keep }, over("exited", 1), row("given_up")),
      1,
      "given_up",
    ],
    ["a lost process is lost before that is stored", facts({}, over("lost"), "unknown"), 1, "lost"],
    [
      "an ended process has its recorded end state",
      facts({}, open, "unknown", { end: { state: "stopped", cause: null, at: 1 } }),
      1,
      "stopped",
    ],
  ];
  it.each(cases)("%s", (_claim, given, generation, want) => {
    expect(judgeProcess(given, generation).status).toBe(want);
  });

  it("has a cause: how the last run ended, or why the run is unready", () => {
    const waits = judgeProcess(facts({ restart: keep }, over("exited", 7), row("waiting")), 1);
    expect(waits.cause?.message).toContain("exited with 7");
    const late = facts({ readyWhen: port }, open, "unknown", { seen: unready(1) });
    expect(judgeProcess(late, 1).cause).toEqual(cause);
  });

  it("includes since when the run is ready and how that was observed", () => {
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

  it("requires readyWhen and connectBy after a wake", () => {
    const { record } = facts({ readyWhen: port, connectBy: { port: 81, withinMs: 5 } }, open, "unknown");
    expect(goalsOf(record, 1)).toEqual([port]);
    expect(goalsOf(record, 2)).toEqual([port, { port: 81, withinMs: 5 }]);
  });
});

it("the description of an end fits into a sentence", () => {
  const gone = { code: "lost", message: "Its memory is gone." };
  const { cause } = judgeProcess(facts({ restart: keep }, over("lost", null, gone), "unknown"), 1);
  expect(cause?.message).toBe("Run 2 was lost: Its memory is gone; the next run follows.");
});
