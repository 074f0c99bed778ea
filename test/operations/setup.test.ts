import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";

const SCRIPTS = join(import.meta.dirname, "..", "..", "scripts");

/** A stand-in for npm: records its arguments, takes a moment, and creates the files of an installation. */
const NPM = `#!/bin/sh
echo "$*" >> calls
sleep 0.3
if [ -e slow ]; then echo $$ > leader; sleep 60; fi
if [ -e no-network ]; then echo "npm error network"; exit 1; fi
mkdir -p node_modules/.bin && : > node_modules/.bin/node
`;

/** A checkout that contains only the scripts, with a stand-in for npm. */
function checkout() {
  const root = mkdtempSync(join(tmpdir(), "holdfast-setup-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  for (const directory of ["tools", "packages/one", "bench", ".holdfast"]) {
    mkdirSync(join(root, directory), { recursive: true });
  }
  cpSync(SCRIPTS, join(root, "scripts"), { recursive: true });
  const write = (path: string, content: unknown) =>
    writeFileSync(join(root, path), typeof content === "string" ? content : JSON.stringify(content));
  write("tools/npm", NPM);
  chmodSync(join(root, "tools/npm"), 0o755);
  for (const path of ["package.json", "package-lock.json", "packages/one/package.json"]) write(path, {});
  write(".npmrc", "");
  const npmCalls = () =>
    existsSync(join(root, "calls")) ? readFileSync(join(root, "calls"), "utf8").trim().split("\n") : [];
  return { root, write, npmCalls, setup: () => setup(root) };
}

function startSetup(root: string) {
  const env = { ...process.env, PATH: `${join(root, "tools")}:/usr/bin:/bin` };
  return spawn(process.execPath, [join(root, "scripts/setup.mjs"), "check"], { cwd: root, env });
}

async function setup(root: string): Promise<{ code: number; output: string }> {
  const child = startSetup(root);
  const exited = new Promise<number>((resolve) => child.once("close", (code) => resolve(code ?? -1)));
  const [code, output] = await Promise.all([exited, text(child.stderr)]);
  // How long a step took depends on the machine.
  return { code, output: output.replaceAll(/^setup: .*: \d+ s\n/gm, "") };
}

const startTime = (pid: number) =>
  readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ")[19];

/** The processes of a group that run. A process that has ended may still have an entry in /proc. */
const runningIn = (group: number): string[] =>
  readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const [state, , itsGroup] =
          readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
        return Number(itsGroup) === group && state !== "Z";
      } catch {
        return false;
      }
    });

test("dependencies are installed once, and the next set-up is silent", async () => {
  const { setup, npmCalls } = checkout();
  expect((await setup()).output).toBe("setup: installing dependencies (npm)\n");
  expect(await setup()).toEqual({ code: 0, output: "" });
  expect(npmCalls()).toHaveLength(1);
  expect(npmCalls()[0]).toMatch(/^ci /);
});

test("a changed dependency or lock file is installed, a changed script is not", async () => {
  const { setup, npmCalls, write } = checkout();
  await setup();
  write("package.json", { scripts: { start: "something else" } });
  await setup();
  expect(npmCalls()).toHaveLength(1);
  write("packages/one/package.json", { dependencies: { left: "1" } });
  await setup();
  expect(npmCalls()).toHaveLength(2);
  write("package-lock.json", { lockfileVersion: 3 });
  await setup();
  expect(npmCalls()).toHaveLength(3);
});

test("nothing is installed under a running server, and the message says what to do", async () => {
  const { setup, npmCalls, write } = checkout();
  write(".holdfast/server-1.json", { pid: process.pid, startTime: startTime(process.pid) });
  const { code, output } = await setup();
  expect(code).toBe(1);
  expect(output).toContain(`kill ${process.pid}`);
  expect(npmCalls()).toEqual([]);
});

test("a server that has exited, or whose pid was reused, does not block the setup", async () => {
  const { setup, npmCalls, write } = checkout();
  write(".holdfast/server-1.json", { pid: process.pid, startTime: "1" });
  write(".holdfast/server-2.json", { pid: 2 ** 22 + 1, startTime: "1" });
  write(".holdfast/server-3.json", "{");
  expect((await setup()).code).toBe(0);
  expect(npmCalls()).toHaveLength(1);
});

test("a server that has exited does not block the setup, although its parent has not reaped it", async () => {
  const { setup, write } = checkout();
  const parent = spawn("sh", ["-c", "sleep 60 & echo $!; exec sleep 60"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const pid = Number(String((await once(parent.stdout, "data"))[0]));
  const readProc = (of: number | undefined, file: string) => readFileSync(`/proc/${of}/${file}`, "utf8");
  // The shell would reap its child. The program that replaces it does not know of the child.
  await expect.poll(() => readProc(parent.pid, "comm")).toBe("sleep\n");
  process.kill(pid, "SIGKILL");
  await expect.poll(() => readProc(pid, "stat")).toContain(") Z ");
  write(".holdfast/server-1.json", { pid, startTime: startTime(pid) });
  expect((await setup()).code).toBe(0);
  parent.kill("SIGKILL");
  await once(parent, "exit");
});

test("a running server does not block a setup with nothing to do", async () => {
  const { setup, write } = checkout();
  await setup();
  write(".holdfast/server-1.json", { pid: process.pid, startTime: startTime(process.pid) });
  expect(await setup()).toEqual({ code: 0, output: "" });
});

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
] as const)(
  "a set-up that is stopped by %s ends what it runs, says so, and can be repeated",
  async (signal, code) => {
    const { root, write } = checkout();
    write("slow", "");
    const child = startSetup(root);
    const output = text(child.stderr);
    await expect.poll(() => existsSync(join(root, "leader")), { timeout: 20_000 }).toBe(true);
    const leader = Number(readFileSync(join(root, "leader"), "utf8"));
    child.kill(signal);
    expect(await once(child, "exit")).toEqual([code, null]);
    expect(await output).toBe(
      "setup: installing dependencies (npm)\n\nSet-up stopped; 'npm start' continues it.\n",
    );
    expect(runningIn(leader)).toEqual([]);
    rmSync(join(root, "slow"));
    expect((await setup(root)).code).toBe(0);
  },
);

test("two set-ups at once install once", async () => {
  const { setup, npmCalls } = checkout();
  const both = await Promise.all([setup(), setup()]);
  expect(both.map(({ code }) => code)).toEqual([0, 0]);
  expect(npmCalls()).toHaveLength(1);
});

test("a failed installation is reported and retried", async () => {
  const { root, setup, npmCalls, write } = checkout();
  write("no-network", "");
  const failed = await setup();
  expect(failed.code).toBe(1);
  expect(failed.output).toContain("npm error network");
  rmSync(join(root, "no-network"));
  expect((await setup()).code).toBe(0);
  expect(npmCalls()).toHaveLength(2);
});
