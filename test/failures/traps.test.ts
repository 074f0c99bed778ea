import { execFile as execFileWithCallback } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { promisify } from "node:util";
import type { ExecRun, Holdfast, OutputChunk, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { FaultyWorld } from "../support/faults/faulty-world.ts";
import { processesBeside } from "../support/server/observe.ts";
import { CLI, TestServer } from "../support/server/test-server.ts";

const execFile = promisify(execFileWithCallback);

/** A bound for immediate results: far above scheduling noise, and far below the wait of a broken implementation. */
const AT_ONCE_MS = 20_000;
const soon = { timeout: 30_000, interval: 50 };

let server: TestServer;
let client: Holdfast;
let box: Sandbox;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
  box = await client.sandboxes.create({ name: "traps" });
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

/** Writes to stdout and stderr in turn, each time after the keeper has read everything that was written before. */
const ALTERNATING = `
import fcntl, os, struct, termios, time
unread = lambda fd: struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
for i in range(1, 31):
    for fd, name in ((1, "out"), (2, "err")):
        os.write(fd, f"{name}-{i}\\n".encode())
        while unread(fd) > 0: time.sleep(0.001)
`;

const commandLines = (of: Sandbox = box): string => processesBeside(server.keeperPid(of.id)).join("\n");

async function chunksOf(run: ExecRun, options: { follow?: boolean } = {}): Promise<OutputChunk[]> {
  const chunks: OutputChunk[] = [];
  for await (const chunk of run.output(options)) chunks.push(chunk);
  return chunks;
}
const bytesOf = async (run: ExecRun, options: { follow?: boolean } = {}): Promise<Buffer> =>
  Buffer.concat((await chunksOf(run, options)).map(({ data }) => data));

/** Keeps every processor of the machine busy until it is disposed of. */
async function busy(): Promise<AsyncDisposable> {
  const load = await box.execs.start("for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait");
  return { [Symbol.asyncDispose]: async () => void (await load.cancel()) };
}

async function within<Result>(ms: number, work: Promise<Result>): Promise<Result> {
  const startedAt = performance.now();
  const result = await work;
  expect(performance.now() - startedAt).toBeLessThan(ms);
  return result;
}

describe("the output of a command", () => {
  it("is unchanged by a here-document", async () => {
    const text = "a 'quoted' \"text\" with $HOME, `ticks` and \\ backslashes\n\n  and blanks";
    const result = await box.exec(`cat <<'END'\n${text}\nEND\necho after`);
    expect(result).toMatchObject({ exitCode: 0, stdout: `${text}\nafter\n` });
  });

  it("may be empty", async () => {
    const run = await box.execs.start("true");
    expect(await run.result()).toMatchObject({ exitCode: 0, stdout: "", stderr: "", truncated: false });
    expect(await chunksOf(run)).toEqual([]);
  });

  it("may end without a newline", async () => {
    expect(await box.exec("printf 'one\\ntwo'")).toMatchObject({ stdout: "one\ntwo", truncated: false });
  });

  it("may be lost if the command closed its stdout", async () => {
    const result = await box.exec("exec >&-; echo lost; echo heard >&2; exit 3");
    expect(result).toMatchObject({ exitCode: 3, stdout: "" });
    expect(result.stderr).toContain("heard\n");
  });

  it("may be binary: the bytes are exact", async () => {
    const bytes = Buffer.from(Array.from({ length: 4_096 }, (_, i) => (i * 7 + (i >> 8)) % 256));
    await box.files.write("/tmp/bytes", bytes);
    const run = await box.execs.start("cat /tmp/bytes");
    expect((await bytesOf(run)).equals(bytes)).toBe(true);
    expect((await run.result()).stdout).toContain("\ufffd");
  });

  it("keeps the order between stdout and stderr if the keeper has read one before the other is written", async () => {
    const run = await box.execs.start(["/usr/bin/python3", "-c", ALTERNATING]);
    const chunks = await chunksOf(run);
    const right = Array.from({ length: 30 }, (_, i) => [`out-${i + 1}\n`, `err-${i + 1}\n`]).flat();
    expect(chunks.map(({ text }) => text).join("")).toBe(right.join(""));
    const times = chunks.map(({ at }) => Date.parse(at));
    expect(times).toEqual(times.toSorted((a, b) => a - b));
  });

  it("keeps the order of what was written behind output that a reader has received, on a busy machine too", async () => {
    await using _load = await busy();
    const script = "for i in 1 2 3 4 5 6 7 8; do echo out-$i; read go; echo err-$i >&2; read go; done";
    const run = await box.execs.start(script, { openStdin: true });
    let text = "";
    for await (const chunk of run.output()) {
      text += chunk.text;
      await run.write("go\n");
    }
    const right = Array.from({ length: 8 }, (_, i) => `out-${i + 1}\nerr-${i + 1}\n`);
    expect(text).toBe(right.join(""));
  });

  it("keeps the order of each stream, and the exact order of both if they are one pipe, on a busy machine too", async () => {
    await using _load = await busy();
    const script = "i=0; while [ $i -lt 3000 ]; do echo out-$i; echo err-$i >&2; i=$((i+1)); done";
    const lines = (name: string) => Array.from({ length: 3_000 }, (_, i) => `${name}-${i}\n`);
    const apart = await box.exec(script);
    expect(apart.stdout).toBe(lines("out").join(""));
    expect(apart.stderr).toBe(lines("err").join(""));
    const errors = lines("err");
    const both = lines("out").flatMap((line, i) => [line, errors[i]]);
    expect((await box.exec(`exec 2>&1; ${script}`)).stdout).toBe(both.join(""));
  });

  it("is complete when many processes write at once", async () => {
    const result = await box.exec("for i in $(seq 1 40); do (echo line-$i) & done; wait");
    const lines = result.stdout.trim().split("\n").sort();
    expect(lines).toEqual(Array.from({ length: 40 }, (_, i) => `line-${i + 1}`).sort());
  });
});

describe("the input of a command", () => {
  it("may be an argument of 64 KB, and a command of 64 KB", async () => {
    const long = "x".repeat(65_536);
    expect((await box.exec(["/usr/bin/printf", "%s", long])).stdout).toBe(long);
    expect((await box.exec(`: ${long}; echo read`)).stdout).toBe("read\n");
  });

  it("may have newlines, quotes and blanks in its environment", async () => {
    const value = "one\ntwo 'three' \"four\" $five\n";
    expect((await box.exec('printf %s "$TRAP"', { env: { TRAP: value } })).stdout).toBe(value);
  });

  it("has an empty stdin by default", async () => {
    const result = await within(AT_ONCE_MS, box.exec("cat; echo done"));
    expect(result).toMatchObject({ exitCode: 0, stdout: "done\n" });
  });

  it("is its whole stdin, and unread stdin does not block it", async () => {
    expect((await box.exec("wc -c", { stdin: "x".repeat(1_000_000) })).stdout.trim()).toBe("1000000");
    const run = await box.execs.start("head -c 5; echo; exit 4", { openStdin: true });
    await run.writeStdin("12345");
    expect(await run.result()).toMatchObject({ exitCode: 4, stdout: "12345\n" });
  });
});

describe("the failure of a command that", () => {
  it.each([
    ["is not found", ["/no/such/command"], {}, 127, "not_found"],
    ["is not executable", ["/etc/passwd"], {}, 126, "not_executable"],
    ["has no such working directory", ["true"], { cwd: "/no/such/directory" }, 126, "cwd"],
    ["has no such user", ["true"], { user: "nobody-of-that-name" }, 126, "user"],
  ])("%s is identified by exit code and cause", async (_name, argv, options, exitCode, code) => {
    const result = await box.exec(argv, options);
    expect(result).toMatchObject({ status: "exited", exitCode, cause: { code } });
    expect(result.stderr).not.toBe("");
  });

  it("runs in a shell has the shell's own exit code", async () => {
    expect(await box.exec("no-such-command")).toMatchObject({ exitCode: 127, cause: null });
    expect(await box.exec("/etc/passwd")).toMatchObject({ exitCode: 126, cause: null });
  });

  it("ended by a signal names the signal", async () => {
    const result = await box.exec("kill -SEGV $$");
    expect(result).toMatchObject({ status: "exited", exitCode: null, signal: "SIGSEGV" });
  });
});

describe("a process that outlives its command", () => {
  it.each([
    ["a background child", "sleep 3001 & echo started", "sleep 3001"],
    ["a daemon", "nohup setsid sleep 3002 >/dev/null 2>&1 & echo started", "sleep 3002"],
    ["a grandchild that holds the pipes", "(setsid sh -c 'sleep 3003 & wait' &); echo started", "sleep 3003"],
  ])("%s does not delay the end of its exec, and keeps running", async (_name, command, left) => {
    const run = await box.execs.start(command);
    const result = await within(AT_ONCE_MS, run.result());
    expect(result).toMatchObject({ status: "exited", exitCode: 0, stdout: "started\n" });
    await vi.waitFor(() => expect(commandLines()).toContain(left), soon);
    await box.exec(["pkill", "-f", left]);
    await vi.waitFor(() => expect(commandLines()).not.toContain(left), soon);
  });

  it("a child's later output is journaled after the result, and can be read", async () => {
    const run = await box.execs.start("(sleep 2; echo late) & echo early");
    expect(await within(AT_ONCE_MS, run.result())).toMatchObject({ exitCode: 0, stdout: "early\n" });
    await vi.waitFor(async () => expect((await bytesOf(run)).toString()).toBe("early\nlate\n"), soon);
    expect(await run.result()).toMatchObject({ exitCode: 0, stdout: "early\nlate\n" });
  });

  it("a detached start answers at once, and the command keeps running", async () => {
    const started = server.fetch(`/v1/sandboxes/${box.id}/execs`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id: "detached", command: "sleep 2; exit 6", detach: true }),
    });
    const response = await within(AT_ONCE_MS, started);
    expect(response.status).toBe(202);
    expect(await response.json()).toMatchObject({ id: "detached", status: "running", exitCode: null });
    expect((await (await client.execs.get("detached")).result()).exitCode).toBe(6);
  });

  it("a detached start in the CLI prints the exec's id at once", async () => {
    const argv = [CLI, "exec", "--detach", "traps", "--", "sh", "-c", "sleep 2; echo behind; exit 6"];
    const { stdout } = await within(AT_ONCE_MS, execFile(process.execPath, argv, { env: server.env }));
    const run = await client.execs.get(stdout.trim());
    expect(run.info.status).toBe("running");
    expect(await run.result()).toMatchObject({ exitCode: 6, stdout: "behind\n" });
  });
});

