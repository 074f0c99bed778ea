import { basename } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The longest files, in descending order of duration: a file of minutes that starts last prolongs the whole run. */
const LONGEST_FIRST = [
  "silent-execs.test.ts",
  "storm.test.ts",
  "runbook.test.ts",
  "backup.test.ts",
  "blaxel.test.ts",
  "agentuity.test.ts",
  "standby.test.ts",
  "healing.test.ts",
  "broken-from-outside.test.ts",
  "faults.test.ts",
  "diagnosis.test.ts",
  "fork.test.ts",
  "forks.test.ts",
  "traps.test.ts",
  "crash-points.test.ts",
  "standby-crashes.test.ts",
  "drive-crashes.test.ts",
  "simulation.test.ts",
  "commit-seeds.test.ts",
  "main.test.ts",
  "blaxel-previews.test.ts",
  "streams.test.ts",
  "held-output.test.ts",
  "sanitized.test.ts",
  "driver.test.ts",
  "standby-hosts.test.ts",
  "files.test.ts",
  "cli.test.ts",
  "timeline.test.ts",
  "alerts.test.ts",
  "terminal.test.ts",
  "stuck-readers.test.ts",
  "pulse.test.ts",
  "observe.test.ts",
  "spawner.test.ts",
  "processes.test.ts",
  "drives.test.ts",
  "isolation.test.ts",
  "transfer.test.ts",
  "ports.test.ts",
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
