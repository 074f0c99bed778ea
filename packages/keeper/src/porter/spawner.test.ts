import { spawn } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { isAlive, pause, soon, until } from "../testing/test-keeper.ts";
import { keeperBinaries } from "./binaries.ts";
import { Porter } from "./porter.ts";
import { type HelperOrder, PorterError, Spawner } from "./spawner.ts";

const { porter: binary } = keeperBinaries();
const env = { PATH: "/usr/bin:/bin" };
const keep = { stdout: 65_536, stderr: 65_536 };
const sh = (script: string, rest: Partial<HelperOrder> = {}): HelperOrder => ({
  argv: ["/bin/sh", "-c", script],
  env,
  ...rest,
});

let spawner: Spawner;
let naps = 0;
/** Path of a command that no other process of this machine runs. */
let nap: string;
beforeEach(() => {
  spawner = new Spawner(binary);
  nap = `sleep 1000.${process.pid}${++naps}`;
});
afterEach(async () => {
  for (const pid of napping()) process.kill(pid, "SIGKILL");
  const { pid } = spawner;
  spawner.close();
  if (pid !== undefined) await until("the spawner is gone", () => !isAlive(pid));
});

const pids = () => readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
const napping = (): number[] => pids().filter((pid) => isAlive(pid) && commandOf(pid) === nap);

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
  } catch {
    return "";
  }
}

const running = (count: number) => until(`${count} naps`, () => napping().length === count);

/** Returns the children of a process, including zombies. */
const childrenOf = (pid: number | undefined): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean).map(Number);

