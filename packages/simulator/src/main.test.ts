import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, it } from "vitest";
import { sample } from "../../../test/setup/long.ts";
import { MUTATIONS } from "./mutations.ts";
import type { Schedule } from "./schedule/schedule.ts";

/** Far above the usual duration, because the machine may be busy. */
const PATIENCE_MS = 900_000;
const MAIN = fileURLToPath(new URL("./main.ts", import.meta.url));

const files: string[] = [];
afterEach(() => {
  for (const file of files.splice(0)) rmSync(file, { force: true });
});

/** Runs the simulator as a command, as a developer would. */
async function simulate(...args: string[]): Promise<{ code: number | null; output: string }> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (output += data));
  const code = await new Promise<number | null>((resolve) => child.on("close", resolve));
  return { code, output };
}

/** The promise that each mutation breaks first. A mutation that breaks several may be found by any of them. */
const BREAKS: Readonly<Record<string, string>> = {
  "lease-after-launch": "leased",
  "unknown-is-absent": "gone-means-gone|standby-is-whole",
  "ended-by-sweeps-only": "ends-at-its-end",
  "previous-status": "ready-means-proven",
  "spent-after-thaw": "woken-once",
  "one-link-only": "memory-tried-for",
  "spent-is-tried-again": "woken-once",
  "discarded-too-soon": "standby-is-whole",
  "fork-keeps-names": "ended-for-a-reason|lost-means-lost|names-apart",
  "saved-before-it-is-kept": "kept-is-whole",
  "forgotten-before-it-is-off": "mounts-recorded",
  "deleted-under-sleepers": "drives-kept",
  "left-open": "nothing-under-mounts",
  "unknown-is-evidence": "given-up-for-a-reason",
  "left-broken": "settles|wakes",
};

describe("a mutation of the engine", () => {
  it.each(sample(MUTATIONS, 6).map(({ name, about }) => [about, name]))(
    "is found: %s",
    async (_about, name) => {
      // One worker, so that the failing seed is always the same.
      const since = performance.now();
      const { code, output } = await simulate("--mutation", name, "--schedules", "500", "--workers", "1");
      expect(code).toBe(1);
      const found = new RegExp(`Seed (\\d+) breaks "(${BREAKS[name]})"`).exec(output);
      expect(found, output.slice(0, 2_000)).not.toBeNull();
      const [, seed, broken] = found ?? [];
      const seconds = ((performance.now() - since) / 1_000).toFixed(0);
      console.log(`"${name}" is found at seed ${seed}, explained within ${seconds} s`);
      const file = /--replay (\S+\.json)/.exec(output)?.[1] ?? "";
      files.push(file);
      // The shrunk schedule is short, and breaks the promise again.
      const { steps } = JSON.parse(readFileSync(file, "utf8")) as Schedule;
      expect(steps.length).toBeLessThan(15);
      const replayed = await simulate("--mutation", name, "--replay", file);
      expect(replayed.code).toBe(1);
      expect(replayed.output).toContain(`VIOLATION of ${broken}`);
      expect((await simulate("--replay", file)).output).not.toContain("VIOLATION");
    },
    PATIENCE_MS,
  );
});

describe("npm run simulate", () => {
  it(
    "fails if a kind of fault never struck",
    async () => {
      const { code, output } = await simulate("--schedules", "2", "--steps", "5", "--workers", "1");
      expect(code).toBe(1);
      expect(output).toContain("never struck");
    },
    PATIENCE_MS,
  );

  it("prints its usage", async () => {
    expect((await simulate("--help")).output).toContain("--replay");
    expect((await simulate("--seed", "many")).code).toBe(2);
  });
});
