/**
 * Compares Holdfast, through its SDK and HTTP, with its alternatives, interleaved in one run. Absolute figures depend
 * on the machine and its load; the ratios are the result.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { TestServer } from "../test/support/server/test-server.ts";
import { Docker } from "./docker.ts";
import { printing, reading } from "./gigabyte.ts";
import { interleaved, type Sample, timed } from "./measure.ts";
import { pssKb, rssKb } from "./memory.ts";
import { passCost } from "./pass.ts";
import { type Row, save, table } from "./report.ts";
import { Runc } from "./runc.ts";

const MB = 1_048_576;
const PARTS = ["exec", "create", "files", "output", "memory", "pass"] as const;
/** Numbers of sandboxes for the `pass` part; `node bench/pass.ts` measures more. */
const PASS_COUNTS = [50, 200];
const rows: Row[] = [];
const progress = (text: string) => process.stderr.write(`${text}\n`);

const add = (what: string, who: string, sample: Sample) =>
  rows.push({ what, who, value: sample.p50, p95: sample.p95, p99: sample.p99, unit: "ms" });
const addRate = (what: string, who: string, value: number, unit: string) =>
  rows.push({ what, who, value, unit, higherIsBetter: true });

/**
 * Runs a command on the host, as a Node program usually does: default stdio, both streams read, finished on `close`.
 */
async function spawned(
  command: string,
  args: string[],
  onData: (data: Buffer) => void = () => undefined,
): Promise<void> {
  const child = spawn(command, args);
  child.stdout.on("data", onData);
  child.stderr.resume();
  await once(child, "close");
}

async function createToFirstResult(client: Holdfast, docker: Docker | null): Promise<void> {
  progress("create → first result");
  const doomed: Sandbox[] = [];
  const contenders: Record<string, (i: number) => Promise<unknown>> = {
    holdfast: async () => {
      const box = await client.sandboxes.create();
      doomed.push(box);
      await box.exec(["true"]);
    },
  };
  if (docker) contenders["docker run"] = () => docker.run("/bin/true");
  const samples = await interleaved(contenders, { holdfast: 10, "docker run": 4 }, 3);
  for (const [who, sample] of Object.entries(samples)) add("create → first result", who, sample);

  progress("delete");
  const deletions: Record<string, (i: number) => Promise<unknown>> = {
    holdfast: async () => doomed.pop()?.delete(),
  };
  const containers: string[] = [];
  if (docker) {
    for (let i = 0; i < 13; i += 1) containers.push(await docker.create());
    deletions["docker rm -f"] = async () => docker.remove(containers.pop() ?? "");
  }
  const gone = await interleaved(deletions, { holdfast: 10, "docker rm -f": 4 }, 3);
  for (const [who, sample] of Object.entries(gone)) add("delete, verified", who, sample);
}

async function execRoundTrip(
  box: Sandbox,
  docker: Docker | null,
  container: string,
  runc: Runc | null,
): Promise<void> {
  const contenders: Record<string, () => Promise<unknown>> = {
    holdfast: () => box.exec(["true"]),
    "node spawn": () => spawned("true", []),
  };
  if (runc) contenders["runc exec"] = () => runc.exec("true");
  if (docker) contenders["docker API exec"] = () => docker.exec(container, ["true"]);
  progress("exec true, one at a time");
  const rounds = { holdfast: 40, "node spawn": 40, "runc exec": 6, "docker API exec": 6 };
  // Users meet a server that has been running for a while, so its hot paths are compiled before the measurement.
  for (let i = 0; i < 600; i += 1) await box.exec(["true"]);
  const samples = await interleaved(contenders, rounds, 10);
  for (const [who, sample] of Object.entries(samples)) add("exec true", who, sample);
  progress("exec true, 16 at a time");
  for (const [who, work] of Object.entries(contenders)) {
    const count = who === "holdfast" || who === "node spawn" ? 2_000 : 160;
    const { perSecond, sample } = await timed(count, work, { width: 16, warmUp: 16 });
    addRate("exec true, 16 at once", who, perSecond, "per s");
    if (who === "holdfast") progress(`  p50 ${sample.p50.toFixed(2)} ms, p99 ${sample.p99.toFixed(2)} ms`);
  }
}

async function files(box: Sandbox, docker: Docker | null, container: string): Promise<void> {
  progress("a file of 100 MB, in and out");
  const data = Buffer.alloc(100 * MB, "holdfast ");
  const rate = async (work: () => Promise<unknown>) => {
    await work();
    const { sample } = await timed(3, work, { warmUp: 0 });
    return 100_000 / sample.p50;
  };
  addRate("file in", "holdfast", await rate(() => box.files.write("/home/user/big", data)), "MB/s");
  const read = async () => {
    const got = await box.files.read("/home/user/big");
    if (got.length !== data.length) throw new Error("short read");
  };
  addRate("file out", "holdfast", await rate(read), "MB/s");
  await box.files.remove("/home/user/big");
  if (!docker) return;
  const archive = Buffer.concat([
    tarHeader("big", data.length),
    data,
    Buffer.alloc(1024 + ((512 - (data.length % 512)) % 512)),
  ]);
  const put = async () => {
    const answer = await docker.ask("PUT", `/containers/${container}/archive?path=/tmp`, undefined, archive);
    answer.resume();
    await once(answer, "end");
  };
  addRate("file in", "docker API archive", await rate(put), "MB/s");
  const get = async () => {
    let bytes = 0;
    for await (const part of await docker.ask("GET", `/containers/${container}/archive?path=/tmp/big`))
      bytes += (part as Buffer).length;
    if (bytes < data.length) throw new Error("short read");
  };
  addRate("file out", "docker API archive", await rate(get), "MB/s");
}

