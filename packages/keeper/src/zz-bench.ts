import { spawn } from "node:child_process";
import fs from "node:fs";
import { connectKeeper } from "./link.ts";

const d = fs.mkdtempSync("/tmp/holdfast-kbench-");
fs.mkdirSync(d + "/files");
const p = spawn(process.argv[2] ?? "", [], {
  env: { HOLDFAST_CONTROL: d + "/c", HOLDFAST_INSTALLATION: "i", HOLDFAST_SANDBOX: "s" },
  stdio: "inherit",
});
await new Promise((r) => setTimeout(r, 300));
const sig = AbortSignal.timeout(100000);
const link = await connectKeeper(
  { socketPath: d + "/c/keeper.sock", installation: "i" as never, sandbox: "s" as never, generation: 1 },
  sig,
);
const rss = () =>
  fs
    .readFileSync(`/proc/${p.pid}/status","utf8`.replace('","utf8', ""), "utf8")
    .match(/VmRSS.*|RssAnon.*/g)
    ?.join(" ");
console.log("rss", rss());
const q = (a: number[], x: number) => {
  a.sort((x, y) => x - y);
  return a[Math.floor(a.length * x)]?.toFixed(3);
};
let t: number[] = [];
for (let i = 0; i < 500; i++) {
  const s = performance.now();
  await link.ping(sig);
  t.push(performance.now() - s);
}
console.log("ping", q(t, 0.5), q(t, 0.95));
const ends = new Map<string, () => void>();
link.onExecEnd((e) => {
  ends.get(e.id)?.();
});
let n = 0;
const exec = async (argv: string[], user = "0") => {
  const id = ("e" + n++) as never;
  const end = new Promise<void>((r) => ends.set(id, r));
  await link.startExec(
    {
      id,
      argv,
      env: { PATH: "/usr/bin:/bin" },
      cwd: "/",
      user,
      timeoutMs: 0,
      stdin: false,
      journalCapBytes: 64 << 20,
      digest: "x",
    },
    sig,
  );
  await end;
  return id;
};
t = [];
for (let i = 0; i < 300; i++) {
  const s = performance.now();
  await exec(["/bin/true"]);
  t.push(performance.now() - s);
}
console.log("exec true", q(t, 0.5), q(t, 0.95));
t = [];
for (let i = 0; i < 300; i++) {
  const s = performance.now();
  await new Promise((r) => spawn("/bin/true").on("exit", r));
  t.push(performance.now() - s);
}
console.log("node spawn", q(t, 0.5), q(t, 0.95));
{
  const s = performance.now();
  let k = 0;
  await Promise.all(
    Array.from({ length: 16 }, async () => {
      while (k < 1000) {
        k++;
        await exec(["/bin/true"]);
      }
    }),
  );
  console.log("16 wide/s", (1000 / (performance.now() - s)) * 1000);
}
const data = Buffer.alloc(100 << 20, 7);
{
  const s = performance.now();
  await link.files.write(
    d + "/files/x",
    (async function* () {
      for (let i = 0; i < 100; i++) yield data.subarray(i << 20, (i + 1) << 20);
    })(),
    {},
    sig,
  );
  console.log("write MB/s", (100 / (performance.now() - s)) * 1000);
}
{
  const s = performance.now();
  let c = 0;
  const r = await link.files.read(d + "/files/x", { offset: 0, length: null }, sig);
  for await (const x of r.body) c += x.length;
  console.log("read MB/s", (c / 1048576 / (performance.now() - s)) * 1000);
}
{
  const s = performance.now();
  const id = await exec(["/bin/sh", "-c", "head -c 200000000 /dev/zero"]);
  console.log("output MB/s", (200 / (performance.now() - s)) * 1000);
  let cur = 0,
    c = 0;
  const s2 = performance.now();
  const l = (await link.listExecs(sig)).find((e) => e.id === id);
  cur = l?.journalFloor ?? 0;
  for (;;) {
    const r = await link.readExec(id, { cursor: cur, maxBytes: 1 << 20, waitMs: 0 }, sig);
    for (const x of r.records) c += x.data.length;
    cur = r.next;
    if (!r.more) break;
  }
  console.log("journal read", c, (c / 1e6 / (performance.now() - s2)) * 1000);
}
console.log("rss busy", rss());
await new Promise((r) => setTimeout(r, 2500));
console.log("rss idle", rss());
for (const e of await link.listExecs(sig)) await link.forgetExec(e.id, sig);
await new Promise((r) => setTimeout(r, 2500));
console.log("rss forgotten", rss(), "fds", fs.readdirSync(`/proc/${p.pid}/fd`).length);
link.close();
p.kill("SIGTERM");
p.on("exit", (c) => {
  console.log("exit", c);
  fs.rmSync(d, { recursive: true });
  process.exit(0);
});
