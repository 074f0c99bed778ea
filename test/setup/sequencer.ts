import { basename } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** Longest first. Whoever waits for minutes on a real clock must not begin when all others are done. */
const BEFORE_ALL_OTHERS = [
  "quiet.test.ts",
  "storm.test.ts",
  "crash-points.test.ts",
  "faults.test.ts",
  "many.test.ts",
];

export class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const place = BEFORE_ALL_OTHERS.indexOf(basename(moduleId));
      return place === -1 ? BEFORE_ALL_OTHERS.length : place;
    };
    return (await super.sort(files)).toSorted((a, b) => rank(a) - rank(b));
  }
}
