import { expect, test } from "vitest";
import { terminalLine } from "./terminal-line.ts";

const time = new Date(2026, 0, 2, 3, 4, 5).getTime();
const of = (fields: object) =>
  terminalLine(JSON.stringify({ level: 40, time, part: "engine", ...fields }), false);

test("a line has its time, level and message first, then its fields", () => {
  expect(of({ msg: "link lost", sandbox: "sbx_a", ms: 7, why: "it is gone" })).toBe(
    '03:04:05 warn  link lost  sandbox=sbx_a ms=7 why="it is gone"\n',
  );
  expect(of({ msg: "serving", level: 30 })).toBe("03:04:05 info  serving\n");
});

test("errors and causes are shown by their messages, without stacks", () => {
  const err = {
    type: "Error",
    message: "no room",
    stack: "Error: no room\n at x",
    cause: { message: "ENOSPC" },
  };
  expect(of({ msg: "failed", err })).toBe("03:04:05 warn  failed  err=no room: ENOSPC\n");
});

test("text that a sandbox wrote controls neither the cursor nor the direction of the text", () => {
  const hostile = "\u001b[2J\u0007\u202ex\n";
  const lines = [of({ msg: hostile }), of({ msg: "m", name: hostile }), terminalLine(hostile, false)];
  for (const line of lines)
    for (const sign of ["\u001b", "\u0007", "\u202e"]) expect(line).not.toContain(sign);
});
