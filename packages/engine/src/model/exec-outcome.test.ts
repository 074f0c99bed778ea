import { newExecId, newSandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { KeeperExec } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import { cursorOf, ended, offsetIn, outcomeOf, signalNumber, unseenEnd } from "./exec-outcome.ts";

const id = newExecId();
const record: ExecRecord = {
  id,
  sandboxId: newSandboxId(),
  generation: 1,
  spec: {
    argv: ["true"],
    env: {},
    cwd: "",
    user: "",
    timeoutMs: null,
    stdin: null,
    tty: null,
    keepAwake: true,
    onWake: null,
  },
  digest: "d",
  status: "starting",
  exitCode: null,
  signal: null,
  cause: null,
  dispatched: "unknown",
  outputEnd: 0,
  createdAt: 1,
  startedAt: null,
  endedAt: null,
};
const known: KeeperExec = {
  id,
  state: "exited",
  pid: 2,
  exitCode: 3,
  signal: 0,
  failure: "",
  startedAt: 1,
  endedAt: 2,
  journalFloor: 0,
  journalEnd: 10,
  digest: "d",
};

describe("an exec's outcome", () => {
  it("has an exit code or a signal, never both", () => {
    expect(outcomeOf(known)).toMatchObject({ status: "exited", exitCode: 3, signal: null });
    expect(outcomeOf({ ...known, exitCode: -1, signal: 9 })).toMatchObject({
      exitCode: null,
      signal: "SIGKILL",
    });
  });

  it("has the cause if the command could not be started", () => {
    expect(outcomeOf({ ...known, exitCode: 127, failure: "not_found" }).cause?.code).toBe("not_found");
  });

  it("is set only once", () => {
    const done = ended(record, outcomeOf(known));
    expect(() => ended(done, outcomeOf(known))).toThrow(/ends once/);
  });

  it("reports `dispatched` as unknown unless there is evidence", () => {
    const cause = { code: "x", message: "y" };
    expect(unseenEnd("lost", record, cause, 5).dispatched).toBe("unknown");
    expect(unseenEnd("lost", { ...record, startedAt: 2 }, cause, 5).dispatched).toBe("yes");
    expect(unseenEnd("refused", record, cause, 5).dispatched).toBe("no");
    expect(unseenEnd("lost", record, cause, 5, "no journal").dispatched).toBe("no");
    expect(unseenEnd("lost", record, cause, 5, { exec: null, end: 0 }).dispatched).toBe("unknown");
    expect(unseenEnd("lost", record, cause, 5, { exec: null, end: 9 })).toMatchObject({
      dispatched: "yes",
      outputEnd: 9,
    });
  });

  it("comes from the exit record in the journal, but only from this exec's", () => {
    const cause = { code: "x", message: "y" };
    const end = (exec: KeeperExec) => unseenEnd("lost", record, cause, 5, { exec, end: 10 });
    expect(end(known)).toMatchObject({ status: "exited", exitCode: 3, dispatched: "yes" });
    expect(end({ ...known, digest: "other" })).toMatchObject({ status: "lost", cause });
    expect(end({ ...known, id: newExecId() })).toMatchObject({ status: "lost", cause });
  });

  it("belongs to an exec whose cursors no other exec accepts", () => {
    expect(offsetIn(cursorOf(record, 42), record)).toBe(42);
    const foreign = cursorOf({ ...record, id: newExecId() }, 42);
    const stale = cursorOf({ ...record, createdAt: 2 }, 42);
    for (const bad of [foreign, stale, `${id}.1.-1`, `${id}.1.`, `${id}.1.2.3`, `${id}.42`, "42", ""])
      expect(offsetIn(bad, record)).toBeNull();
  });

  it("has signals that are found with and without the prefix SIG", () => {
    expect(signalNumber("TERM")).toBe(signalNumber("SIGTERM"));
    expect(signalNumber("NOPE")).toBeNull();
  });
});
