#!/usr/bin/env node
// Runs on any Node from 20 on: finds the Node that the repo brings along and hands over to it. The program itself is
// TypeScript, which only that one runs as it is.
import { spawn } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import * as nodeModule from "node:module";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const NODE_MAJOR = 24;
const here = dirname(realpathSync(fileURLToPath(import.meta.url)));
const main = join(here, "..", "src", "main.ts");

function findUpward(paths) {
  for (let directory = here; ; directory = dirname(directory)) {
    const found = paths.map((path) => join(directory, path)).find((path) => existsSync(path));
    if (found !== undefined) return found;
    if (directory === dirname(directory)) return null;
  }
}

// Compiled code is kept beside the packages it comes from: it halves the time to start. Where that can't be written,
// Node goes on without.
const modules = findUpward(["node_modules"]);
const cache = modules === null ? undefined : join(modules, ".cache", "holdfast-cli");

function handOver(node) {
  const child = spawn(node, [main, ...process.argv.slice(2)], {
    stdio: "inherit",
    env: { ...process.env, ...(cache === undefined ? {} : { NODE_COMPILE_CACHE: cache }) },
  });
  const signals = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"];
  for (const signal of signals) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => giveUp(error.message));
  child.on("exit", (code, signal) => {
    process.exit(code ?? 128 + constants.signals[signal]);
  });
}

function giveUp(why) {
  console.error(`holdfast: ${why}`);
  console.error("Run 'npm ci' in Holdfast's directory once; 'npm start' does it too.");
  process.exit(1);
}

if (Number(process.versions.node.split(".")[0]) >= NODE_MAJOR) {
  nodeModule.enableCompileCache(cache);
  await import(main).catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    giveUp("it is not set up yet: packages that it needs are not installed.");
  });
} else {
  const node = findUpward(["node_modules/node/bin/node", "node_modules/.bin/node"]);
  if (node === null) giveUp("it is not set up yet: the Node that it brings along is not installed.");
  else handOver(node);
}
