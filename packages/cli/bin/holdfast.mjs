#!/usr/bin/env node
// Runs on any Node from 20 on: finds the Node that the repo brings along and hands over to it. The program itself is
// TypeScript, which only that one runs as it is.
import { spawn } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const NODE_MAJOR = 24;
const here = dirname(realpathSync(fileURLToPath(import.meta.url)));
const main = join(here, "..", "src", "main.ts");

function findNode() {
  for (let directory = here; ; directory = dirname(directory)) {
    for (const path of ["node_modules/node/bin/node", "node_modules/.bin/node"]) {
      const candidate = join(directory, path);
      if (existsSync(candidate)) return candidate;
    }
    if (directory === dirname(directory)) return null;
  }
}

function handOver(node) {
  const child = spawn(node, [main, ...process.argv.slice(2)], { stdio: "inherit" });
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
  await import(main);
} else {
  const node = findNode();
  if (node === null) giveUp("it is not set up yet: the Node that it brings along is not installed.");
  else handOver(node);
}
