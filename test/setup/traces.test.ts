import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { TestServer } from "../support/server.ts";
import { findServed } from "./served.ts";
import { findTraces, installationsIn, newTraces, withoutThoseOf } from "./traces.ts";

const temporaryDirectory = () => mkdtempSync(join(tmpdir(), "holdfast-traces-"));
const found = (text: string) => [...findTraces(new Set()).values()].filter((line) => line.includes(text));

test("a directory is seen while it is there", () => {
  const before = findTraces();
  const directory = temporaryDirectory();
  expect([...newTraces(before, findTraces()).values()]).toContain(`temporary file ${directory}`);
  rmdirSync(directory);
  expect(found(directory)).toEqual([]);
});

test("a process is seen by its environment alone", async () => {
  const child = spawn("sleep", ["60"], { env: { ...process.env, HOLDFAST_SANDBOX: "sbx_0000000000000000" } });
  onTestFinished(() => void child.kill("SIGKILL"));
  await once(child, "spawn");
  expect(found(`process ${child.pid}:`)).toEqual([`process ${child.pid}: sleep 60`]);
  const exited = once(child, "exit");
  child.kill("SIGKILL");
  await exited;
  expect(found(`process ${child.pid}:`)).toEqual([]);
});

test.skipIf(process.getuid?.() !== 0)("a mount is seen until it is undone", () => {
  const directory = temporaryDirectory();
  execFileSync("mount", ["-t", "tmpfs", "none", directory]);
  expect(found(`mount on ${directory}`)).toHaveLength(1);
  execFileSync("umount", [directory]);
  rmdirSync(directory);
  expect(found(directory)).toEqual([]);
});

test("a process of an installation that was there before is no trace of the run; another's is", async () => {
  const start = async (installation: string) => {
    const child = spawn("sleep", ["60"], { env: { ...process.env, HOLDFAST_INSTALLATION: installation } });
    onTestFinished(() => void child.kill("SIGKILL"));
    await once(child, "spawn");
    return child.pid;
  };
  const [theirs, ours] = [randomBytes(4).toString("hex"), randomBytes(4).toString("hex")];
  await start(theirs);
  const before = findTraces(new Set());
  const [bystander, own] = [await start(theirs), await start(ours)];
  const left = withoutThoseOf(installationsIn(before), newTraces(before, findTraces(new Set())));
  const lines = [...left.values()].join("\n");
  expect(lines).toContain(`process ${own}:`);
  expect(lines).not.toContain(`process ${bystander}:`);
});

test("a server's installation is known before it has a sandbox", async () => {
  const server = await TestServer.start();
  expect(await findServed()).toContain(server.installation);
  await server[Symbol.asyncDispose]();
});
