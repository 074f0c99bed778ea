import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { runHelper } from "./helper.ts";
import { allPids, readLiving } from "./processes.ts";

const env = { PATH: "/usr/bin:/bin" };
const order = (script: string) => ({ argv: ["/bin/sh", "-c", script], env, stdio: "ignore" as const });

/** A command that no other process of this machine runs. */
const NAP = `sleep 1000.${process.pid}`;

function napping(): number {
  const commands = allPids().flatMap((pid) => (readLiving(pid) === null ? [] : [commandOf(pid)]));
  return commands.filter((command) => command === NAP).length;
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
  } catch {
    return "";
  }
}

test("a helper's exit code is given", async () => {
  expect(await runHelper(order("exit 7"), AbortSignal.timeout(5_000))).toBe(7);
});

test("an aborted helper is gone, with what it started, when the promise rejects", async () => {
  const abort = new AbortController();
  const helper = runHelper(order(`${NAP} & ${NAP}`), abort.signal);
  await expect.poll(napping, { timeout: 5_000 }).toBe(2);
  const abortedAt = performance.now();
  abort.abort(new Error("enough"));
  await expect(helper).rejects.toThrow("enough");
  expect(performance.now() - abortedAt).toBeLessThan(1_500);
  await expect.poll(napping, { timeout: 1_000 }).toBe(0);
});

test("a helper that can't be run is an error, and one that is no longer wanted never starts", async () => {
  const nothing = { ...order(""), argv: ["/nonexistent/helper"] };
  await expect(runHelper(nothing, AbortSignal.timeout(5_000))).rejects.toThrow("ENOENT");
  const late = AbortSignal.abort(new Error("too late"));
  await expect(runHelper(order("exit 0"), late)).rejects.toThrow("too late");
});
