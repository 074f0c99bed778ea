import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { release } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { aptInstall, canInstall } from "./apt.mjs";
import { run } from "./command.mjs";
import { compile, debianMirror, fetchSource, installBuildPackages, troubleIn } from "./criu-source.mjs";
import { hold } from "./lock.mjs";
import { SetupError, say } from "./say.mjs";

/** The newest knows the newest kernels; the other is there for the day on which the newest doesn't build here. */
const SUITES = ["unstable", "stable"];
const OLDEST_MAJOR = 4;

/** Counts up when the way of building changes, so that a failure of the old way is forgotten. */
const RECIPE = 1;
const TRY_AGAIN_MS = 24 * 3_600_000;
const LEFTOVER_MS = 2 * 3_600_000;

/**
 * Brings a CRIU that works on this kernel, for standby with memory: the distribution's where that is new enough, else one
 * built from Debian's newer source, once per machine. Everything else works without, so nothing here stops a start; only
 * where it was asked for by name is its failure one. A failure is remembered for a day, or every start would repeat it.
 */
export async function provideCriu(root, purpose) {
  try {
    const look = lookIn(root);
    const found = look();
    if (found.path !== undefined) return;
    await bring(look, found, purpose === "criu");
  } catch (error) {
    const why = `no standby with memory on this host: ${error instanceof Error ? error.message : error}`;
    if (purpose === "criu") throw new SetupError(why);
    say(why);
  }
}

/** Asks the driver, who decides which CRIU will do. It is TypeScript, so the Node that was just installed runs it. */
function lookIn(root) {
  const module = pathToFileURL(join(root, "packages", "drivers", "oci", "criu-binary.ts")).href;
  const script = `const { findCriu, criuCache } = await import(${JSON.stringify(module)});
    console.log(JSON.stringify({ cache: criuCache(), ...(await findCriu()) }));`;
  const node = join(root, "node_modules", ".bin", "node");
  return (env = {}) => {
    const { ok, output } = run(node, ["--input-type=module", "--eval", script], {
      env: { NODE_NO_WARNINGS: "1", ...env },
    });
    if (!ok) throw new SetupError(troubleIn(output));
    return JSON.parse(output);
  };
}

async function bring(look, { cache, missing, fix }, isOrdered) {
  if (process.env.HOLDFAST_CRIU || !canInstall()) throw new SetupError(`${missing}. ${fix}`);
  mkdirSync(cache, { recursive: true, mode: 0o755 });
  const letGo = await hold("criu", cache, "another set-up that builds CRIU");
  try {
    if (look().path !== undefined) return;
    const record = join(cache, "failed.json");
    const failure = readFailure(record);
    if (!isOrdered && isFresh(failure, Date.now(), release())) {
      throw new SetupError(
        `${failure.why}\nThis is tried again a day after ${failure.at}, or by: node scripts/setup.mjs criu`,
      );
    }
    rmSync(record, { force: true });
    try {
      install(look, cache, missing);
    } catch (error) {
      const failed = { recipe: RECIPE, kernel: release(), at: new Date().toISOString(), why: error.message };
      writeFileSync(record, JSON.stringify(failed), { mode: 0o600 });
      throw error;
    }
  } finally {
    letGo();
  }
}

export const isFresh = (failure, now, kernel) =>
  failure !== null &&
  failure.recipe === RECIPE &&
  failure.kernel === kernel &&
  Math.abs(now - Date.parse(failure.at)) < TRY_AGAIN_MS;

function readFailure(file) {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    return null;
  }
}

function install(look, cache, missing) {
  const offered = offeredMajor(run("apt-cache", ["policy", "criu"]).output);
  if (offered >= OLDEST_MAJOR) {
    say("installing from the distribution: criu (standby with memory)");
    const failed = aptInstall(["criu"]);
    if (failed === null && look().path !== undefined) return;
  }
  say(
    `no CRIU that works here (${missing}): building one for standby with memory, which takes a minute or two`,
  );
  const mirror = debianMirror();
  if (mirror === null)
    throw new SetupError("CRIU is built from Debian's sources, and this host's packages are not Debian's");
  installBuildPackages();
  removeLeftovers(cache);
  const failures = [];
  for (const suite of SUITES) {
    try {
      return build(look, cache, mirror, suite);
    } catch (error) {
      failures.push(`from ${suite}: ${error.message}`);
    }
  }
  throw new SetupError(`CRIU can't be built.\n${failures.join("\n")}`);
}

/** The major version that the distribution has of a package, by what `apt-cache policy` says; 0 for none. */
export const offeredMajor = (policy) => Number(/^\s*Candidate: (?:\d+:)?(\d+)/m.exec(policy)?.[1] ?? 0);

/** The directory appears under its version in one step, with a binary that was seen to work. */
function build(look, cache, mirror, suite) {
  const directory = mkdtempSync(join(cache, "building-"));
  try {
    chmodSync(directory, 0o755);
    const { source } = fetchSource(mirror, suite, directory);
    const ready = join(directory, "ready");
    mkdirSync(ready, { mode: 0o755 });
    const binary = join(ready, "criu");
    copyFileSync(compile(source), binary);
    chmodSync(binary, 0o755);
    const { version, missing } = look({ HOLDFAST_CRIU: binary });
    if (version === undefined) throw new SetupError(missing);
    const place = join(cache, version);
    rmSync(place, { recursive: true, force: true });
    renameSync(ready, place);
    say(`CRIU ${version} built: ${join(place, "criu")}`);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Of builds that were killed. One that is younger may belong to a container that shares this cache but not our lock. */
function removeLeftovers(cache) {
  for (const name of readdirSync(cache).filter((each) => each.startsWith("building-"))) {
    const age = Date.now() - (statSync(join(cache, name), { throwIfNoEntry: false })?.mtimeMs ?? 0);
    if (age > LEFTOVER_MS) rmSync(join(cache, name), { recursive: true, force: true });
  }
}
