import { writeSync } from "node:fs";
import type { Reporter, SerializedError, TestModule } from "vitest/node";

const STDOUT = 1;

/**
 * Ends the run's output with one line for machines: `N passed, N failed`, and `, N skipped` if some were. It is written
 * when the process exits, after all other output, and never says `0 failed` if the run failed: a file that can't be
 * loaded, an error outside any test and a failed global teardown count as failures.
 */
export class TallyReporter implements Reporter {
  #passed = 0;
  #failed = 0;
  #skipped = 0;

  onInit(): void {
    process.once("exit", (code) => {
      const failed = code === 0 ? this.#failed : Math.max(this.#failed, 1);
      writeSync(
        STDOUT,
        `${this.#passed} passed, ${failed} failed${this.#skipped > 0 ? `, ${this.#skipped} skipped` : ""}\n`,
      );
    });
  }

  onTestRunEnd(modules: readonly TestModule[], errors: readonly SerializedError[]): void {
    this.#failed += errors.length;
    for (const module of modules) {
      let failedHere = 0;
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        if (state === "passed") this.#passed++;
        else if (state === "failed") failedHere++;
        else this.#skipped++;
      }
      if (failedHere === 0 && !module.ok()) failedHere = 1;
      this.#failed += failedHere;
    }
  }
}
