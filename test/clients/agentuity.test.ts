import { execFile, execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { RequestProxy } from "../support/faults/request-proxy.ts";
import { TestServer } from "../support/server/test-server.ts";

const CLIENT = join(import.meta.dirname, "..", "support", "clients", "agentuity-client.mjs");
const LONG_MS = 120_000;
const ROUNDS = 4;

/** Healing is delayed, so that broken sandboxes stay broken; failures are noticed within seconds. */
const NUMBERS = { healAfterMs: 3_600_000, observeEveryMs: 500, maintainEveryMs: 500, proofDeadlineMs: 4_000 };

let server: TestServer;
let holdfast: Holdfast;
beforeAll(async () => {
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(NUMBERS) });
  holdfast = server.client();
});
afterAll(async () => {
  holdfast.close();
  await server[Symbol.asyncDispose]();
});

const run = promisify(execFile);

/** Runs a scenario with the client in a separate process, against the server or a proxy in front of it. */
async function play<Result>(
  scenario: string,
  options: object = {},
  at = server.url,
  key = server.key,
): Promise<Result> {
  const base = `${at}/compat/agentuity`;
  const env = {
    PATH: process.env.PATH,
    AGENTUITY_SANDBOX_URL: base,
    AGENTUITY_STREAM_URL: `${base}/stream`,
    AGENTUITY_SDK_KEY: key,
  };
  const args = [CLIENT, scenario, JSON.stringify(options)];
  const { stdout } = await run(process.execPath, args, { env, timeout: LONG_MS });
  return JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "") as Result;
}

interface Attempt {
  value?: unknown;
  thrown?: { tag: string; status: number; message: string };
  ms?: number;
}
const refused = (status: number, code: string) => ({
  thrown: expect.objectContaining({
    status,
    message: expect.stringMatching(new RegExp(`\\(${code}, req_\\w+\\)$`)),
  }),
  ms: expect.any(Number),
});

