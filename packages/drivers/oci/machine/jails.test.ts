import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DriveId, newDriveId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Jails, type OpenedFiles } from "./jails.ts";

const soon = () => AbortSignal.timeout(20_000);
const porter = new Porter();
let root: string;
let open: OpenedFiles[];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "holdfast-jails-"));
  chmodSync(root, 0o755);
  writeFileSync(join(root, "file"), "content", { mode: 0o644 });
  open = [];
});
afterEach(async () => {
  for (const { close } of open) await close();
  porter.close();
  rmSync(root, { recursive: true });
});

async function jailIn(jails: Jails, owner: DriveId = newDriveId(), signal = soon()): Promise<OpenedFiles> {
  const opened = await jails.open({ owner, root, idBase: 100_000, idCount: 65_536 }, signal);
  open.push(opened);
  return opened;
}
const withLimits = (atOnce: number, waiting: number, waitMs = 60_000) =>
  new Jails(porter, systemClock, { atOnce, waiting, waitMs });

test("a call beyond the limit waits for a jail, and one beyond the waiting calls is refused undone", async () => {
  const jails = withLimits(1, 1);
  const first = await jailIn(jails);
  let isOpen = false;
  const second = jailIn(jails).then((opened) => {
    isOpen = true;
    return opened;
  });
  await expect(jailIn(jails)).rejects.toMatchObject({ code: "too_many_file_calls", dispatched: "no" });
  expect(isOpen).toBe(false);
  await first.close();
  const { files } = await second;
  expect((await files.stat("/file", { follow: true }, soon())).sizeBytes).toBe(7);
});

test("a call that waits for too long is refused, and one whose caller leaves gives up its turn", async () => {
  const jails = withLimits(1, 1, 20);
  const first = await jailIn(jails);
  await expect(jailIn(jails)).rejects.toMatchObject({ code: "too_many_file_calls", dispatched: "no" });
  const gone = new AbortController();
  const left = jailIn(jails, newDriveId(), gone.signal);
  gone.abort(new Error("the caller left"));
  await expect(left).rejects.toThrow("the caller left");
  await first.close();
  await jailIn(jails);
});

test("a jail that can't be opened gives its place back", async () => {
  const jails = withLimits(1, 0);
  const order = { owner: newDriveId(), root: join(root, "nowhere"), idBase: 100_000, idCount: 65_536 };
  await expect(jails.open(order, soon())).rejects.toThrow(/can't be entered/);
  await jailIn(jails);
});

test("a watch takes no place once it has begun", async () => {
  const jails = withLimits(1, 0);
  const { files } = await jailIn(jails);
  const ended = new AbortController();
  const changes = await files.watch("/", { recursive: false }, ended.signal);
  await jailIn(jails);
  ended.abort();
  await changes[Symbol.asyncIterator]().return?.();
});
