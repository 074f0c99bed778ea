import { defineConfig } from "vitest/config";
import { isLong } from "./test/setup/long.ts";
import { TallyReporter } from "./test/setup/reporter.ts";
import { LongestFirst } from "./test/setup/sequencer.ts";

/** Tests that break the whole machine for minutes. They run only if HOLDFAST_CHAOS is set. */
const ON_REQUEST = [
  "test/failures/chaos.test.ts",
  "test/operations/full-disk.test.ts",
  "test/operations/reboot.test.ts",
];

/** Takes minutes of real time and has no shorter form; test/failures/faults.test.ts makes its claim with fast numbers. */
const LONG_ONLY = ["test/product/silent-execs.test.ts"];

/** Files that run more cases, or larger ones, in `npm run test:long`. Each of them reads test/setup/long.ts. */
const LONG = [
  ...LONG_ONLY,
  "test/failures/storm.test.ts",
  "test/failures/standby-crashes.test.ts",
  "test/failures/drive-crashes.test.ts",
  "test/failures/crash-points.test.ts",
  "test/product/forks.test.ts",
  "test/product/drive-model.test.ts",
  "test/product/counters-exact.test.ts",
  "packages/simulator/src/main.test.ts",
  "packages/simulator/src/simulation/simulation.test.ts",
  "packages/simulator/src/simulation/commit-seeds.test.ts",
];

export default defineConfig({
  test: {
    environment: "node",
    include: isLong ? LONG : ["packages/**/*.test.ts", "test/**/*.test.ts"],
    exclude: [
      "**/node_modules/**",
      "**/build/**",
      "**/dist/**",
      ...(isLong ? [] : LONG_ONLY),
      ...(process.env.HOLDFAST_CHAOS === undefined ? ON_REQUEST : []),
    ],
    globalSetup: ["test/setup/global.ts"],
    reporters: ["default", new TallyReporter()],
    pool: "forks",
    // Tests with real sandboxes wait about twice as long as they compute: six files keep two cores busy.
    maxWorkers: 6,
    sequence: { sequencer: LongestFirst },
    // On a busy machine a test of seconds takes a minute. A test that times out also leaves its sandboxes behind.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    teardownTimeout: 30_000,
  },
});
