/** Servers that are killed during a launch: the next server finds the remains, and ends, removes or takes them over. */
import { DEFAULT_RESOURCES, newSandboxId, type SandboxId } from "@holdfast/contract";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { killedServer } from "../testing/killed-server.ts";
import { type TestMachine, testMachine } from "../testing/test-machine.ts";

const soon = () => AbortSignal.timeout(20_000);
let machine: TestMachine;
let id: SandboxId;

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await destroyed();
});
afterAll(() => machine.dispose());

/** Retries: a mount that the killed server had begun may complete during the first removal, which then fails. */
const destroyed = () =>
  expect
    .poll(() => machine.driver.destroy(id, soon()).then(() => "removed", String), { timeout: 15_000 })
    .toBe("removed");

const withDisk = { resources: { ...DEFAULT_RESOURCES, diskMb: 64 } };
const MOMENTS = [
  ["files", 0],
  ["files", 6],
  ["files", 14],
  ["root", 0],
  ["runtime", 2],
  ["runtime", 20],
  ["keeper", 0],
] as const;

describe.for([...MOMENTS])("a server killed at the step '%s', %i ms into it", ([step, ms]) => {
  test("leaves a first launch that can be removed", async () => {
    id = newSandboxId();
    await killedServer(machine, "launch", orderFor(id, withDisk), { step, afterMs: ms });
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await destroyed();
    expect(await machine.driver.list(soon())).toEqual([]);
  });

  test("leaves a restart that can be repeated on the same files", async () => {
    id = newSandboxId();
    const link = await machine.driver.connect(
      await machine.driver.launch(orderFor(id, withDisk), soon()),
      soon(),
    );
    await run(link, "echo mine > /root/a", "root");
    link.close();
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    const again = { ...withDisk, restart: true };
    const order = orderFor(id, { ...again, generation: 2 });
    await killedServer(machine, "launch", order, { step, afterMs: ms });
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    const third = await machine.driver.launch(orderFor(id, { ...again, generation: 3 }), soon());
    const next = await machine.driver.connect(third, soon());
    expect(await run(next, "cat /root/a", "root")).toMatchObject({ output: "mine\n" });
    next.close();
  });
});
