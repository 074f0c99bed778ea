/**
 * Builds the keeper and the porter: `node build.mjs [--sanitize]`.
 *
 * Runs before anything is installed, so it uses Node's own modules only. A finished program appears under its name in
 * one step (rename), and nothing is done while sources and flags are those of the last build.
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

const SHARED = [
  "frame.c",
  "link.c",
  "server.c",
  "serve.c",
  "path.c",
  "files.c",
  "names.c",
  "watch.c",
  "watch_tree.c",
  "remove.c",
  "descriptors.c",
];
const KEEPER = [
  ...[
    "exec.c",
    "exec_input.c",
    "exec_output.c",
    "exec_kill.c",
    "execs.c",
    "kept.c",
    "ends.c",
    "terminal.c",
    "sink.c",
    "stream.c",
  ],
  ...["child.c", "user.c", "mark.c", "journal.c", "proc.c", "evidence.c"],
];

/** Every program with its sources; the fuzz driver exists only where it can see what it breaks. */
function programs(files) {
  const porter = files.filter((file) => /^porter.*\.c$/.test(file));
  const list = [{ name: "keeper", parts: ["keeper.c", ...KEEPER, ...SHARED] }];
  if (porter.length > 0) list.push({ name: "porter", parts: [...porter, ...SHARED] });
  else console.log("porter: skipped, its source c/porter.c does not exist");
  if (sanitize) list.push({ name: "fuzz", parts: ["fuzz.c", ...KEEPER, ...SHARED] });
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
  execFileSync("gcc", [...FLAGS, `-DHOLDFAST_VERSION="${version}"`, "-o", output, ...inputs], {
    stdio: "inherit",
  });
  return output;
}

function sourceFiles() {
  return readdirSync(sources)
    .filter((file) => /\.[ch]$/.test(file))
    .sort();
}

/**
 * Runs `work` while no other build of the same target runs: programs and version belong together. A lock that is older
 * than any build takes was left by one that was killed.
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
