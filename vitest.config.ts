import { defineConfig } from "vitest/config";
import { TallyReporter } from "./test/setup/reporter.ts";

export default defineConfig({
  test: {
    environment: "node",
    include: ["packages/**/*.test.ts", "test/**/*.test.ts"],
    exclude: ["**/node_modules/**", "**/build/**", "**/dist/**"],
    globalSetup: ["test/setup/global.ts"],
    reporters: ["default", new TallyReporter()],
    pool: "forks",
    // The tests launch real sandboxes and measure nothing: two files at a time is what a small machine carries.
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
  },
});
