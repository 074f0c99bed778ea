import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type CriuOptions, criuCache, findCriu } from "./find-criu.ts";

let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "holdfast-criu-"));
  vi.stubEnv("HOLDFAST_CRIU", undefined);
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true, force: true });
});

const cache = () => join(directory, "cache");

/** Writes a shell script that acts as CRIU and appends the arguments of each call to a file. */
function criu(body: string, path = join(directory, "criu")): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `#!/bin/sh\necho "$*" >> ${path}.calls\n${body}\n`);
  chmodSync(path, 0o755);
  return path;
}

const callsOf = (path: string) =>
  existsSync(`${path}.calls`) ? readFileSync(`${path}.calls`, "utf8").trim().split("\n") : [];

/** Body of a CRIU script that prints a version, and runs `check` for every other call. */
const good = (version: string, check = "exit 0") =>
  `if [ "$1" = --version ]; then echo "Version: ${version}"; exit 0; fi\n${check}`;

async function refused(options: CriuOptions): Promise<{ missing: string; fix: string }> {
  const result = await findCriu(options);
  if (!("missing" in result)) throw new Error(`taken: ${result.path}`);
  return result;
}

const isAlive = (pid: number) => {
  try {
    process.kill(pid, 0);
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
};

test("a CRIU that passes its checks is used, and checked only once", async () => {
  const path = criu(good("4.2.1"));
  expect(await findCriu({ criu: path })).toEqual({ path, version: "4.2.1" });
  expect(await findCriu({ criu: path })).toEqual({ path, version: "4.2.1" });
  expect(callsOf(path)).toEqual([
    "--version",
    "check --no-default-config",
    "check --no-default-config --feature network_lock_nftables",
  ]);
});

test("a CRIU that was refused is checked again, since it may have been replaced", async () => {
  const path = criu(good("3.17.1"));
  expect((await refused({ criu: path })).missing).toContain("3.17.1");
  criu(good("4.1.1"), path);
  expect(await findCriu({ criu: path })).toEqual({ path, version: "4.1.1" });
});

test("an old CRIU is refused by its version alone", async () => {
  const path = criu(good("3.17.1"));
  const { missing, fix } = await refused({ criu: path });
  expect(missing).toBe(`${path} has version 3.17.1, but memory standby needs 4 or newer`);
  expect(fix).toContain("4 or newer");
  expect(callsOf(path)).toEqual(["--version"]);
});

test("a failed check is reported with its first error", async () => {
  const path = criu(
    good(
      "4.2.1",
      'echo "Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds" >&2; echo "Error (criu/a.c:1): then this" >&2; exit 1',
    ),
  );
  const { missing } = await refused({ criu: path });
  expect(missing).toBe(`${path} 4.2.1 fails 'criu check': vdso: Unexpected rt vDSO area bounds`);
});

test("a CRIU that can't lock a network with nftables is refused", async () => {
  const path = criu(good("4.2.1", '[ "$3" != --feature ]'));
  expect((await refused({ criu: path })).missing).toContain("4.2.1 has no network_lock_nftables");
});

test("a CRIU that hangs is killed with the processes that it started", async () => {
  const path = criu(good("4.2.1", `sleep 3600 & echo "$$ $!" > ${join(directory, "pids")}; wait`));
  const { missing } = await refused({ criu: path, timeoutMs: 1_000 });
  expect(missing).toBe(`${path} 4.2.1 fails 'criu check': no answer in 1 s`);
  const pids = readFileSync(join(directory, "pids"), "utf8").trim().split(" ").map(Number);
  expect(pids).toHaveLength(2);
  await vi.waitFor(() => expect(pids.filter(isAlive)).toEqual([]), 20_000);
}, 60_000);

test("a child that outlives CRIU is not waited for", async () => {
  const path = criu(`sleep 3600 & echo $! > ${join(directory, "pid")}; echo "Version: 3.0"`);
  try {
    expect((await refused({ criu: path })).missing).toContain("has version 3.0");
  } finally {
    process.kill(Number(readFileSync(join(directory, "pid"), "utf8")), "SIGKILL");
  }
});

test("a CRIU whose output never ends is killed", async () => {
  const path = criu("exec yes");
  const { missing } = await refused({ criu: path });
  expect(missing).toBe(`${path} reports no version: its output is too long`);
});

test("output without a version is refused, and reported shortened and without terminal escapes", async () => {
  const path = criu("printf '\\033[31m'; head -c 4000 /dev/zero | tr '\\0' x; exit 0");
  const { missing } = await refused({ criu: path });
  expect(missing).toContain('reports no version, but "?[31mxxx');
  expect(missing.length).toBeLessThan(500);
});

test("a path that does not exist or is not a program is refused", async () => {
  const absent = join(directory, "absent");
  expect((await refused({ criu: absent })).missing).toBe(`${absent} reports no version: no such file`);
  const text = join(directory, "text");
  writeFileSync(text, "no program");
  expect((await refused({ criu: text })).missing).toContain(text);
});

test("HOLDFAST_CRIU names the only CRIU that is tried", async () => {
  criu(good("4.2.1"), join(cache(), "4.2.1", "criu"));
  const path = criu(good("3.17.1"));
  vi.stubEnv("HOLDFAST_CRIU", path);
  expect((await refused({ cache: cache() })).missing).toContain(`${path} has version 3.17.1`);
});

test("the newest working build of set-up is preferred to the host's CRIU", async () => {
  const newest = criu(good("4.10", "exit 1"), join(cache(), "4.10", "criu"));
  const path = criu(good("4.9"), join(cache(), "4.9", "criu"));
  const older = criu(good("4.2.1"), join(cache(), "4.2.1", "criu"));
  mkdirSync(join(cache(), "building-x"));
  expect(await findCriu({ cache: cache() })).toEqual({ path, version: "4.9" });
  expect(callsOf(newest)).not.toEqual([]);
  expect(callsOf(older)).toEqual([]);
});

test("a new CRIU that fails on this kernel gets advice about the kernel, not about another build", async () => {
  criu(good("99.0", "exit 1"), join(cache(), "99.0", "criu"));
  const result = await findCriu({ cache: cache() });
  if ("missing" in result) expect(result.fix).toContain("kernel");
  else expect(result.path).not.toContain(directory);
});

test("HOLDFAST_CACHE sets the directory of the builds", () => {
  vi.stubEnv("HOLDFAST_CACHE", directory);
  expect(criuCache()).toBe(join(directory, "criu"));
  vi.stubEnv("HOLDFAST_CACHE", "");
  expect(criuCache()).toBe("/var/cache/holdfast/criu");
});
