/**
 * Benchmarks pause, standby and wake in one run: through Holdfast's SDK and HTTP; CRIU's own share of the same dump or
 * restore; and Docker's checkpoints of a container that holds as much memory, if they work on this host.
 */
import { execFile } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { findCriu } from "@holdfast/drivers/oci";
import type { Sandbox } from "@holdfast/sdk";
import { TestServer } from "../test/support/server/test-server.ts";
import { Docker } from "./docker.ts";
import { summarise } from "./measure.ts";
import { type Row, save, table } from "./report.ts";

const run = promisify(execFile);
const SIZES_MB = [0, 200, 1_000];
const ROUNDS = 7;
const rows: Row[] = [];
const progress = (text: string) => process.stderr.write(`${text}\n`);

async function timedMs(work: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await work();
  return performance.now() - from;
}

function add(what: string, who: string, times: readonly number[]): void {
  const { p50, p95 } = summarise(times);
  rows.push({ what, who, value: p50, p95, unit: "ms" });
}

/** A wrapper script that runs the real CRIU and logs the duration of each call. */
class TimedCriu {
  readonly path: string;
  readonly #log: string;

  constructor(dir: string, real: string) {
    this.path = join(dir, "criu");
    this.#log = join(dir, "calls");
    const lines = [
      "#!/bin/sh",
      "from=$(date +%s%N)",
      `${real} "$@"`,
      "code=$?",
      `echo "$1 $(($(date +%s%N) - from))" >> ${this.#log}`,
      "exit $code",
    ];
    writeFileSync(this.path, `${lines.join("\n")}\n`);
    chmodSync(this.path, 0o755);
    writeFileSync(this.#log, "");
  }

  /** Returns the durations of all calls with this verb since the last `clear`, in milliseconds. */
  taken(verb: "dump" | "restore"): number[] {
    const calls = readFileSync(this.#log, "utf8").trim().split("\n");
    return calls
      .filter((call) => call.startsWith(`${verb} `))
      .map((call) => Number(call.split(" ")[1]) / 1e6);
  }

  clear(): void {
    writeFileSync(this.#log, "");
  }
}

/** A command that fills `mb` megabytes with random data, so that the pages are really allocated, and then sleeps. */
const hog = (mb: number) => [
  "/usr/bin/python3",
  "-c",
  `import os,time; x=os.urandom(1<<20)*${mb}; print('up',flush=True); time.sleep(100000)`,
];

async function pauses(box: Sandbox): Promise<void> {
  progress("pause and resume");
  const pause: number[] = [];
  const resume: number[] = [];
  for (let i = 0; i < 30; i += 1) {
    pause.push(await timedMs(() => box.pause()));
    resume.push(await timedMs(() => box.resume()));
  }
  add("pause", "holdfast", pause);
  add("resume, proven", "holdfast", resume);
}

async function standbys(box: Sandbox, mb: number, criu: TimedCriu): Promise<void> {
  progress(`standby and wake, ${mb} MB`);
  const asleep: number[] = [];
  const awake: number[] = [];
  let bytes = 0;
  criu.clear();
  for (let i = 0; i < ROUNDS; i += 1) {
    asleep.push(
      await timedMs(async () => {
        bytes = (await box.standby()).checkpoint?.sizeBytes ?? 0;
      }),
    );
    awake.push(await timedMs(() => box.exec(["true"])));
  }
  add(`standby, ${mb} MB`, "holdfast", asleep);
  add(`standby, ${mb} MB`, "criu dump alone", criu.taken("dump"));
  add(`wake → first exec, ${mb} MB`, "holdfast", awake);
  add(`wake → first exec, ${mb} MB`, "criu restore alone", criu.taken("restore"));
  rows.push({ what: `checkpoint on disk, ${mb} MB`, who: "holdfast", value: bytes / 1e6, unit: "MB" });
}

/** Docker's checkpoints are experimental, and need a CRIU on the daemon's PATH that its runtime can use. */
async function dockerStandbys(docker: Docker, mb: number): Promise<void> {
  const id = await docker.create(hog(mb));
  const command = (...args: string[]) => run("docker", ["-H", docker.host, ...args]);
  try {
    await new Promise((resolve) => setTimeout(resolve, 2_000 + mb * 2));
    const asleep: number[] = [];
    const awake: number[] = [];
    for (let i = 0; i < 3; i += 1) {
      asleep.push(await timedMs(() => command("checkpoint", "create", id, `c${i}`)));
      awake.push(
        await timedMs(async () => {
          await command("start", "--checkpoint", `c${i}`, id);
          await docker.exec(id, ["/bin/true"]);
        }),
      );
    }
    add(`standby, ${mb} MB`, "docker checkpoint create", asleep);
    add(`wake → first exec, ${mb} MB`, "docker start --checkpoint", awake);
  } catch (error) {
    const output = error instanceof Error && "stderr" in error ? String(error.stderr) : String(error);
    progress(
      `docker's checkpoints don't work on this host: ${output.trim().split("\n").at(-1)?.slice(0, 300)}`,
    );
  } finally {
    await docker.remove(id).catch(() => undefined);
  }
}

async function main(): Promise<void> {
  const found = await findCriu();
  if ("missing" in found) throw new Error(`This host has no memory standby: ${found.missing}. ${found.fix}`);
  // The wrapper can't lie in /tmp, because the driver runs CRIU with a private /tmp.
  const dir = mkdtempSync("/var/tmp/holdfast-bench-criu-");
  try {
    const criu = new TimedCriu(dir, found.path);
    await using server = await TestServer.start({ HOLDFAST_CRIU: criu.path });
    const client = server.client();
    for (const mb of SIZES_MB) {
      const box = await client.sandboxes.create({ resources: { memoryMb: 4_096 } });
      if (mb > 0) {
        const held = await box.execs.start(hog(mb), { keepAwake: false });
        for await (const _ of held.output()) break;
      }
      if (mb === 0) await pauses(box);
      await standbys(box, mb, criu);
      await box.delete();
    }
    client.close();
    const path = `${dirname(found.path)}:${process.env.PATH ?? ""}`;
    await using docker = await Docker.start({ experimental: true, env: { ...process.env, PATH: path } });
    if (docker) for (const mb of SIZES_MB) await dockerStandbys(docker, mb);
    else progress("docker: not installed or does not start on this host; left out");
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
  process.stdout.write(`\n${table(rows)}\n\n`);
  progress(`written to ${save(rows, {}).replace(process.cwd(), ".")}`);
}

await main();
