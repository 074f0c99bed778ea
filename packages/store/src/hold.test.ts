import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { DirectoryHeld } from "./errors.ts";
import { holdStateDirectory } from "./hold.ts";
import { temporaryDirectory } from "./testing/directory.ts";

test("a directory is held by one process, and killing it with SIGKILL releases the directory", async () => {
  const directory = temporaryDirectory();
  const child = spawn(
    process.execPath,
    ["--expose-gc", join(import.meta.dirname, "testing/holder.ts"), directory],
    {
      stdio: ["ignore", "pipe", "inherit"],
    },
  );
  onTestFinished(() => void child.kill("SIGKILL"));
  await once(child.stdout, "data");

  expect(() => holdStateDirectory(directory)).toThrow(DirectoryHeld);
  expect(() => holdStateDirectory(directory)).toThrow(`process ${child.pid}`);

  const exited = once(child, "exit");
  child.kill("SIGKILL");
  await exited;
  holdStateDirectory(directory).release();
});

test("a hold excludes its own process too, until it is released", () => {
  const directory = join(temporaryDirectory(), "made", "on", "demand");
  const hold = holdStateDirectory(directory);
  expect(() => holdStateDirectory(directory)).toThrow(DirectoryHeld);
  hold.release();
  hold.release();
  holdStateDirectory(directory).release();
});
