import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, it } from "vitest";
import { MUTATIONS } from "./mutations.ts";
import type { Schedule } from "./schedule.ts";

const PATIENCE_MS = 120_000;
const MAIN = fileURLToPath(new URL("./main.ts", import.meta.url));

const files: string[] = [];
afterEach(() => {
  for (const file of files.splice(0)) rmSync(file, { force: true });
});

/** The command as it is run by hand. */
async function simulate(...args: string[]): Promise<{ code: number | null; said: string }> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (said += data));
  const code = await new Promise<number | null>((resolve) => child.on("close", resolve));
  return { code, said };
}

/** What each of them breaks first; one that breaks more than one promise may be found by either. */
const BREAKS: Readonly<Record<string, string>> = {
  "lease-after-launch": "leased",
  "unknown-is-absent": "gone-means-gone|standby-is-whole",
  "previous-status": "ready-means-proven",
  "spent-after-thaw": "woken-once",
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

describe("a mistake in the engine", () => {
  it.each(MUTATIONS.map(({ name, about }) => [about, name]))(
    "is found: %s",
    async (_about, name) => {
      // One worker, so that it is the same seed every time.
      const since = performance.now();
      const { code, said } = await simulate("--mutation", name, "--schedules", "500", "--workers", "1");
      expect(code).toBe(1);
      const found = new RegExp(`Seed (\\d+) breaks "(${BREAKS[name]})"`).exec(said);
      expect(found, said.slice(0, 2_000)).not.toBeNull();
      const [, seed, broken] = found ?? [];
      const seconds = ((performance.now() - since) / 1_000).toFixed(0);
      console.log(`"${name}" is found at seed ${seed}, explained within ${seconds} s`);
      const file = /--replay (\S+\.json)/.exec(said)?.[1] ?? "";
      files.push(file);
      // The smallest schedule that shows it is short, and shows it again.
      const { steps } = JSON.parse(readFileSync(file, "utf8")) as Schedule;
      expect(steps.length).toBeLessThan(10);
      const replayed = await simulate("--mutation", name, "--replay", file);
      expect(replayed.code).toBe(1);
      expect(replayed.said).toContain(`VIOLATION of ${broken}`);
      expect((await simulate("--replay", file)).said).not.toContain("VIOLATION");
    },
    PATIENCE_MS,
  );
});

describe("npm run simulate", () => {
  it(
    "does not pass where a kind of fault never struck",
    async () => {
      const { code, said } = await simulate("--schedules", "2", "--steps", "5", "--workers", "1");
      expect(code).toBe(1);
      expect(said).toContain("never struck");
    },
    PATIENCE_MS,
  );

  it("says how it is used", async () => {
    expect((await simulate("--help")).said).toContain("--replay");
    expect((await simulate("--seed", "many")).code).toBe(2);
  });
});
