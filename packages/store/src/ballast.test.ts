import { execFileSync } from "node:child_process";
import { existsSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { holdStateDirectory } from "./hold.ts";
import { openStore } from "./store.ts";
import { temporaryDirectory } from "./testing/directory.ts";
import { sampleSandbox } from "./testing/samples.ts";

const MB = 1_048_576;

/** A file system small enough to fill. */
function smallDisk(sizeMb: number): string {
  const directory = temporaryDirectory();
  execFileSync("mount", ["-t", "tmpfs", "-o", `size=${sizeMb}m`, "holdfast-test", directory]);
  onTestFinished(() => void execFileSync("umount", ["-l", directory]));
  return directory;
}

function fill(directory: string): void {
  for (const size of [MB, 65_536, 4_096]) {
    for (let index = 0; ; index += 1) {
      try {
        writeFileSync(join(directory, `filler-${size}-${index}`), new Uint8Array(size));
      } catch {
        break;
      }
    }
  }
}

const change = (message: string) => ({
  changes: [],
  events: [{ at: 1, type: "sandbox.deleting", message: message.padEnd(2_000, ".") } as const],
});

test("a full disk does not prevent commits from being recorded, for a good while", async () => {
  const directory = smallDisk(48);
  const path = join(directory, "holdfast.db");
  const store = await openStore({ path });
  expect(statSync(`${path}.ballast`).size).toBe(16 * MB);
  const record = sampleSandbox();
  await store.commit({ changes: [{ kind: "sandbox.insert", record }] });
  fill(directory);
  for (let index = 0; index < 4_000; index += 1) await store.commit(change(`event ${index}`));
  expect(existsSync(`${path}.ballast`)).toBe(false);
  expect(await store.events({ limit: 1, after: 3_999 })).toHaveLength(1);
  await store.close();
  const again = await openStore({ path });
  expect(await again.sandbox(record.id)).toEqual(record);
  await again.close();
});

test("when the reserve is used up, a write fails as a whole and the next one can succeed", async () => {
  const directory = smallDisk(40);
  const path = join(directory, "holdfast.db");
  const store = await openStore({ path });
  fill(directory);
  let written = 0;
  const failure = await (async () => {
    for (; written < 40_000; written += 1) await store.commit(change(`event ${written}`));
  })().catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(Error);
  expect((await store.events({ limit: 1_000, after: written - 500 })).length).toBe(500);
  execFileSync("sh", ["-c", `rm -f ${directory}/filler-*`]);
  await store.commit(change("room again"));
  expect(
    (await store.events({ limit: 10, after: written })).map(({ message }) => message.slice(0, 10)),
  ).toEqual(["room again"]);
  await store.close();
}, 60_000);

test("a database opens on a full disk, repeatedly, after commits have used up their reserve", async () => {
  const directory = smallDisk(64);
  const path = join(directory, "holdfast.db");
  const record = sampleSandbox();
  const first = await openStore({ path });
  await first.commit({ changes: [{ kind: "sandbox.insert", record }] });
  await first.close();
  execFileSync("rm", [`${path}.ballast`]);
  fill(directory);
  holdStateDirectory(directory).release();
  fill(directory);
  for (let start = 0; start < 5; start += 1) {
    const hold = holdStateDirectory(directory);
    const store = await openStore({ path });
    expect((await store.sandbox(record.id))?.lastActivityAt).toBe(record.lastActivityAt + start);
    const at = record.lastActivityAt + start + 1;
    await store.commit({ changes: [{ kind: "sandbox.touch", id: record.id, at, execsStarted: 0 }] });
    fill(directory);
    await store.close();
    hold.release();
    fill(directory);
  }
});