describe("@agentuity/core, unmodified", () => {
  it("creates, finds, lists, pauses, resumes and destroys sandboxes", { timeout: LONG_MS }, async () => {
    const name = "ag-life";
    const answer = await play<Record<string, Record<string, unknown>>>("lifecycle", { name });
    const { id } = answer;
    expect(answer.info).toMatchObject({
      ...{ sandboxId: id, name, description: "a sandbox", status: "idle", mode: "interactive" },
      metadata: { team: "a", nested: { list: [1, "ü"] } },
      resources: { memory: "512Mi", cpu: "500m" },
      timeout: { idle: "10m", execution: "1h" },
      runtime: { id: "host" },
    });
    expect(answer.again).toEqual(refused(409, "name_taken"));
    expect(answer.connected).toBe(id);
    expect(answer.env).toMatchObject({ stdout: "hello\ngiven/home/user\n1000\n", exitCode: 0 });
    expect(answer.set).toEqual({ OTHER: "set" });
    expect(answer.changed).toMatchObject({ stdout: "[] set\n" });
    expect(answer.listed).toMatchObject({ total: 1, sandboxes: [{ sandboxId: id, name }] });
    expect(answer.resolved).toMatchObject({ id, name, status: "idle" });
    expect(answer.rows).toMatchObject({ total: 1, sandboxes: [{ id, name, description: "a sandbox" }] });
    expect(answer.states).toEqual(["idle", "suspended", "suspended", "idle"]);
    expect(answer.gone).toEqual(refused(404, "sandbox_not_found"));
    expect(answer.deleted).toBe("deleted");
    expect(answer.late).toEqual(refused(410, "sandbox_gone"));
    expect(answer.nobody).toEqual(refused(404, "sandbox_not_found"));
    expect(answer.noCommand).toMatchObject({ thrown: { tag: "SandboxNotFoundError" } });
  });

  it("runs commands, and reads their output and exit codes", { timeout: LONG_MS }, async () => {
    const answer = await play<Record<string, unknown>>("commands", { name: "ag-commands" });
    const numbers = Array.from({ length: 400_000 }, (_, index) => `${index + 1}\n`).join("");
    expect(answer).toMatchObject({
      both: { status: "failed", exitCode: 3, stdout: "out\n", stderr: "err\n" },
      missing: { status: "failed", exitCode: 127 },
      late: { status: "timeout" },
      withFile: { status: "completed", exitCode: 0, stdout: "from the file\n" },
      large: createHash("sha256").update(numbers).digest("hex"),
      polled: "completed",
      streamed: "later\n",
      hasErr: false,
      left: { thrown: expect.anything() },
      wentOn: ["completed", 0],
      counted: 2,
      unknown: refused(404, "exec_not_found"),
    });
  });

  it("writes, reads, lists and removes files, and moves trees as archives", {
    timeout: LONG_MS,
  }, async () => {
    const answer = await play<Record<string, unknown>>("files", { name: "ag-files" });
    const entry = { isDir: false, mode: "0644", size: 0 };
    expect(answer).toMatchObject({
      ...{ written: 3, read: "one", empty: "", same: true, below: ["one.txt"] },
      listed: expect.arrayContaining([
        { ...entry, path: "a", isDir: true, mode: "0755" },
        { ...entry, path: "empty" },
        expect.objectContaining({ path: "link", isSymlink: true, linkTarget: "a/one.txt" }),
      ]),
      wrong: refused(404, "file_not_found"),
      outside: refused(400, "invalid_path"),
      noFile: { thrown: { message: expect.stringMatching(/404 .*FILE_NOT_FOUND/) } },
      noParent: refused(404, "file_not_found"),
      removed: [{ found: true }, { found: false }],
      notEmpty: refused(409, "file_conflict"),
      notADirectory: refused(409, "file_conflict"),
      emptied: [{ found: true }, { found: false }],
      copied: { stdout: "./a 700\n./sub/b 644\n1\n2\n", exitCode: 0 },
      zip: { thrown: { message: expect.stringMatching(/501 .*NOT_SUPPORTED/) } },
    });
  });

  it("pauses and resumes repeatedly, keeping files and running jobs", {
    timeout: LONG_MS,
  }, async () => {
    const answer = await play<{
      seen: unknown[];
      ids: string[];
      executions: string[];
      events: string[];
      kept: string[];
      listed: unknown[];
    }>("jobs", { name: "ag-jobs", rounds: ROUNDS });
    expect(answer.seen).toEqual(
      Array.from({ length: ROUNDS }, (_, index) => ({
        status: "suspended",
        asleep: { box: "suspended", job: "running" },
        // In every second round the sandbox was already resumed.
        autoResumed: index % 2 === 0,
        alive: 0,
      })),
    );
    expect(answer.kept).toHaveLength(ROUNDS);
    expect(answer).toMatchObject({ stopped: "cancelled", forced: "cancelled", sorted: true });
    const [counting, brief, stubborn] = answer.ids;
    expect(answer.listed).toEqual([
      [stubborn, "cancelled"],
      [brief, "failed"],
      [counting, "cancelled"],
    ]);
    expect(answer.ids.every((id) => id.startsWith("job_") && !answer.executions.includes(id))).toBe(true);
    // The timeline has all of these events.
    expect(answer.events.slice(0, 3)).toEqual(["sandbox.created", "sandbox.launched", "sandbox.ready"]);
    for (const type of ["sandbox.standby", "sandbox.woke"])
      expect(answer.events.filter((each) => each === type)).toHaveLength(ROUNDS);
  });

  it("creates checkpoints, starts sandboxes from them, and gets typed errors for unsupported options", {
    timeout: LONG_MS,
  }, async () => {
    const answer = await play<Record<string, unknown>>("checkpoints", { name: "ag-points" });
    expect(answer).toEqual({
      made: { name: "first", parent: "" },
      listed: ["first"],
      again: refused(409, "checkpoint_exists"),
      restored: refused(501, "not_supported"),
      state: expect.objectContaining({ stdout: "before\n" }),
      left: [],
      snapshot: refused(501, "not_supported"),
    });
  });

  it("runs one-shots, with stdin, and leaves no sandbox behind", { timeout: LONG_MS }, async () => {
    const answer = await play<{ ids: string[] }>("oneshots");
    expect(answer).toMatchObject({
      plain: { exitCode: 4, stdout: "out\n", stderr: "err\n" },
      fed: { exitCode: 0, stdout: "70003\ndone\n" },
      unended: { exitCode: 0, stdout: "first\n" },
      slow: { exitCode: 0, stdout: "given\nend\n" },
      piped: "given\nend\n",
      killed: { exitCode: 1 },
      refused: refused(501, "not_supported"),
      after: { status: "terminated", exitCode: 4, mode: "oneshot" },
    });
    const { items } = await holdfast.sandboxes.list({ limit: 1_000 });
    expect(items.filter(({ id }) => answer.ids.includes(id))).toEqual([]);
  });

  it("opens a port of a sandbox to the public", { timeout: LONG_MS }, async () => {
    const answer = await play("port", { name: "ag-port" });
    expect(answer).toEqual({ networkPort: 3_000, answer: "hello from /page" });
  });

  it("shares one namespace with Holdfast's own API", { timeout: LONG_MS }, async () => {
    const box = await holdfast.sandboxes.create({ name: "ag-shared" });
    const [ran] = await play<{ id: string }[]>("execute", {
      id: "ag-shared",
      command: ["sh", "-c", "exit 5"],
    });
    expect(ran).toMatchObject({ status: "failed", exitCode: 5 });
    expect((await (await box.execs.get(ran?.id ?? "")).result()).exitCode).toBe(5);
    await box.delete();
  });
});

