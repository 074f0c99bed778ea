import { expect, test } from "vitest";
import { checkHost } from "./doctor.ts";
import { testMachine } from "./testing.ts";

test("a host on which sandboxes run has everything that is required", async () => {
  const machine = await testMachine();
  const checks = await checkHost(machine.stateDir);
  await machine.dispose();
  expect(checks.filter(({ required, ok }) => required && !ok)).toEqual([]);
  expect(checks.find(({ name }) => name === "container runtime")?.found).toContain("was seen to start");
});

test("what is missing comes with what to do about it", async () => {
  for (const { ok, fix } of await checkHost()) expect(fix === "").toBe(ok);
});
