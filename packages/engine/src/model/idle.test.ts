import { expect, test } from "vitest";
import { queuedSandbox } from "../testing/samples.ts";
import { type IdleFacts, isIdle, isUnusedFor } from "./idle.ts";

const NOW = 1_000_000;
const IDLE_MS = 60_000;

function facts(change: Partial<IdleFacts> = {}): IdleFacts {
  const { spec, ...sample } = queuedSandbox({});
  const lifecycle = { ...spec.lifecycle, idleStandbyMs: IDLE_MS };
  const record = { ...sample, spec: { ...spec, lifecycle }, lastActivityAt: NOW - IDLE_MS };
  return { record, callsInProgress: 0, isKeptAwake: false, now: NOW, ...change };
}

test("a sandbox is idle once it was unused for its idleStandbyMs", () => {
  expect(isIdle(facts())).toBe(true);
  expect(isIdle(facts({ now: NOW - 1 }))).toBe(false);
});

test("a sandbox without idleStandbyMs is never idle", () => {
  expect(isIdle(facts({ record: queuedSandbox({}), now: 1e15 }))).toBe(false);
});

test("a sandbox with a call in progress is not idle", () => {
  expect(isIdle(facts({ callsInProgress: 1 }))).toBe(false);
});

test("a sandbox with an exec or process that keeps it awake is not idle", () => {
  expect(isIdle(facts({ isKeptAwake: true }))).toBe(false);
});

test("the time without use is measured from the last activity", () => {
  expect(isUnusedFor(facts(), IDLE_MS)).toBe(true);
  expect(isUnusedFor(facts(), IDLE_MS + 1)).toBe(false);
});