/** Processes that tend to survive a kill: own sessions, double forks, empty environments, ignored signals. */
const SURVIVORS = [
  "setsid sleep 4001 &",
  "(setsid sh -c 'sleep 4002 & sleep 4003' &)",
  "nohup sleep 4004 >/dev/null 2>&1 &",
  "env -i /usr/bin/setsid /bin/sleep 4005 &",
  "env -i /usr/bin/setsid /bin/sh -c '(/bin/sleep 4006 &) ; /bin/sleep 4007' &",
  "sh -c 'trap \"\" TERM INT HUP; sleep 4008' &",
  "trap '' TERM INT HUP; echo up; sleep 4009",
].join("\n");

describe("an end on request", () => {
  it.each(["timeout", "cancel"] as const)(
    "by %s leaves no process of the tree, affects no other, and the next exec works at once",
    async (how) => {
      const bystander = await box.execs.start("echo here; sleep 4100; exit 1");
      const run = await box.execs.start(SURVIVORS, how === "timeout" ? { timeoutMs: 8_000 } : {});
      // The last line prints "up" after all others were started.
      await vi.waitFor(
        async () => expect((await bytesOf(run, { follow: false })).toString()).toBe("up\n"),
        soon,
      );
      await vi.waitFor(
        () => expect(new Set(commandLines().match(/sleep 400\d/g))).toHaveProperty("size", 9),
        soon,
      );
      if (how === "cancel") await run.cancel();
      const result = await within(AT_ONCE_MS, run.result());
      expect(result.status).toBe(how === "timeout" ? "timed_out" : "cancelled");
      expect(result.stdout).toBe("up\n");
      expect(commandLines()).not.toMatch(/sleep 400\d/);
      expect((await within(AT_ONCE_MS, box.exec("echo next"))).stdout).toBe("next\n");
      expect(commandLines()).toContain("sleep 4100");
      expect((await client.execs.get(bystander.id)).info.status).toBe("running");
      expect(await bystander.cancel()).toMatchObject({ status: "cancelled" });
    },
  );
});

