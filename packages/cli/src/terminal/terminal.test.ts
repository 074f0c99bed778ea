import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import type { ExecRun, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { CLI, TestServer } from "../../../../test/support/server/test-server.ts";
import { Typist } from "../testing/typist.ts";

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
/** Runs a command on a terminal, then prints its exit code and the terminal's settings. */
const typist = (line: string): Typist =>
  new Typist(`${line}; echo "exited with $?"; stty -a; echo over`, { env: env(), cwd: server.dir });

interface Started extends ChildProcess {
  /** The output so far, and all of it after the end. */
  out(): string;
  finished: Promise<{ code: number; out: string; err: string }>;
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
  const finished = once(child, "close").then(([code]) => ({ code: code as number, out, err }));
  return Object.assign(child, { finished, out: () => out });
}
const run = (...words: string[]) => start(...words).finished;

/** stty's output for line editing, echo and output processing switched on. */
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
  it("opens a terminal of the local size, echoes once, exits with the shell's code and restores the local terminal", async () => {
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
    await person.sees("exited with 7");
    expect(await person.sees("over")).toMatch(restored);
  });

  it("forwards control keys and size changes", async () => {
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
    await person.sees("exited with 0");
  });

  it("survives a killed and restarted server, and reports a long outage", async () => {
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
    await person.sees("exited with 0");
  });

  it("accepts a user and a shell, and requires a terminal", async () => {
    await using person = typist(command("shell", "-u", "root", "--shell", "/bin/sh", "box"));
    await person.sees("# ");
    person.type("id -u; echo $0\r");
    expect(await person.sees("/bin/sh\r\n")).toContain("\r\n0\r\n");
    person.type("exit\r");
    await person.sees("exited with 0");
    expect(await run("shell", "box")).toMatchObject({
      code: 2,
      err: expect.stringContaining("the input device is not a TTY"),
    });
  });
});

describe("a session", () => {
  it("keeps running after the detach keys, and shows its earlier output when attached again", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    person.type("X=remembered; echo first-$((1 + 1))\r");
    await person.sees("first-2");
    person.type("\x10\x11");
    const [, id = ""] =
      /holdfast attach (\w+)/.exec(await person.sees(/'holdfast attach \w+' attaches again/)) ?? [];
    await person.sees("exited with 0");
    expect(await person.sees("over")).toMatch(restored);
    expect((await holdfast.execs.get(id)).info.status).toBe("running");

    await using later = typist(command("attach", "--detach-keys", "ctrl-a,d", id));
    await later.sees("first-2");
    later.type("echo $X-still\r");
    await later.sees("remembered-still");
    later.type("\x01d");
    await later.sees("exited with 0");
    await using last = typist(command("attach", id));
    await last.sees("remembered-still");
    last.type("exit 9\r");
    await last.sees("exited with 9");
    expect(await run("attach", "--no-stdin", id)).toMatchObject({ code: 9 });
  });

  it("soon forwards keys that only start like the detach keys", async () => {
    await using person = typist(command("exec", "-it", "box", "--", "sh", "-c", "'echo up; exec cat -v'"));
    await person.sees("up");
    person.type("\x10x\r");
    await person.sees("^Px");
    person.type("\x10");
    await person.sees("^P");
    person.type("\x03");
    await person.sees("exited with 130");
  });

  it("can be watched by another client without input, whose exit does not end it", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    const { id } = await newest();
    const watcher = start("attach", "--no-stdin", id);
    person.type("echo seen-by-$((1 + 1))\r");
    await person.sees("seen-by-2");
    await until(() => watcher.out().includes("seen-by-2"));
    watcher.kill("SIGTERM");
    expect((await watcher.finished).code).toBe(143);
    person.type("exit 3\r");
    await person.sees("exited with 3");
  });

  it("that is killed restores the terminal and ends its command", async () => {
    const line = command("exec", "-it", "box", "--", "sh", "-c", '"echo up; sleep 1000"');
    await using person = typist(`sh -c 'echo pid-$$; exec ${line}'`);
    const [, pid = ""] = /pid-(\d+)/.exec(await person.sees(/pid-\d+/)) ?? [];
    await person.sees("up");
    process.kill(Number(pid), "SIGTERM");
    await person.sees("exited with 143");
    expect(await person.sees("over")).toMatch(restored);
    expect((await newest()).info.status).toBe("cancelled");
  });

  it("ends its command when its window is closed", async () => {
    await using person = typist(command("shell", "box"));
    await person.sees("$ ");
    const shell = await newest();
    expect(shell.info.status).toBe("running");
    await person[Symbol.asyncDispose]();
    await until(async () => (await newest()).info.status === "cancelled");
  });

  it("of a CLI that crashes restores the terminal", async () => {
    const crash = "setTimeout(()=>{throw/**/new/**/Error('crash')},3000)";
    const line = `NODE_OPTIONS="--import=data:text/javascript,${crash}" ${command("shell", "box")}`;
    await using person = typist(line);
    await person.sees("crash");
    await person.sees(/exited with [1-9]/);
    expect(await person.sees("over")).toMatch(restored);
    await (await newest()).cancel();
  });
});