/** Returns a minimal ustar header for one regular file. */
function tarHeader(name: string, size: number): Buffer {
  const header = Buffer.alloc(512);
  header.write(name, 0);
  header.write("0000644\0", 100);
  header.write("0000000\0", 108);
  header.write("0000000\0", 116);
  header.write(`${size.toString(8).padStart(11, "0")}\0`, 124);
  header.write("00000000000\0", 136);
  header.write("        ", 148);
  header.write("0", 156);
  header.write("ustar\0", 257);
  header.write("00", 263);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return header;
}

async function streaming(box: Sandbox, docker: Docker | null, container: string): Promise<void> {
  progress("output of a command, streamed");
  const size = 32 * MB;
  const command = ["/bin/sh", "-c", `head -c ${size} /dev/zero`];
  const rate = async (work: (count: (n: number) => void) => Promise<unknown>) => {
    const { sample } = await timed(5, async () => {
      let bytes = 0;
      await work((n) => {
        bytes += n;
      });
      if (bytes < size) throw new Error(`short output: ${bytes}`);
    });
    return size / MB / (sample.p50 / 1000);
  };
  const ours = await rate(async (count) => {
    const run = await box.execs.start(command);
    for await (const chunk of run.output()) count(chunk.data.length);
  });
  addRate("output streamed", "holdfast", ours, "MB/s");
  addRate(
    "output streamed",
    "node spawn",
    await rate((count) => spawned("/bin/sh", command.slice(1), (data) => count(data.length))),
    "MB/s",
  );
  if (docker)
    addRate(
      "output streamed",
      "docker API exec",
      await rate((count) => docker.exec(container, command, (data) => count(data.length))),
      "MB/s",
    );
}

async function output(
  server: TestServer,
  box: Sandbox,
  docker: Docker | null,
  container: string,
): Promise<void> {
  await streaming(box, docker, container);
  progress("a command that prints 1 GB, compared with one that writes it to a file");
  await printing(server, box, rows);
  progress("1 GB to a reader that keeps up");
  await reading(docker, container, rows);
}

async function idleMemory(server: TestServer, client: Holdfast): Promise<void> {
  progress("memory of idle sandboxes");
  const count = 50;
  const boxes: Sandbox[] = [];
  for (let i = 0; i < 5; i += 1) boxes.push(await client.sandboxes.create());
  const before = rssKb(server.pid);
  for (let i = 0; i < count; i += 1) boxes.push(await client.sandboxes.create());
  await new Promise((resolve) => setTimeout(resolve, 6_000));
  const keepers = boxes.map((box) => pssKb(server.keeperPid(box.id)));
  const keeper = keepers.reduce((sum, kb) => sum + kb, 0) / keepers.length;
  const resident = rssKb(server.keeperPid(boxes[0]?.id ?? ""));
  const inServer = Math.max(0, rssKb(server.pid) - before) / count;
  rows.push({ what: "idle sandbox: keeper, proportional", who: "holdfast", value: keeper, unit: "kB" });
  rows.push({ what: "idle sandbox: keeper, resident", who: "holdfast", value: resident, unit: "kB" });
  rows.push({ what: "idle sandbox: growth of the server", who: "holdfast", value: inServer, unit: "kB" });
  await Promise.all(boxes.map((box) => box.delete()));
}

async function main(): Promise<void> {
  const asked = process.argv.slice(2);
  const unknown = asked.find((part) => !PARTS.some((known) => known === part));
  if (unknown !== undefined) throw new Error(`Unknown part '${unknown}'. The parts are ${PARTS.join(", ")}.`);
  const wants = (part: (typeof PARTS)[number]) => asked.length === 0 || asked.includes(part);
  await using server = await TestServer.start();
  const client = server.client();
  await using docker = await Docker.start();
  progress(docker ? "docker: up" : "docker: not installed or does not start on this host; left out");
  using runc = new Runc();
  const box = await client.sandboxes.create();
  const container = docker ? await docker.create() : "";
  await new Promise((resolve) => setTimeout(resolve, 3_000));
  if (wants("exec")) await execRoundTrip(box, docker, container, runc);
  if (wants("create")) await createToFirstResult(client, docker);
  if (wants("files")) await files(box, docker, container);
  if (wants("output")) await output(server, box, docker, container);
  if (docker) await docker.remove(container);
  await box.delete();
  if (wants("memory")) await idleMemory(server, client);
  if (wants("pass")) await passCost(PASS_COUNTS, rows);
  client.close();
  process.stdout.write(`\n${table(rows)}\n\n`);
  progress(`written to ${save(rows, { docker: docker !== null }).replace(process.cwd(), ".")}`);
}

await main();
