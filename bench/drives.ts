/**
 * Benchmarks drives: how long mounting takes, and how fast files in a drive are compared with the host's own file
 * system, measured by the same program on the same disk in the same run.
 */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Sandbox } from "@holdfast/sdk";
import { TestServer } from "../test/support/server/test-server.ts";
import { interleaved, summarise } from "./measure.ts";
import { type Row, save, table } from "./report.ts";

const run = promisify(execFile);
const ROUNDS = 5;
const FILES = 2_000;
const MB = 1_024;
const rows: Row[] = [];
const progress = (text: string) => process.stderr.write(`${text}\n`);

/** Prints the duration of each part in milliseconds. The program times itself, so that only file access is measured. */
const PROGRAM = `
import os, time, shutil
def timed(name, work):
    start = time.monotonic(); work(); print(name, (time.monotonic() - start) * 1000)
def small():
    os.makedirs('small')
    for i in range(${FILES}):
        with open('small/%d' % i, 'wb') as f: f.write(b'x' * 4096)
def look():
    for i in range(${FILES}):
        with open('small/%d' % i, 'rb') as f: f.read()
piece = os.urandom(1 << 20)
def write():
    with open('big', 'wb') as f:
        for i in range(${MB}): f.write(piece)
        os.fsync(f.fileno())
def read():
    with open('big', 'rb') as f:
        while f.read(1 << 20): pass
timed('${FILES} files of 4 KB written', small)
timed('${FILES} files of 4 KB read', look)
timed('1 GB written and synced', write)
timed('1 GB read', read)
shutil.rmtree('small'); os.remove('big')
`;

const parsed = (output: string): [what: string, ms: number][] =>
  output
    .trim()
    .split("\n")
    .map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]);

async function throughput(contenders: Record<string, () => Promise<string>>): Promise<void> {
  const times = new Map<string, number[]>();
  for (let round = 0; round < ROUNDS; round += 1) {
    progress(`files, round ${round + 1} of ${ROUNDS}`);
    for (const [who, work] of Object.entries(contenders))
      for (const [what, ms] of parsed(await work()))
        times.set(`${what}|${who}`, [...(times.get(`${what}|${who}`) ?? []), ms]);
  }
  for (const [key, all] of times) {
    const [what = "", who = ""] = key.split("|");
    const { p50, p95 } = summarise(all);
    rows.push({ what, who, value: p50, p95, unit: "ms" });
  }
  rows.sort((one, other) => one.what.localeCompare(other.what));
}

async function mounting(box: Sandbox): Promise<void> {
  progress("mount and unmount");
  let isMounted = false;
  const samples = await interleaved(
    {
      "mount, proven": async () => {
        if (isMounted) await box.unmount("/w");
        const from = performance.now();
        await box.mount("plain", "/w");
        isMounted = true;
        mountMs.push(performance.now() - from);
      },
      "unmount, verified": async () => {
        if (!isMounted) await box.mount("plain", "/w");
        const from = performance.now();
        await box.unmount("/w");
        isMounted = false;
        unmountMs.push(performance.now() - from);
      },
      "exec of true": () => box.exec(["true"]),
    },
    { "mount, proven": 10, "unmount, verified": 10, "exec of true": 10 },
    4,
  );
  for (const [what, times] of [
    ["mount, proven", mountMs],
    ["unmount, verified", unmountMs],
  ] as const) {
    const { p50, p95 } = summarise(times);
    rows.push({ what, who: "holdfast", value: p50, p95, unit: "ms" });
  }
  const exec = samples["exec of true"];
  if (exec)
    rows.push({
      what: "exec of true, for comparison",
      who: "holdfast",
      value: exec.p50,
      p95: exec.p95,
      unit: "ms",
    });
}

const mountMs: number[] = [];
const unmountMs: number[] = [];

await using server = await TestServer.start();
const client = server.client();
await client.drives.create({ name: "plain" });
await client.drives.create({ name: "sized", sizeMb: 4_096 });
const box = await client.sandboxes.create({
  mounts: [
    { drive: "plain", path: "/plain" },
    { drive: "sized", path: "/sized" },
  ],
  resources: { memoryMb: 4_096 },
});
const inside = (cwd: string) => async () => {
  const { stdout, stderr, exitCode } = await box.exec(["python3", "-c", PROGRAM], { cwd });
  if (exitCode !== 0) throw new Error(stderr);
  return stdout;
};
const host = mkdtempSync(join(server.dir, "holdfast-bench-"));
await throughput({
  holdfast: inside("/plain"),
  "holdfast, drive with a size": inside("/sized"),
  "the sandbox's own disk": inside("/home/user"),
  "the host's file system": async () => (await run("python3", ["-c", PROGRAM], { cwd: host })).stdout,
});
rmSync(host, { recursive: true });
await mounting(box);
client.close();
process.stdout.write(`\n${table(rows)}\n\n`);
progress(`written to ${save(rows, {}).replace(process.cwd(), ".")}`);
