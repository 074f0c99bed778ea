import { defineConfig } from "vitest/config";
import { TallyReporter } from "./test/setup/reporter.ts";
import { LongFirst } from "./test/setup/sequencer.ts";

/** They break a machine for minutes, and are run when that is asked for. */
const ON_REQUEST = ["test/chaos.test.ts", "test/disk.test.ts", "test/reboot.test.ts"];

export default defineConfig({
  test: {
    environment: "node",
    include: ["packages/**/*.test.ts", "test/**/*.test.ts"],
    exclude: [
      "**/node_modules/**",
      "**/build/**",
      "**/dist/**",
      ...(process.env.HOLDFAST_CHAOS === undefined ? ON_REQUEST : []),
    ],
    globalSetup: ["test/setup/global.ts"],
    reporters: ["default", new TallyReporter()],
    pool: "forks",
    // The tests launch real sandboxes: two files at a time is what a small machine carries, beside one that mostly sleeps.
    maxWorkers: 3,
    sequence: { sequencer: LongFirst },
    testTimeout: 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
  },
});
