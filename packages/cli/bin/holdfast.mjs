#!/usr/bin/env node
// The launcher runs on Node 20 or later. It finds the Node installed with the repository and starts the CLI with it,
// because the CLI is TypeScript and needs a Node that runs it directly.
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

// Node's compile cache, beside the packages, halves the startup time. If the directory is not writable, Node works
// without the cache.
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
  console.error("Run 'npm ci' once in Holdfast's directory; 'npm start' does it too.");
  process.exit(1);
}

if (Number(process.versions.node.split(".")[0]) >= NODE_MAJOR) {
  nodeModule.enableCompileCache(cache);
  await import(main).catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    giveUp("not set up yet: required packages are not installed.");
  });
} else {
  const node = findUpward(["node_modules/node/bin/node", "node_modules/.bin/node"]);
  if (node === null) giveUp("not set up yet: the Node that Holdfast bundles is not installed.");
  else handOver(node);
}
