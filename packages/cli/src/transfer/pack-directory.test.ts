import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { extract } from "tar-stream";
import { expect, it, onTestFinished } from "vitest";
import { packDirectory } from "./pack-directory.ts";
import { Tally } from "./tally.ts";

it("an entry whose name or target is not UTF-8 is counted as skipped, and no entry gets another name", async () => {
  const directory = await mkdtemp(join(tmpdir(), "holdfast-pack-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const latin = (name: string) => Buffer.from(`${directory}/${name}`, "latin1");
  await writeFile(join(directory, "ü"), "kept");
  await writeFile(latin("caf\xe9"), "skipped");
  await mkdir(latin("d\xe9p\xf4t"));
  await writeFile(Buffer.concat([latin("d\xe9p\xf4t"), Buffer.from("/inside")]), "skipped with it");
  await symlink(Buffer.from("caf\xe9", "latin1"), join(directory, "link"));
  const tally = new Tally(() => {});
  const pieces: Uint8Array[] = [];
  for await (const piece of packDirectory(directory, tally)) pieces.push(piece);
  const parser = extract();
  parser.end(Buffer.concat(pieces));
  const names: string[] = [];
  for await (const entry of parser) {
    names.push(entry.header.name);
    entry.resume();
  }
  expect(names).toEqual(["./", "ü"]);
  expect(tally.skipped).toBe(3);
});