describe("waiting", () => {
  it("for a command is one held request", { timeout: LONG_MS }, async () => {
    await using proxy = await RequestProxy.toUrl(server.url);
    const box = await holdfast.sandboxes.create();
    const [ran] = await play<unknown[]>("execute", { id: box.id, command: ["sleep", "4"] }, proxy.url);
    expect(ran).toMatchObject({ status: "completed", exitCode: 0 });
    expect(proxy.countOf(/^POST .*\/execute/)).toBe(1);
    expect(proxy.countOf(/^GET .*\/sandbox\/execution\/.*wait=5m/)).toBe(1);
    // Besides these, only the sandbox itself was requested.
    expect(proxy.requests).toHaveLength(3);
    await box.delete();
  });

  it("for a one-shot is a handful of requests, however long it takes", { timeout: LONG_MS }, async () => {
    await using proxy = await RequestProxy.toUrl(server.url);
    const ran = await play("run", { command: ["sh", "-c", "sleep 4; echo end"] }, proxy.url);
    expect(ran).toEqual({ exitCode: 0, stdout: "end\n" });
    expect(proxy.countOf(/^POST .*\/sandbox$/)).toBe(1);
    expect(proxy.countOf(/^GET .*\/sandbox\/execution\//)).toBe(1);
    expect(proxy.countOf(/^GET .*\/sandbox\/status\//)).toBe(1);
    expect(proxy.countOf(/^GET .*\/streams\//)).toBe(2);
    expect(proxy.requests).toHaveLength(5);
  });

  it("for a command continues across a server crash", { timeout: LONG_MS }, async () => {
    await using own = await TestServer.start();
    await using proxy = await RequestProxy.toUrl(own.url);
    const client = own.client();
    const { id } = await client.sandboxes.create();
    client.close();
    const command = ["sh", "-c", "echo ran >> ran; sleep 4; exit $(grep -c ran ran)"];
    const playing = play<unknown[]>("execute", { id, command }, proxy.url, own.key);
    await vi.waitFor(() => expect(proxy.countOf(/^GET .*wait=5m/)).toBe(1), { timeout: 20_000, interval: 5 });
    await own.kill("SIGKILL");
    await own.start();
    proxy.retarget(own.url);
    const [ran] = await playing;
    // The exit code is the number of runs.
    expect(ran).toMatchObject({ status: "failed", exitCode: 1 });
  });

  it("for a status ends when it is reached, or at the timeout", { timeout: LONG_MS }, async () => {
    const answer = await play<{ ms: number }>("waiting", { name: "ag-waiting" });
    expect(answer).toMatchObject({ busy: "running", idle: "idle", ended: "completed", never: "idle" });
    expect(answer.ms).toBeGreaterThanOrEqual(390);
  });
});

describe("a connection that breaks before the answer", () => {
  const EXECUTE = /^POST .*\/execute/;
  const counting = (file: string) => ["sh", "-c", `echo ran >> ${file}`];
  const linesIn = async (box: Sandbox, file: string) =>
    (await box.exec(`cat ${file}`)).stdout.trimEnd().split("\n").length;

  it("does not make a command run twice, although the client sends it again", {
    timeout: LONG_MS,
  }, async () => {
    await using proxy = await RequestProxy.toUrl(server.url);
    const box = await holdfast.sandboxes.create();
    const pid = server.keeperPid(box.id);
    // The command reaches a stopped keeper: it is started, but no response is sent.
    proxy.beforePassing = (request) => {
      if (EXECUTE.test(request) && proxy.countOf(EXECUTE) === 1) process.kill(pid, "SIGSTOP");
    };
    const playing = play<unknown[]>("execute", { id: box.id, command: counting("dropped") }, proxy.url);
    const patient = { timeout: 30_000, interval: 5 };
    try {
      await vi.waitFor(async () => expect((await box.execs.list()).items).toHaveLength(1), patient);
      proxy.cut();
      await vi.waitFor(() => expect(proxy.countOf(EXECUTE)).toBe(2), patient);
    } finally {
      process.kill(pid, "SIGCONT");
    }
    const [ran] = await playing;
    expect(ran).toMatchObject({ status: "completed", exitCode: 0 });
    expect(await linesIn(box, "dropped")).toBe(1);
    await box.delete();
  });

  it("during a wake does not make a command run twice", { timeout: LONG_MS }, async () => {
    await using proxy = await RequestProxy.toUrl(server.url);
    const box = await holdfast.sandboxes.create();
    await box.standby();
    const playing = play<unknown[]>("execute", { id: box.id, command: counting("woken") }, proxy.url);
    await vi.waitFor(() => expect(proxy.countOf(EXECUTE)).toBe(1), { timeout: 30_000, interval: 1 });
    proxy.cut();
    const [ran] = await playing;
    expect(ran).toMatchObject({ status: "completed", exitCode: 0 });
    expect(await linesIn(box, "woken")).toBe(1);
    await box.delete();
  });

  it("does not create a second sandbox", { timeout: LONG_MS }, async () => {
    await using proxy = await RequestProxy.toUrl(server.url);
    const body = { metadata: { test: "dropped create" } };
    const ours = async () =>
      (await holdfast.sandboxes.list({ limit: 1_000 })).items.filter(({ labels }) =>
        Object.values(labels).join("").includes("dropped create"),
      );
    const playing = play<{ id: string }>("create", { body }, proxy.url);
    await vi.waitFor(async () => expect(await ours()).toHaveLength(1), { timeout: 20_000, interval: 1 });
    proxy.cut();
    const made = await playing;
    const found = await ours();
    expect(found.map(({ id }) => id)).toEqual([made.id]);
    await (await holdfast.sandboxes.get(made.id)).delete();
  });

  it("is not assumed for identical commands: each runs", { timeout: LONG_MS }, async () => {
    const box = await holdfast.sandboxes.create();
    const command = counting("twice");
    await play("execute", { id: box.id, command, times: 3 });
    await play("execute", { id: box.id, command });
    expect(await linesIn(box, "twice")).toBe(4);
    await box.delete();
  });
});

describe("a sandbox that is broken from outside", () => {
  interface Broken {
    execute: Attempt;
    list: Attempt;
    read: Attempt;
    status: string;
    events: { type: string; message: string }[];
  }
  const PATHS = /holdfast-e2e|\/sandboxes\/sbx_|\/var\/lib/;

  async function broken(breakIt: (box: Sandbox) => void): Promise<Broken> {
    const box = await holdfast.sandboxes.create();
    await box.files.write("/home/user/a", "kept");
    breakIt(box);
    await vi.waitFor(async () => expect((await box.refresh()).status).not.toBe("ready"), {
      timeout: 20_000,
      interval: 50,
    });
    const answer = await play<Broken>("broken", { id: box.id });
    await box.delete();
    return answer;
  }

  it.each([
    ["its root unmounted", unmount, /sandbox_degraded/, "sandbox.degraded"],
    ["its keeper stopped", signalled("SIGSTOP"), /sandbox_degraded/, "sandbox.degraded"],
    ["its keeper killed", signalled("SIGKILL"), /sandbox_failed/, "sandbox.failed"],
  ])(
    "with %s answers every call with a typed error, and its events contain the reason",
    { timeout: LONG_MS },
    async (_how, breakIt, code, event) => {
      const { execute, list, read, status, events } = await broken(breakIt);
      expect(execute.thrown?.message).toMatch(code);
      expect(execute.ms).toBeLessThan(30_000);
      // Existing files of a failed sandbox can be read; a failure of Holdfast is never reported as a missing file.
      for (const { thrown } of [list, read]) if (thrown !== undefined) expect(thrown.message).toMatch(code);
      if (list.thrown === undefined) expect(list.value).toContain("a");
      if (read.thrown === undefined) expect(read.value).toBe("kept");
      expect(JSON.stringify([execute, list, read, events])).not.toMatch(PATHS);
      expect(["idle", "running"]).not.toContain(status);
      expect(events.map(({ type }) => type)).toContain(event);
    },
  );

  it("with its root unmounted never reports a file as missing, whether or not the failure was detected", {
    timeout: LONG_MS,
  }, async () => {
    const box = await holdfast.sandboxes.create();
    await box.files.write("/home/user/a", "kept");
    unmount(box);
    const { list, read } = await play<Broken>("broken", { id: box.id });
    for (const { thrown } of [list, read])
      if (thrown !== undefined) expect(thrown.message).toMatch(/sandbox_degraded/);
    if (list.thrown === undefined) expect(list.value).toContain("a");
    if (read.thrown === undefined) expect(read.value).toBe("kept");
    await box.delete();
  });

  it("ends its running command while a client waits for it", {
    timeout: LONG_MS,
  }, async () => {
    const box = await holdfast.sandboxes.create();
    const playing = play<unknown[]>("execute", { id: box.id, command: ["sleep", "600"] });
    await vi.waitFor(async () => expect((await box.execs.list()).items[0]?.status).toBe("running"), {
      timeout: 20_000,
    });
    process.kill(server.keeperPid(box.id), "SIGKILL");
    const [ran] = await playing;
    expect(ran).toMatchObject({ status: "failed" });
    expect(ran).not.toHaveProperty("exitCode");
    await box.delete();
  });

  function signalled(signal: NodeJS.Signals) {
    return (box: Sandbox): void => {
      process.kill(server.keeperPid(box.id), signal);
    };
  }

  function unmount(box: Sandbox): void {
    execFileSync("umount", ["-l", join(server.dir, "sandboxes", box.id, "root")]);
  }
});
