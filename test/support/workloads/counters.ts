import type { Sandbox } from "@holdfast/sdk";
import { expect, vi } from "vitest";

/**
 * Programs that count in memory and write each number to a file: a gap or a repetition shows that memory and files do
 * not match.
 */
const PROGRAMS = {
  python: [
    "/usr/bin/python3",
    "-c",
    "import time\ni=0\nwhile True:\n i+=1\n open('/home/user/python','a').write(f'{i}\\n')\n time.sleep(0.02)",
  ],
  node: [
    "/usr/bin/env",
    "node",
    "-e",
    "let i=0;setInterval(()=>require('fs').appendFileSync('/home/user/node',++i+'\\n'),20)",
  ],
} as const;
type Program = keyof typeof PROGRAMS;

const soon = { timeout: 30_000, interval: 50 };

/** Returns the numbers written so far. */
async function written(box: Sandbox, program: Program): Promise<number[]> {
  const text = await box.files.readText(`/home/user/${program}`).catch(() => "");
  return text.split("\n").slice(0, -1).map(Number);
}

export class Counters {
  readonly #programs: readonly Program[];
  readonly execs: string[] = [];

  private constructor(programs: readonly Program[]) {
    this.#programs = programs;
  }

  static async start(box: Sandbox, programs: readonly Program[] = ["python", "node"]): Promise<Counters> {
    const counters = new Counters(programs);
    for (const program of programs) {
      const run = await box.execs.start([...PROGRAMS[program]], { keepAwake: false });
      counters.execs.push(run.id);
    }
    await counters.expectProgress(box);
    return counters;
  }

  /** Checks that each program has continued counting since the last call, without a gap or a repetition. */
  async expectProgress(box: Sandbox): Promise<void> {
    for (const program of this.#programs) {
      const before = (await written(box, program)).length;
      await vi.waitFor(
        async () => expect((await written(box, program)).length).toBeGreaterThan(before),
        soon,
      );
      const counts = await written(box, program);
      const wrong = counts.findIndex((count, i) => count !== i + 1);
      expect({ program, wrong, there: counts.slice(Math.max(0, wrong - 2), wrong + 2) }).toEqual({
        program,
        wrong: -1,
        there: counts.slice(0, 1),
      });
    }
  }
}
