import { readdirSync, readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Schedule } from "../schedule/schedule.ts";
import { Runner } from "./campaign.ts";

const PATIENCE_MS = 120_000;
const DIRECTORY = new URL("./found-schedules/", import.meta.url);

let runner: Runner;
beforeAll(async () => {
  runner = await Runner.open();
});
afterAll(() => runner.close());

describe("a smallest schedule that broke a promise once", () => {
  it.each(readdirSync(DIRECTORY))(
    "breaks none any more: %s",
    async (file) => {
      const schedule: Schedule = JSON.parse(readFileSync(new URL(file, DIRECTORY), "utf8"));
      expect((await runner.run(schedule)).violation).toBeNull();
    },
    PATIENCE_MS,
  );
});
