import { execFileSync } from "node:child_process";
import { mkdtemp, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { linkArchive } from "./link-archive.ts";

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "holdfast-link-"));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

it.each([
  ["a link", "link", "../to"],
  ["a link with long names", "n".repeat(200), `/${"t".repeat(180)}/${"u".repeat(500)}`],
  ["a link with names of other alphabets", "ссылка", "到 那里"],
  ["a link whose records fill a block", "link", "t".repeat(481)],
])("%s comes out of the archive as it went in", async (_, name, target) => {
  const archive = linkArchive(name, target);
  expect(archive.length % 512).toBe(0);
  execFileSync("tar", ["-C", directory, "-xf", "-"], { input: archive });
  expect(await readlink(join(directory, name))).toBe(target);
});