const parentOf = (pid: number): number =>
  Number(/^PPid:\s*(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);

const temporary = (): string => {
  const directory = mkdtempSync(join(tmpdir(), "holdfast-spawner-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
};

describe("a helper's end", () => {
  test("is its exit code, or the signal that ended it", async () => {
    expect(await spawner.run(sh("exit 7"), soon())).toEqual({ status: 7, stdout: "", stderr: "" });
    expect(await spawner.run(sh("kill -USR1 $$"), soon())).toMatchObject({ status: "SIGUSR1" });
  });

  test("comes with its output, each stream separately", async () => {
    const end = await spawner.run(sh("echo out; echo err >&2; exit 1", { keep }), soon());
    expect(end).toEqual({ status: 1, stdout: "out\n", stderr: "err\n" });
    const half = await spawner.run(sh("echo out; echo err >&2", { keep: { stderr: 100 } }), soon());
    expect(half).toEqual({ status: 0, stdout: "", stderr: "err\n" });
  });

  test("comes with the output up to the limit, and the helper never blocks on the rest", async () => {
    const script = "head -c 5000000 /dev/zero | tr '\\0' x; echo end >&2; exit 3";
    const all = await spawner.run(sh(script, { keep: { stdout: 6_000_000, stderr: 100 } }), soon());
    expect([all.status, all.stdout.length, all.stderr]).toEqual([3, 5_000_000, "end\n"]);
    const some = await spawner.run(sh(script, { keep: { stdout: 100_001, stderr: 2 } }), soon());
    expect([some.status, some.stdout.length, some.stderr]).toEqual([3, 100_001, "en"]);
  });

  test("is not delayed by a background process with its output open, which gets another parent", async () => {
    const begun = performance.now();
    const end = await spawner.run(sh(`setsid ${nap} & echo said`, { keep }), soon());
    expect(end).toEqual({ status: 0, stdout: "said\n", stderr: "" });
    expect(performance.now() - begun).toBeLessThan(5_000);
    await running(1);
    expect(napping().map(parentOf)).not.toContain(spawner.pid);
    expect(childrenOf(spawner.pid)).toEqual([]);
  });

  test("is not delayed by a background process that keeps writing", async () => {
    const end = await spawner.run(sh(`yes ${nap} & sleep 0.1`, { keep }), soon());
    const left = () => pids().filter((pid) => commandOf(pid) === `yes ${nap}`);
    onTestFinished(() => left().forEach((pid) => void process.kill(pid, "SIGKILL")));
    expect([end.status, end.stdout.length]).toEqual([0, keep.stdout]);
    await until("its reader is gone", () => left().length === 0);
  });
});

describe("a helper that can't be run", () => {
  test("is an error with the reason", async () => {
    const failed = (order: HelperOrder) => expect(spawner.run(order, soon())).rejects;
    await failed({ argv: ["/nonexistent/helper"], env }).toThrow("helper can't be run: ENOENT");
    await failed({ argv: ["/etc/passwd"], env }).toThrow("passwd can't be run: EACCES");
    await failed({ argv: ["sh", "-c", "exit 0"], env }).toThrow("sh can't be run: ENOENT");
    await failed(sh("exit 0", { stdio: "/nonexistent/file" })).toThrow("sh can't be run: ENOENT");
    await failed({ argv: ["/nonexistent/helper"], env }).toBeInstanceOf(PorterError);
    expect(await spawner.run(sh("exit 0"), soon())).toMatchObject({ status: 0 });
  });

  test("because its order can't be sent harms no other", async () => {
    const other = spawner.run(sh("sleep 0.2; exit 5"), soon());
    for (const word of ["a\0b", "x".repeat(2_000_000)])
      await expect(spawner.run(sh(word), soon())).rejects.toThrow(PorterError);
    expect(await other).toMatchObject({ status: 5 });
  });

  test("because the spawner can't be run, or is not a spawner, is an error too", async () => {
    const absent = new Spawner("/nonexistent/porter");
    for (let i = 0; i < 2; i++)
      await expect(absent.run(sh("exit 0"), soon())).rejects.toThrow(/spawner can't be run: .*ENOENT/);
    const false_ = join(temporary(), "babbler");
    writeFileSync(false_, "#!/bin/sh\nyes >&3\n");
    chmodSync(false_, 0o755);
    const babbler = new Spawner(false_).run(sh("exit 0"), soon());
    await expect(babbler).rejects.toThrow(/unexpected output from the spawner/);
    await expect(new Spawner("/bin/true").run(sh("exit 0"), soon())).rejects.toThrow(
      /spawner ended while sh/,
    );
  });
});

describe("an abort", () => {
  test("ends a helper and its children before the promise rejects", async () => {
    const abort = new AbortController();
    const helper = spawner.run(sh(`${nap} & ${nap}`), abort.signal);
    await running(2);
    const abortedAt = performance.now();
    abort.abort(new Error("enough"));
    await expect(helper).rejects.toThrow("enough");
    expect(performance.now() - abortedAt).toBeLessThan(1_500);
    expect(childrenOf(spawner.pid)).toEqual([]);
    await running(0);
  });

  test("ends a helper that has just started", async () => {
    for (let i = 0; i < 40; i++) {
      const abort = new AbortController();
      const helper = spawner.run(sh(nap), abort.signal);
      setTimeout(() => abort.abort(new Error("enough")), i % 4);
      await expect(helper).rejects.toThrow("enough");
      expect(childrenOf(spawner.pid)).toEqual([]);
    }
    // A grandchild is killed with its group, but only the helper itself is awaited.
    await running(0);
  });

  test("before the start prevents it", async () => {
    await expect(spawner.run(sh("exit 0"), AbortSignal.abort(new Error("too late")))).rejects.toThrow(
      "too late",
    );
    expect(spawner.pid).toBeUndefined();
  });

  test("of one leaves the others alone", async () => {
    const abort = new AbortController();
    const others = [1, 2, 3].map((code) => spawner.run(sh(`sleep 0.3; exit ${code}`), soon()));
    const helper = spawner.run(sh(nap), abort.signal);
    abort.abort(new Error("enough"));
    await expect(helper).rejects.toThrow("enough");
    expect((await Promise.all(others)).map(({ status }) => status)).toEqual([1, 2, 3]);
  });
});

describe("many helpers at once", () => {
  test("each get their own end, and none stays as a zombie", async () => {
    const ends = Array.from({ length: 200 }, (_, i) =>
      spawner.run(sh(`echo ${i}; exit ${i}`, { keep }), soon()),
    );
    const results = (await Promise.all(ends)).map(({ status, stdout }) => [status, stdout]);
    expect(results).toEqual(Array.from({ length: 200 }, (_, i) => [i, `${i}\n`]));
    expect(childrenOf(spawner.pid)).toEqual([]);
    expect(readdirSync(`/proc/${spawner.pid}/fd`)).toHaveLength(5);
  });

  test("beyond the limit are refused, and only those", async () => {
    const abort = new AbortController();
    const order = { argv: nap.replace("sleep", "/bin/sleep").split(" "), env };
    const ends = Array.from({ length: 520 }, () => spawner.run(order, abort.signal));
    const settled = Promise.allSettled(ends);
    await expect(Promise.any(ends.map((end) => end.catch((error: Error) => error.message)))).resolves.toBe(
      "sleep can't be run: EAGAIN",
    );
    expect(childrenOf(spawner.pid)).toHaveLength(512);
    abort.abort(new Error("enough"));
    expect((await settled).filter(({ status }) => status === "fulfilled")).toEqual([]);
    expect(await spawner.run(sh("exit 4"), soon())).toMatchObject({ status: 4 });
    expect(childrenOf(spawner.pid)).toEqual([]);
  });
});

describe("a helper's environment", () => {
  test("has the null device or the given file open, and nothing else", async () => {
    const file = join(temporary(), "stdio");
    writeFileSync(file, "");
    const seen = async (rest: Partial<HelperOrder>) => {
      const abort = new AbortController();
      const helper = spawner.run(sh(`exec ${nap}`, rest), abort.signal).catch(() => {});
      await running(1);
      const [pid] = napping();
      const open = readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`));
      abort.abort();
      await helper;
      return open;
    };
    expect(await seen({})).toEqual(["/dev/null", "/dev/null", "/dev/null"]);
    expect(await seen({ stdio: file })).toEqual([file, file, file]);
    const pipe = expect.stringMatching(/^pipe:/);
    expect(await seen({ keep: { stderr: 1 } })).toEqual(["/dev/null", "/dev/null", pipe]);
    expect(await seen({ stdio: file, keep: { stdout: 1 } })).toEqual([file, pipe, file]);
  });

  test("has the given variables, the root directory, and its own session", async () => {
    const given = { A: "1", EMPTY: "", "odd name": "a=b\nc" };
    const { stdout } = await spawner.run({ argv: ["/usr/bin/env", "-0"], env: given, keep }, soon());
    expect(stdout.split("\0")).toEqual(["A=1", "EMPTY=", "odd name=a=b\nc", ""]);
    const none = await spawner.run({ argv: ["/usr/bin/env"], env: {}, keep }, soon());
    expect(none.stdout).toBe("");
    const here = await spawner.run(sh("pwd; cut -d' ' -f1,5,6 /proc/$$/stat; echo $$", { keep }), soon());
    const [cwd, ids, pid] = here.stdout.trim().split("\n");
    expect([cwd, ids]).toEqual(["/", `${pid} ${pid} ${pid}`]);
  });
});

describe("a spawner", () => {
  const lost = async (signal: NodeJS.Signals, reason: RegExp) => {
    const { pid = 0 } = spawner;
    const ends = [spawner.run(sh(nap), soon()), spawner.run(sh(`exec ${nap}`), soon())];
    await running(2);
    process.kill(pid, signal);
    const last = spawner.run(sh("exit 0"), soon());
    for (const end of [...ends, last]) {
      await expect(end).rejects.toThrow(reason);
      await expect(end).rejects.toBeInstanceOf(PorterError);
    }
    expect(napping()).toHaveLength(2);
    expect(await spawner.run(sh("exit 6"), soon())).toMatchObject({ status: 6 });
    expect(spawner.pid).not.toBe(pid);
    await until("it is gone", () => !isAlive(pid));
  };

  test("that is killed fails the helpers in progress, and another takes its place", async () => {
    await spawner.run(sh("exit 0"), soon());
    await lost("SIGKILL", /^the spawner ended while sh was running$/);
  });

  test("that is stopped is replaced as well", async () => {
    await spawner.run(sh("exit 0"), soon());
    await lost("SIGSTOP", /^the spawner does not answer while sh was running$/);
  });

  test("that is killed ends its tied helpers", async () => {
    const directory = temporary();
    const image = join(directory, "image");
    writeFileSync(image, "");
    const holder = spawn("flock", [image, "/bin/sh", "-c", `: > ${directory}/locked; exec sleep 1000`], {
      detached: true,
    });
    onTestFinished(() => void process.kill(-(holder.pid ?? 0), "SIGKILL"));
    await until("it is locked", () => readdirSync(directory).includes("locked"));
    const porter = new Porter({ spawner });
    const mounted = porter.mountDisk({ image, target: directory, options: "discard" });
    const waiting = () => pids().filter((pid) => commandOf(pid).includes(`disk ${image}`));
    mounted.catch(() => {});
    await until("it waits", () => waiting().length === 1 && childrenOf(spawner.pid).length === 1);
    process.kill(spawner.pid ?? 0, "SIGKILL");
    await expect(mounted).rejects.toThrow(/^the spawner ended while porter disk was running$/);
    expect(waiting()).toEqual([]);
  });

  test("that is killed never lets a tied helper start afterwards", async () => {
    const file = join(temporary(), "begun");
    for (let i = 0; i < 40; i++) {
      await spawner.run(sh("exit 0"), soon());
      const ends = Array.from({ length: 8 }, () =>
        spawner.run(sh(`sleep 1; echo begun > ${file}`, { isTied: true }), soon()).catch(String),
      );
      const { pid = 0 } = spawner;
      setTimeout(() => process.kill(pid, "SIGKILL"), i % 5);
      await Promise.all(ends);
    }
    await pause(1_200);
    expect(existsSync(file)).toBe(false);
  });

  test("ignores the signals of a terminal or service manager", async () => {
    const end = spawner.run(sh("sleep 0.5; exit 3"), soon());
    await until("it runs", () => commandOf(spawner.pid ?? 0).endsWith("spawn"));
    await until("it has begun", () => childrenOf(spawner.pid).length === 1);
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.kill(spawner.pid ?? 0, signal);
    expect(await end).toMatchObject({ status: 3 });
  });

  test("is not considered lost if its server itself was stopped", async () => {
    await spawner.run(sh("exit 0"), soon());
    const end = spawner.run(sh("exit 9"), soon());
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5_500);
    expect(await end).toMatchObject({ status: 9 });
  });
});

test("a closed spawner ends when no helper is running, and another is started when needed", async () => {
  const end = spawner.run(sh("sleep 0.3; exit 2"), soon());
  const { pid = 0 } = spawner;
  spawner.close();
  expect(await spawner.run(sh("exit 1"), soon())).toMatchObject({ status: 1 });
  expect(isAlive(pid)).toBe(true);
  expect(await end).toMatchObject({ status: 2 });
  await until("it is gone", () => !isAlive(pid));
  expect(spawner.pid).not.toBe(pid);
});

describe("a server", () => {
  const module = JSON.stringify(pathToFileURL(join(import.meta.dirname, "spawner.ts")).href);
  const start = (script: string) => {
    const program = `
      import { writeSync } from "node:fs";
      import { Spawner } from ${module};
      const spawner = new Spawner(${JSON.stringify(binary)});
      const run = (script) => spawner.run({ argv: ["/bin/sh", "-c", script], env: ${JSON.stringify(env)} }, new AbortController().signal);
      const first = await run("exit 0");
      writeSync(1, spawner.pid + "\\n");
      ${script}`;
    const server = spawn(process.execPath, ["--input-type=module", "-e", program], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const said = new Promise<number>((resolve) =>
      server.stdout.once("data", (chunk) => resolve(Number(String(chunk)))),
    );
    const ended = new Promise<number | null>((resolve) => server.once("exit", resolve));
    return { server, said, ended };
  };

  test("is not kept alive by an idle spawner, which ends with it", async () => {
    const { said, ended } = start("");
    const pid = await said;
    expect(await ended).toBe(0);
    await until("the spawner is gone", () => !isAlive(pid));
  });

  test("waits for its running helpers", async () => {
    const { ended } = start('run("sleep 0.3; exit 5").then(({ status }) => { process.exitCode = status; });');
    expect(await ended).toBe(5);
  });

  test.each(["SIGCONT", "SIGSTOP"] as const)(
    "that is killed leaves its helpers and no spawner (%s)",
    async (signal) => {
      const { server, said, ended } = start(`await run("${nap}; :")`);
      const pid = await said;
      await running(1);
      process.kill(pid, signal);
      server.kill("SIGKILL");
      await ended;
      await until("the spawner is gone", () => !isAlive(pid));
      expect(napping()).toHaveLength(1);
    },
  );
});
