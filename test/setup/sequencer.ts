import { basename } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The longest files, in descending order of duration: a file of minutes that starts last prolongs the whole run. */
const LONGEST_FIRST = [
  "silent-execs.test.ts",
  "storm.test.ts",
  "faults.test.ts",
  "runbook.test.ts",
  "standby-crashes.test.ts",
  "main.test.ts",
  "blaxel.test.ts",
  "healing.test.ts",
  "agentuity.test.ts",
  "forks.test.ts",
  "standby.test.ts",
  "crash-points.test.ts",
  "drive-crashes.test.ts",
  "diagnosis.test.ts",
  "files.test.ts",
  "blaxel-previews.test.ts",
  "alerts.test.ts",
  "drives.test.ts",
  "driver.test.ts",
  "stuck-readers.test.ts",
  "timeline.test.ts",
  "simulation.test.ts",
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const place = LONGEST_FIRST.indexOf(basename(moduleId));
      return place === -1 ? LONGEST_FIRST.length : place;
    };
    return (await super.sort(files)).toSorted((a, b) => rank(a) - rank(b));
  }
}
