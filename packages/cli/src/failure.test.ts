import { ExecUnfinishedError, HoldfastError, OutputDroppedError } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { Failure, report } from "./failure.ts";
import { Interrupted } from "./interrupt.ts";

const facts = {
  code: "connection",
  message: "It broke.",
  hint: "Mend it.",
  retryable: true,
  dispatched: "unknown",
  status: 0,
  method: "GET",
  url: "http://127.0.0.1/",
  body: "",
  execId: "exe_1",
} as const;

describe("a failure", () => {
  it("is two lines: what happened and what to do", () => {
    expect(report(new HoldfastError(facts))).toEqual({
      text: "holdfast: It broke.\nMend it.\n",
      exitCode: 1,
    });
    expect(report(new Failure("no", "Try yes.", 2)).exitCode).toBe(2);
    expect(report(new Interrupted("SIGTERM"))).toEqual({ text: "", exitCode: 143 });
  });

  it("to wait for an exec, or to read all of it, says which command goes on", () => {
    const unfinished = new ExecUnfinishedError(facts, { id: "exe_1", exec: null, cursor: null });
    expect(report(unfinished).text).toContain("'holdfast attach exe_1'");
    const dropped = new OutputDroppedError({ ...facts, floor: "exe_1.9" });
    expect(report(dropped).text).toContain("'holdfast logs -f --since-cursor exe_1.9 exe_1'");
    expect(report(new OutputDroppedError({ ...facts, floor: null })).text).toContain("Mend it.");
  });
});
