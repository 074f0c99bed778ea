/**
 * Builds the keeper and the porter: `node build.mjs [--sanitize]`. It runs before any package is installed, so it uses
 * only Node's own modules. A finished program replaces the old one atomically (rename). If neither sources nor flags
 * have changed, nothing is built.
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const home = dirname(fileURLToPath(import.meta.url));
const sources = join(home, "c");
const sanitize = process.argv.includes("--sanitize");
const target = sanitize ? join(home, "build", "sanitize") : join(home, "build");

const WARNINGS = ["-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"];
const FLAGS = sanitize
  ? [...WARNINGS, "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
  : [...WARNINGS, "-O2", "-static", "-s"];

const LOCK_MS = 120_000;

/** Folders of `c/` that are part of every program. */
const SHARED = ["loop", "files"];
/** Folders of `c/` that are part of the keeper and of the fuzz driver, besides the folder with their `main`. */
const KEEPER = ["service", "exec", "stream", ...SHARED];
const PORTER = ["porter", ...SHARED];

/**
 * Lists every program with its sources. The fuzz driver is only built with sanitizers, because only they detect the
 * errors that the fuzz driver provokes.
 */
function programs(files) {
  const sourcesIn = (folders) =>
    files.filter((file) => file.endsWith(".c") && folders.includes(dirname(file)));
  const list = [
    { name: "keeper", parts: sourcesIn(["keeper", ...KEEPER]) },
    { name: "porter", parts: sourcesIn(PORTER) },
  ];
  if (sanitize) list.push({ name: "fuzz", parts: sourcesIn(["fuzz", ...KEEPER]) });
  return list;
}

function contentHash(files, flags) {
  const hash = createHash("sha256");
  hash.update(JSON.stringify(flags));
  for (const file of files) {
    hash.update(`\0${file}\0`);
    hash.update(readFileSync(join(sources, file)));
  }
  return hash.digest("hex").slice(0, 12);
}

function builtVersion() {
  try {
    return readFileSync(join(target, "version"), "utf8").trim();
  } catch {
    return null;
  }
}

function compile(program, version, into) {
  const output = join(into, program.name);
  const inputs = program.parts.map((part) => join(sources, part));
  const versionFlag = `-DHOLDFAST_VERSION="${version}"`;
  execFileSync("gcc", [...FLAGS, "-I", sources, versionFlag, "-o", output, ...inputs], { stdio: "inherit" });
  return output;
}

function sourceFiles() {
  return readdirSync(sources, { recursive: true })
    .filter((file) => /\.[ch]$/.test(file))
    .sort();
}

/**
 * Runs `work` while no other build of the same target runs, because the programs and the version file must come from
 * one build. A lock that is older than the longest possible build was left by a killed build and is removed.
 */
function locked(work) {
  const lock = join(target, "building");
  const until = Date.now() + LOCK_MS;
  for (;;) {
    try {
      mkdirSync(lock);
      break;
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
    const age = Date.now() - (statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? Date.now());
    if (age > LOCK_MS) rmSync(lock, { recursive: true, force: true });
    else if (Date.now() > until) throw new Error(`another build holds ${lock}`);
    else Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
  }
  try {
    work();
  } finally {
    rmSync(lock, { recursive: true, force: true });
  }
}

function build() {
  const files = sourceFiles();
  const version = contentHash(files, FLAGS);
  if (builtVersion() === version) return;
  const temporary = mkdtempSync(join(target, "building-"));
  try {
    for (const program of programs(files)) {
      renameSync(compile(program, version, temporary), join(target, program.name));
    }
    writeFileSync(join(temporary, "version"), `${version}\n`);
    renameSync(join(temporary, "version"), join(target, "version"));
  } finally {
    rmSync(temporary, { recursive: true, force: true });
  }
  console.log(`keeper ${version} built`);
}

try {
  if (builtVersion() !== contentHash(sourceFiles(), FLAGS)) {
    mkdirSync(target, { recursive: true });
    locked(build);
  }
} catch (error) {
  console.error(`keeper: the build failed: ${error instanceof Error ? error.message.split("\n")[0] : error}`);
  process.exitCode = 1;
}