describe("holdfast exec", () => {
  it("provides a terminal without input with -t alone, and can detach with a terminal", async () => {
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

  it("forwards every byte of stdin once, across a killed server", async () => {
    const input = randomBytes(40 * 1_048_576);
    const sum = start("exec", "-i", "box", "--", "sh", "-c", "echo up; sleep 1; sha256sum");
    sum.stdin?.end(input);
    await until(() => sum.out() === "up\n");
    await new Promise((resolve) => setTimeout(resolve, 500));
    await restart();
    const expected = createHash("sha256").update(input).digest("hex");
    expect(await sum.finished).toMatchObject({ code: 0, out: `up\n${expected}  -\n`, err: "" });
  });

  it("passes the first Ctrl-C to the command and kills it at the second", async () => {
    const trap = "trap 'echo caught' INT; echo up; while :; do sleep 0.1; done";
    const line = command("exec", "box", "--", "sh", "-c", `"${trap}"`);
    await using person = typist(line);
    await person.sees("up");
    person.type("\x03");
    await person.sees("sent SIGINT to the command; press Ctrl-C again to kill it");
    await person.sees("caught");
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect((await newest()).info.status).toBe("running");
    person.type("\x03");
    await person.sees("exited with 130");
    expect((await newest()).info.status).toBe("cancelled");
  });

  it("ends with the code of a command that handles SIGINT, with and without a terminal", async () => {
    const trap = "trap 'echo cleaned up; exit 7' INT; echo up; while :; do sleep 0.1; done";
    await using person = typist(command("exec", "box", "--", "sh", "-c", `"${trap}"`));
    await person.sees("up");
    person.type("\x03");
    await person.sees("cleaned up");
    await person.sees("exited with 7");
    for (const how of [["exec", "box"], ["run"]]) {
      const piped = start(...how, "--", "sh", "-c", trap);
      await until(() => piped.out() === "up\n");
      piped.kill("SIGINT");
      expect(await piped.finished).toEqual({ code: 7, out: "up\ncleaned up\n", err: "" });
    }
    const plain = start("exec", "box", "--", "sh", "-c", "echo up; exec sleep 1000");
    await until(() => plain.out() === "up\n");
    plain.kill("SIGINT");
    expect((await plain.finished).code).toBe(130);
    expect((await newest()).info).toMatchObject({ status: "exited", signal: "SIGINT" });
  });

  it("exits with the command's code even if the command does not read a long input", async () => {
    const short = start("exec", "-i", "box", "--", "sh", "-c", "exit 6");
    short.stdin?.on("error", () => {});
    short.stdin?.end(randomBytes(8 * 1_048_576));
    expect(await short.finished).toMatchObject({ code: 6, err: "" });
  });
});

describe("the exec commands", () => {
  it("lists, kills and reads execs, even of a deleted sandbox", async () => {
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

  it("accepts signals by name and number", async () => {
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
