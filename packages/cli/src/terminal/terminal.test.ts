import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import type { ExecRun, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { CLI, TestServer } from "../../../test/support/server.ts";
import { Typist } from "./testing/typist.ts";

let server: TestServer;
let holdfast: Holdfast;
let box: Sandbox;

beforeAll(async () => {
  server = await TestServer.start();
  holdfast = server.client();
  box = await holdfast.sandboxes.create({ name: "box" });
});
afterAll(async () => {
  holdfast?.close();
  await server?.[Symbol.asyncDispose]();
});

const env = (): NodeJS.ProcessEnv => ({ ...server.env, TERM: "xterm-256color" });
const command = (...words: string[]): string => [process.execPath, CLI, ...words].join(" ");
/** At a terminal: a command, then the code it left with and how it left the terminal. */
const typist = (line: string): Typist =>
  new Typist(`${line}; echo "left with $?"; stty -a; echo over`, { env: env(), cwd: server.dir });

interface Started extends ChildProcess {
  /** What it wrote so far, and in the end. */
  out(): string;
  said: Promise<{ code: number; out: string; err: string }>;
}

function start(...words: string[]): Started {
  const child = spawn(process.execPath, [CLI, ...words], { env: env() });
  let out = "";
  let err = "";
  child.stdout.on("data", (piece: Buffer) => {
    out += piece.toString();
  });
  child.stderr.on("data", (piece: Buffer) => {
    err += piece.toString();
  });
  const said = once(child, "close").then(([code]) => ({ code: code as number, out, err }));
  return Object.assign(child, { said, out: () => out });
}
const run = (...words: string[]) => start(...words).said;

/** As stty says it: line editing, echo and output processing are on. */
const restored = /[^-]opost .*[^-]icanon .*[^-]echo /s;
async function until(what: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 30_000;
  while (!(await what())) {
    if (performance.now() > deadline) throw new Error(`it never came to be: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
const newest = async (): Promise<ExecRun> => {
  const [exec] = (await box.execs.list({ limit: 1 })).items;
  return holdfast.execs.get(exec?.id ?? "");
};
async function restart(): Promise<void> {
  await server.kill("SIGKILL");
  await server.start();
  holdfast.close();
  holdfast = server.client();
  box = await holdfast.sandboxes.get("box");
}

describe("holdfast shell", () => {
  it("is a terminal of our size, echoes once, exits with the shell's code and leaves ours as it was", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    person.type("stty size; echo $TERM; echo me-$((6 * 7)); tty\r");
    const shown = await person.sees("/dev/pts/");
    expect(shown).toContain("40 100");
    expect(shown).toContain("xterm-256color");
    expect(shown).toContain("me-42");
    expect(shown.match(/stty size/g)).toHaveLength(1);
    expect(shown).not.toContain("\r\r\n");
    await person.sees("$ ");
    person.type("exit 7\r");
    await person.sees("left with 7");
    expect(await person.sees("over")).toMatch(restored);
  });

  it("passes keys on that would be signals, and the size when it changes", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    person.type("sleep 1000\r");
    await person.sees("sleep 1000");
    person.type("\x03");
    await person.sees("$ ");
    person.type("echo code-$?\r");
    await person.sees("code-130");
    await person.resize(50, 120);
    for (let shown = ""; !shown.includes("50 120"); ) {
      person.type("stty size; echo so-it-is-$((1 + 1))\r");
      shown = await person.sees("so-it-is-2");
    }
    person.type("\x04");
    await person.sees("left with 0");
  });

  it("outlives a server that is killed and comes back, and says so where that takes long", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    person.type("echo before-$((1 + 1))\r");
    await person.sees("before-2");
    const { id } = await newest();
    await server.kill("SIGKILL");
    await person.sees("reconnecting…");
    await restart();
    await person.sees("connected");
    person.type("echo after-$((1 + 1))\r");
    await person.sees("after-2");
    expect((await newest()).id).toBe(id);
    person.type("exit\r");
    await person.sees("left with 0");
  });

  it("takes root, and a shell of one's own; without a terminal it is refused", async () => {
    await using person = typist(command("shell", "-u", "root", "--shell", "/bin/sh", "box"));
    await person.sees("# ");
    person.type("id -u; echo $0\r");
    expect(await person.sees("/bin/sh\r\n")).toContain("\r\n0\r\n");
    person.type("exit\r");
    await person.sees("left with 0");
    expect(await run("shell", "box")).toMatchObject({
      code: 2,
      err: expect.stringContaining("the input device is not a TTY"),
    });
  });
});

describe("a session", () => {
  it("is left by the detach keys, runs on, and is come back to with what it showed", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    person.type("X=remembered; echo first-$((1 + 1))\r");
    await person.sees("first-2");
    person.type("\x10\x11");
    const [, id = ""] =
      /holdfast attach (\w+)/.exec(await person.sees(/'holdfast attach \w+' comes back/)) ?? [];
    await person.sees("left with 0");
    expect(await person.sees("over")).toMatch(restored);
    expect((await holdfast.execs.get(id)).info.status).toBe("running");

    await using later = typist(command("attach", "--detach-keys", "ctrl-a,d", id));
    await later.sees("first-2");
    later.type("echo $X-still\r");
    await later.sees("remembered-still");
    later.type("\x01d");
    await later.sees("left with 0");
    await using last = typist(command("attach", id));
    await last.sees("remembered-still");
    last.type("exit 9\r");
    await last.sees("left with 9");
    expect(await run("attach", "--no-stdin", id)).toMatchObject({ code: 9 });
  });

  it("keeps keys that only began to be the detach keys from nobody for long", async () => {
    await using person = typist(command("exec", "-it", "box", "--", "sh", "-c", "'echo up; exec cat -v'"));
    await person.sees("up");
    person.type("\x10x\r");
    await person.sees("^Px");
    person.type("\x10");
    await person.sees("^P");
    person.type("\x03");
    await person.sees("left with 130");
  });

  it("can be watched by another, who types nothing and whose leaving ends nothing", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    const { id } = await newest();
    const watcher = start("attach", "--no-stdin", id);
    person.type("echo seen-by-$((1 + 1))\r");
    await person.sees("seen-by-2");
    await until(() => watcher.out().includes("seen-by-2"));
    watcher.kill("SIGTERM");
    expect((await watcher.said).code).toBe(143);
    person.type("exit 3\r");
    await person.sees("left with 3");
  });

  it("that is killed gives the terminal back and takes its command along", async () => {
    const line = command("exec", "-it", "box", "--", "sh", "-c", '"echo up; sleep 1000"');
    await using person = typist(`sh -c 'echo pid-$$; exec ${line}'`);
    const [, pid = ""] = /pid-(\d+)/.exec(await person.sees(/pid-\d+/)) ?? [];
    await person.sees("up");
    process.kill(Number(pid), "SIGTERM");
    await person.sees("left with 143");
    expect(await person.sees("over")).toMatch(restored);
    expect((await newest()).info.status).toBe("cancelled");
  });

  it("whose window is closed takes its command along", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    const shell = await newest();
    expect(shell.info.status).toBe("running");
    await person[Symbol.asyncDispose]();
    await until(async () => (await newest()).info.status === "cancelled");
  });

  it("of a program of ours that crashes gives the terminal back", async () => {
    const crash = "setTimeout(()=>{throw/**/new/**/Error('crash')},3000)";
    const line = `NODE_OPTIONS="--import=data:text/javascript,${crash}" ${command("shell", "box")}`;
    await using person = typist(line);
    await person.sees("crash");
    await person.sees(/left with [1-9]/);
    expect(await person.sees("over")).toMatch(restored);
    await (await newest()).cancel();
  });
});

describe("holdfast exec", () => {
  it("gives a terminal without input where only that is asked for, and detaches with one", async () => {
    const tty = await run("exec", "-t", "box", "--", "sh", "-c", "test -t 1 && stty size");
    expect(tty).toMatchObject({ code: 0, out: "24 80\r\n" });
    const { code, out } = await run("exec", "-dt", "box", "--", "sh", "-c", "read x; exit 4");
    expect(code).toBe(0);
    const left = await holdfast.execs.get(out.trim());
    expect(left.info).toMatchObject({ status: "running", tty: true });
    await left.write("\n");
    expect((await left.result()).exitCode).toBe(4);
    expect((await run("exec", "-it", "box", "--", "true")).err).toContain("not a TTY");
  });

  it("passes on every byte of stdin once, across a server that is killed meanwhile", async () => {
    const input = randomBytes(40 * 1_048_576);
    const sum = start("exec", "-i", "box", "--", "sh", "-c", "sleep 1; sha256sum");
    sum.stdin?.end(input);
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    await restart();
    const expected = createHash("sha256").update(input).digest("hex");
    expect(await sum.said).toMatchObject({ code: 0, out: `${expected}  -\n`, err: "" });
  });

  it("exits with the command's code also where the command reads nothing of a long input", async () => {
    const short = start("exec", "-i", "box", "--", "sh", "-c", "exit 6");
    short.stdin?.on("error", () => {});
    short.stdin?.end(randomBytes(8 * 1_048_576));
    expect(await short.said).toMatchObject({ code: 6, err: "" });
  });
});

describe("the ledger", () => {
  it("is listed, ended and read, also of a sandbox that is gone", async () => {
    const other = await holdfast.sandboxes.create({ name: "other" });
    await other.exec("echo one; exit 3");
    const { out } = await run("exec", "-d", "other", "--", "sh", "-c", "echo two; sleep 1000");
    const id = out.trim();
    expect((await run("execs", "other")).out).toMatch(
      /^ID +STATUS +EXIT +STARTED +DURATION +COMMAND\nexe_\w+ +running .*sleep 1000\nexe_\w+ +exited +3 .*echo one; exit 3\n$/,
    );
    const listed = JSON.parse((await run("execs", "--json", "other")).out) as { id: string }[];
    expect(listed.map((exec) => exec.id)).toContain(id);
    expect((await run("logs", "other")).out).toBe("two\n");
    expect(await run("kill", "-s", "nonsense", id)).toMatchObject({ code: 2 });
    expect(await run("kill", id, "nobody")).toMatchObject({ code: 1, out: `${id}\n` });
    expect((await holdfast.execs.get(id)).info.status).toBe("cancelled");
    await other.delete();
    expect(await run("logs", "-f", id)).toMatchObject({ code: 0, out: "two\n", err: "" });
  });

  it("knows signals by their names and numbers", async () => {
    const { out } = await run(
      "exec",
      "-d",
      "box",
      "--",
      "sh",
      "-c",
      "trap 'exit 11' INT; while :; do sleep 0.1; done",
    );
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect((await run("kill", "-s", "int", out.trim())).code).toBe(0);
    expect((await (await holdfast.execs.get(out.trim())).result()).exitCode).toBe(11);
  });
});