describe("an unrequested end", () => {
  it("by the out-of-memory killer is reported, even if only a child was killed", async () => {
    const small = await client.sandboxes.create({ resources: { memoryMb: 64 } });
    const hog = `/usr/bin/python3 -c "x = bytearray(512 << 20)"`;
    expect(await small.exec(`echo before; ${hog}; exit $?`)).toMatchObject({
      status: "exited",
      exitCode: 137,
      stdout: "before\n",
      cause: { code: "oom_killed" },
    });
    expect((await small.exec("echo alive")).stdout).toBe("alive\n");
    await small.delete();
  });

  it("because its sandbox was deleted has its own outcome, and the output so far stays readable", async () => {
    const doomed = await client.sandboxes.create();
    const ended = await doomed.exec("echo whole; exit 5");
    const run = await doomed.execs.start("echo so far; sleep 100");
    for await (const { text } of run.output()) if (text.includes("so far")) break;
    const waiting = run.result();
    await doomed.delete();
    expect(await waiting).toMatchObject({
      status: "cancelled",
      exitCode: null,
      cause: { code: "sandbox_deleted" },
    });
    expect((await bytesOf(run)).toString()).toBe("so far\n");
    const again = await client.execs.get(ended.id);
    expect(await again.result()).toMatchObject({
      status: "exited",
      exitCode: 5,
      stdout: "whole\n",
      truncated: false,
    });
    expect((await bytesOf(again)).toString()).toBe("whole\n");
  });

  it("because the keeper was killed is lost, with its cause, and the output so far can be read", async () => {
    const doomed = await client.sandboxes.create();
    const ended = await doomed.exec("echo whole; exit 5");
    const run = await doomed.execs.start("echo so far; sleep 100");
    for await (const { text } of run.output()) if (text.includes("so far")) break;
    process.kill(server.keeperPid(doomed.id), "SIGKILL");
    const lost = await within(40_000, run.result());
    expect(lost).toMatchObject({
      status: "lost",
      exitCode: null,
      dispatched: "yes",
      cause: { code: "keeper_died" },
    });
    expect((await bytesOf(run)).toString()).toBe("so far\n");
    expect((await bytesOf(await client.execs.get(ended.id))).toString()).toBe("whole\n");
    await doomed.delete();
    expect((await bytesOf(await client.execs.get(ended.id))).toString()).toBe("whole\n");
    expect((await bytesOf(run)).toString()).toBe("so far\n");
  });
});

it("a hundred megabytes of stdin arrive once and whole, though every connection is cut in the middle", async () => {
  await using world = await FaultyWorld.make({ boxes: 1, seed: 1 });
  const faulty = world.client({ timeoutMs: 5_000 });
  const [target] = await world.boxes(faulty);
  if (target === undefined) throw new Error("there is no sandbox");
  const bytes = randomBytes(100 * 1_048_576);
  const run = await target.execs.start("sha256sum; wc -c < /dev/null", { openStdin: true });
  const writing = run.writeStdin(bytes, { end: true });
  for (const part of [0.2, 0.4, 0.6, 0.8]) {
    await vi.waitFor(() => expect(world.http.tally.up.bytes).toBeGreaterThan(bytes.length * part), soon);
    world.http.reset();
    for (const keeper of world.keepers) part < 0.5 ? keeper.reset() : keeper.cut();
  }
  await writing;
  const result = await run.result();
  expect(result.stdout.slice(0, 64)).toBe(createHash("sha256").update(bytes).digest("hex"));
  expect(world.http.tally.accepted).toBeGreaterThan(4);
  faulty.close();
}, 120_000);
