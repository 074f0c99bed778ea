import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { keeperBinaries, Porter } from "@holdfast/keeper";
import { afterEach, beforeEach, expect, onTestFinished, test } from "vitest";
import { allPids, readExecutable, readLiving } from "../proc/proc-files.ts";
import { killSpawners, silent } from "../testing/test-machine.ts";
import { installBinaries } from "./binaries.ts";
import { type Layout, layoutOf, makeLayout } from "./layout.ts";
import { openStateDir } from "./state-dir.ts";
import { endStrayPorters } from "./stray-porters.ts";
import { setIpcFromOutside } from "./sysctls.ts";

let dir: string;
let layout: Layout;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-install-"));
  layout = layoutOf(dir, newInstallationId());
  makeLayout(layout, 0);
});
afterEach(() => rmSync(dir, { recursive: true }));

test("keeper and porter are copied by version, and sandboxes can't see the porter", async () => {
  const { version, dir: keeperDir, porter } = await installBinaries(layout);
  expect(readdirSync(keeperDir).sort()).toEqual(["control", "keeper"]);
  expect(porter.startsWith(keeperDir)).toBe(false);
  for (const binary of [porter, join(keeperDir, "keeper")])
    expect(execFileSync(binary, ["--version"], { encoding: "utf8" }).trim()).toBe(version);
});

test("binaries with another version than expected are not installed", async () => {
  const half = { ...keeperBinaries(), version: "0123456789ab" };
  await expect(installBinaries(layout, half)).rejects.toThrow(/should be 0123456789ab/);
  expect([...readdirSync(layout.keepers), ...readdirSync(layout.porters)]).toEqual([]);
});

test("unused versions are removed", async () => {
  for (const kind of [layout.keepers, layout.porters]) mkdirSync(join(kind, "old"));
  const { version } = await installBinaries(layout);
  for (const kind of [layout.keepers, layout.porters]) expect(readdirSync(kind)).toEqual([version]);
});

test("porters of another process are ended, and our own are not", async () => {
  const { porter } = await installBinaries(layout);
  const image = join(dir, "image");
  writeFileSync(image, "");
  const waiting = `: > ${dir}/locked; exec sleep 1000`;
  const holder = spawn("flock", [image, "/bin/sh", "-c", waiting], { detached: true });
  onTestFinished(() => void process.kill(-(holder.pid ?? 0), "SIGKILL"));
  await expect.poll(() => existsSync(join(dir, "locked")), { timeout: 15_000 }).toBe(true);
  const own = spawn(porter, ["disk", image, dir, "discard"], { stdio: "ignore" });
  onTestFinished(() => void own.kill("SIGKILL"));
  const script = `${porter} disk ${image} ${dir} discard & echo $!; wait`;
  const other = spawn("/bin/sh", ["-c", script], { stdio: ["ignore", "pipe", "ignore"] });
  onTestFinished(() => void other.kill("SIGKILL"));
  const left = Number(await new Promise((resolve) => other.stdout.once("data", resolve)));
  await expect.poll(() => readExecutable(left), { timeout: 15_000 }).toBe(porter);
  process.kill(left, "SIGSTOP");
  const acting = new Porter({ binary: porter });
  const mounted = acting.mountDisk({ image, target: dir, options: "discard" }).catch(() => "lost");
  const porters = () => allPids().filter((pid) => readExecutable(pid) === porter);
  await expect.poll(() => porters().length, { timeout: 15_000 }).toBe(4);
  await endStrayPorters(layout, systemClock, silent);
  expect(readLiving(left)).toBeNull();
  expect(readLiving(own.pid ?? 0)).not.toBeNull();
  expect(porters()).toHaveLength(3);
  killSpawners();
  expect(await mounted).toBe("lost");
});

test("a state directory that sandboxes could see, even through a link, is refused and not created", () => {
  const shown = join(dir, "shown");
  mkdirSync(shown);
  symlinkSync(shown, join(dir, "elsewhere"));
  for (const path of ["shown", "shown/state", "elsewhere/deep/state"])
    expect(() => openStateDir(join(dir, path), [shown])).toThrow(/can't lie below/);
  expect(readdirSync(shown)).toEqual([]);
  expect(existsSync(openStateDir(join(dir, "shown-not"), [shown]))).toBe(true);
});

test("unused shared memory segments are deleted on kernels that let only the host's root set this", async () => {
  const started = join(dir, "started");
  const script = `: > ${started}; exec sleep 60`;
  const child = spawn("unshare", ["--ipc", "/bin/sh", "-c", script], { stdio: "ignore" });
  onTestFinished(() => void child.kill("SIGKILL"));
  await expect.poll(() => existsSync(started), { timeout: 5_000 }).toBe(true);
  const pid = child.pid ?? 0;
  const value = () =>
    execFileSync("nsenter", [`--ipc=/proc/${pid}/ns/ipc`, "cat", "/proc/sys/kernel/shm_rmid_forced"], {
      encoding: "utf8",
    });
  expect(value()).toBe("0\n");
  await setIpcFromOutside(pid, AbortSignal.timeout(5_000));
  expect(value()).toBe("1\n");
});
