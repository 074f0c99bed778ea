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
import { SetupError, say, saying } from "./say.mjs";

/**
 * Debian suites to build from, in order of preference. Unstable supports the newest kernels; stable is the fallback if
 * unstable does not build on this host.
 */
const SUITES = ["unstable", "stable"];
const OLDEST_MAJOR = 4;

/**
 * Version of the build procedure. It must be increased when the procedure changes, so that a failure recorded for the
 * old procedure is ignored.
 */
const RECIPE = 1;
const TRY_AGAIN_MS = 24 * 3_600_000;
const LEFTOVER_MS = 2 * 3_600_000;

/**
 * Provides a CRIU that works on this kernel, for standby with memory. Installs the distribution's package if it is new
 * enough. Otherwise builds CRIU from Debian's newer source, once per machine. If no CRIU can be provided, only the
 * command `criu` ends with an error. The other commands report the failure and continue, because everything else works
 * without CRIU. The failure is remembered for a day, because otherwise every start would repeat the attempt.
 */
export async function provideCriu(root, purpose) {
  try {
    const look = lookIn(root);
    const found = await look();
    if (found.path !== undefined) return;
    await bring(look, found, purpose === "criu");
  } catch (error) {
    const why = `no standby with memory on this host: ${error instanceof Error ? error.message : error}`;
    if (purpose === "criu") throw new SetupError(why);
    say(why);
  }
}

/**
 * Returns a function that asks the driver which CRIU it can use. The driver is TypeScript, so the function runs it with
 * the Node that was just installed.
 */
function lookIn(root) {
  const module = pathToFileURL(join(root, "packages", "drivers", "oci", "checkpoint", "find-criu.ts")).href;
  const script = `const { findCriu, criuCache } = await import(${JSON.stringify(module)});
    console.log(JSON.stringify({ cache: criuCache(), ...(await findCriu()) }));`;
  const node = join(root, "node_modules", ".bin", "node");
  return async (env = {}) => {
    const { ok, output } = await run(node, ["--input-type=module", "--eval", script], {
      env: { NODE_NO_WARNINGS: "1", ...env },
    });
    if (!ok) throw new SetupError(troubleIn(output));
    return JSON.parse(output);
  };
}

async function bring(look, { cache, missing, fix }, isOrdered) {
  if (process.env.HOLDFAST_CRIU || !canInstall()) throw new SetupError(`${missing}. ${fix}`);
  mkdirSync(cache, { recursive: true, mode: 0o755 });
  const releaseLock = await hold("criu", cache, "another set-up that builds CRIU");
  try {
    if ((await look()).path !== undefined) return;
    const record = join(cache, "failed.json");
    const failure = readFailure(record);
    if (!isOrdered && isFresh(failure, Date.now(), release())) {
      throw new SetupError(
        `${failure.why}\nThe next attempt is a day after ${failure.at}, or at once with: node scripts/setup.mjs criu`,
      );
    }
    rmSync(record, { force: true });
    try {
      await install(look, cache, missing);
    } catch (error) {
      const failed = { recipe: RECIPE, kernel: release(), at: new Date().toISOString(), why: error.message };
      writeFileSync(record, JSON.stringify(failed), { mode: 0o600 });
      throw error;
    }
  } finally {
    releaseLock();
  }
}

const isFresh = (failure, now, kernel) =>
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

async function install(look, cache, missing) {
  const offered = offeredMajor((await run("apt-cache", ["policy", "criu"])).output);
  if (offered >= OLDEST_MAJOR) {
    const failed = await saying("installing from the distribution: criu (standby with memory)", () =>
      aptInstall(["criu"]),
    );
    if (failed === null && (await look()).path !== undefined) return;
  }
  say(`no CRIU works on this host (${missing})`);
  await saying("building CRIU for standby with memory, which takes a minute or two", () =>
    buildAny(look, cache),
  );
}

async function buildAny(look, cache) {
  const mirror = await debianMirror();
  if (mirror === null)
    throw new SetupError("CRIU is built from Debian's sources, and this host's packages are not Debian's");
  await installBuildPackages();
  removeLeftovers(cache);
  const failures = [];
  for (const suite of SUITES) {
    try {
      return await build(look, cache, mirror, suite);
    } catch (error) {
      failures.push(`from ${suite}: ${error.message}`);
    }
  }
  throw new SetupError(`CRIU can't be built.\n${failures.join("\n")}`);
}

/** Returns the major version of the package that `apt-cache policy` offers; 0 if there is none. */
const offeredMajor = (policy) => Number(/^\s*Candidate: (?:\d+:)?(\d+)/m.exec(policy)?.[1] ?? 0);

/**
 * Builds CRIU and checks that the binary works. If it works, a single rename moves the build into the cache directory,
 * under its version.
 */
async function build(look, cache, mirror, suite) {
  const directory = mkdtempSync(join(cache, "building-"));
  try {
    chmodSync(directory, 0o755);
    const { source } = await fetchSource(mirror, suite, directory);
    const ready = join(directory, "ready");
    mkdirSync(ready, { mode: 0o755 });
    const binary = join(ready, "criu");
    copyFileSync(await compile(source), binary);
    chmodSync(binary, 0o755);
    const { version, missing } = await look({ HOLDFAST_CRIU: binary });
    if (version === undefined) throw new SetupError(missing);
    const place = join(cache, version);
    rmSync(place, { recursive: true, force: true });
    renameSync(ready, place);
    say(`CRIU ${version} built: ${join(place, "criu")}`);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/**
 * Removes the old directories that killed builds left behind. Newer directories are kept, because they may belong to a
 * build in progress: a container can share this cache without sharing the lock.
 */
function removeLeftovers(cache) {
  for (const name of readdirSync(cache).filter((each) => each.startsWith("building-"))) {
    const age = Date.now() - (statSync(join(cache, name), { throwIfNoEntry: false })?.mtimeMs ?? 0);
    if (age > LEFTOVER_MS) rmSync(join(cache, name), { recursive: true, force: true });
  }
}
