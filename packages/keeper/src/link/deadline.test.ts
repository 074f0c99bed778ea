import { afterEach, beforeEach, describe, test } from "vitest";
import { isAlive, pause, soon, TestKeeper, until } from "../testing/test-keeper.ts";

let keeper: TestKeeper;
beforeEach(async () => {
  keeper = await TestKeeper.start();
});
afterEach(() => keeper.stop());

describe("the deadline of a keeper", () => {
  test("ends the keeper and its commands when no link is up", async () => {
    const link = await keeper.connect();
    const { exec } = await link.startExec(keeper.order(["sleep", "600"]), soon());
    await link.setDeadline(300, soon());
    link.close();
    await until("the keeper has ended", () => !isAlive(keeper.pid));
    await until("the command has ended", () => !isAlive(exec.pid));
  });

  test("waits while a link is up", async () => {
    const link = await keeper.connect();
    await link.setDeadline(50, soon());
    await pause(500);
    await link.ping(soon());
    link.close();
    await until("the keeper has ended", () => !isAlive(keeper.pid));
  });

  test("is replaced by a later one, and removed by null", async () => {
    const link = await keeper.connect();
    await link.setDeadline(100, soon());
    await link.setDeadline(600_000, soon());
    link.close();
    await pause(500);
    const next = await keeper.connect();
    await next.setDeadline(100, soon());
    await next.setDeadline(null, soon());
    next.close();
    await pause(500);
    await (await keeper.connect()).ping(soon());
  });
});
