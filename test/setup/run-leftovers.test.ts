import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import { TestServer } from "../support/server/test-server.ts";
import { currentRun, type Run } from "./run.ts";
import { findTraces } from "./run-leftovers.ts";

const isRoot = process.getuid?.() === 0;
const temporaryDirectory = () => mkdtempSync(join(tmpdir(), "holdfast-traces-"));
const newInstallation = () => randomBytes(4).toString("hex");
/** Returns the findings of the leftover check that contain the text. */
const found = (text: string, run: Run = currentRun()) =>
  [...findTraces(run, new Set()).values()].filter((line) => line.includes(text));

/** Starts a process without the run's TMPDIR, as inside a sandbox. */
async function sleeper(env: NodeJS.ProcessEnv, command = "sleep"): Promise<ChildProcess> {
  const child = spawn(command, ["60"], { env: { PATH: process.env.PATH, ...env } });
  onTestFinished(() => void child.kill("SIGKILL"));
  await once(child, "spawn");
  return child;
}

describe("the leftover check", () => {
  it("finds a temporary directory until it is removed", () => {
    const directory = temporaryDirectory();
    expect(found(directory)).toEqual([`temporary file ${directory}`]);
    rmdirSync(directory);
    expect(found(directory)).toEqual([]);
  });

  it("finds a process that a test started, until it ends", async () => {
    const child = await sleeper({ TMPDIR: tmpdir() });
    expect(found(`process ${child.pid}:`)).toEqual([`process ${child.pid}: sleep 60`]);
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
    expect(found(`process ${child.pid}:`)).toEqual([]);
  });

  it.skipIf(!isRoot)("finds a mount until it is unmounted", () => {
    const directory = temporaryDirectory();
    execFileSync("mount", ["-t", "tmpfs", "none", directory]);
    expect(found(`mount on ${directory}`)).toHaveLength(1);
    execFileSync("umount", [directory]);
    rmdirSync(directory);
    expect(found(directory)).toEqual([]);
  });

  it("finds processes of the run's installations only", async () => {
    const [own, other] = [newInstallation(), newInstallation()];
    const run = { ...currentRun(), installations: new Set([own]) };
    const ours = await sleeper({ HOLDFAST_INSTALLATION: own });
    const theirs = await sleeper({ HOLDFAST_INSTALLATION: other });
    expect(found(`process ${ours.pid}:`, run)).toHaveLength(1);
    expect(found(`process ${theirs.pid}:`, run)).toEqual([]);
  });

  it.skipIf(!isRoot)(
    "attributes no process of another installation to this run because of a mount",
    async () => {
      const directory = temporaryDirectory();
      execFileSync("mount", ["-t", "tmpfs", "none", directory]);
      onTestFinished(() => {
        execFileSync("umount", [directory]);
        rmdirSync(directory);
      });
      const theirs = await sleeper({ HOLDFAST_INSTALLATION: newInstallation() });
      expect(found(`process ${theirs.pid}:`)).toEqual([]);
    },
  );

  it.skipIf(!isRoot)("finds cgroups of the run's installations only", () => {
    const [own, other] = [newInstallation(), newInstallation()];
    const run = { ...currentRun(), installations: new Set([own]) };
    const home = cgroupHome();
    for (const id of [own, other]) {
      const path = join(home, `holdfast-${id}`);
      mkdirSync(path);
      onTestFinished(() => rmdirSync(path));
    }
    expect(found(`holdfast-${own}`, run)).toEqual([`cgroup ${join(home, `holdfast-${own}`)}`]);
    expect(found(`holdfast-${other}`, run)).toEqual([]);
  });

  it("finds nothing of another run", async () => {
    const directory = temporaryDirectory();
    onTestFinished(() => rmdirSync(directory));
    const child = await sleeper({ TMPDIR: tmpdir() });
    const another = { directory: mkdtempSync(join(tmpdir(), "holdfast-")), installations: new Set<string>() };
    onTestFinished(() => rmdirSync(another.directory));
    expect(found("", another)).toEqual([]);
    expect(found(`process ${child.pid}:`)).toHaveLength(1);
  });

  it("knows a server's installation before the server has a sandbox", async () => {
    const server = await TestServer.start();
    expect(currentRun().installations).toContain(server.installation);
    await server[Symbol.asyncDispose]();
  });
});

function cgroupHome(): string {
  const mounts = execFileSync("cat", ["/proc/self/mountinfo"], { encoding: "utf8" }).split("\n");
  const lines = mounts.filter((line) => / - cgroup2? /.test(line));
  const pids = lines.find((line) => / - cgroup .*\bpids\b/.test(line)) ?? lines[0] ?? "";
  return pids.split(" ")[4] ?? "";
}
