import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

/** A directory of the test's own, gone when the test is. */
export function temporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "holdfast-store-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}
