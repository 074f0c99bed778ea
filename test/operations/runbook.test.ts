import { readFileSync } from "node:fs";
import { ALERT_KINDS } from "@holdfast/contract";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { type Block, passagesOf, RUNBOOK } from "../support/runbook/document.ts";
import { SCENES } from "../support/runbook/scenes.ts";
import { Shell } from "../support/runbook/shell.ts";
import { TestServer } from "../support/server/test-server.ts";

const isWhole = (value: unknown): value is number => Number.isInteger(value) && Number(value) >= 0;
const whole = expect.toSatisfy(isWhole, "a whole number");
const number = expect.toSatisfy((value) => typeof value === "number" && value >= 0, "a number");
const text = expect.any(String);
const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);

/** Runs the commands of the operators' existing runbook for stuck and leaked sandboxes, exactly as written there. */
describe("the commands of the operators' runbook", () => {
  let server: TestServer;
  let shell: Shell;
  beforeAll(async () => {
    server = await TestServer.start({
      HOLDFAST_PROFILE: "runbook",
      HOLDFAST_NUMBERS_JSON: '{"pressureIdleMs":0,"alertRunningMs":100,"alertEveryMs":100,"alertForMs":0}',
    });
    shell = new Shell(server);
  });
  afterAll(async () => {
    shell[Symbol.dispose]();
    await server[Symbol.asyncDispose]();
  });

  /** Sends a request and returns the status and the body. */
  async function curl(method: string, path: string, key = "$HOLDFAST_API_KEY") {
    const { code, output } = await shell.run(
      `curl -s -X ${method} -w '\\n%{http_code}' -H "Authorization: Bearer ${key}" "$HOLDFAST_URL/api/sandbox/${path}"`,
    );
    expect(code).toBe(0);
    const end = output.lastIndexOf("\n");
    return { status: Number(output.slice(end + 1)), body: JSON.parse(output.slice(0, end)) as unknown };
  }

  const item = (id: string, status: string) => ({
    ...{ id, status, created_at: time, age_minutes: number },
    ...{ agent_type: null, task_id: null },
  });
  const figures = { cpu_percent: number, memory_mb: number, duration_ms: whole, operations: whole };

  it("count, list and show sandboxes", async () => {
    const client = server.client();
    const box = await client.sandboxes.create({ labels: { agent_type: "coder", task_id: "task-7" } });
    const other = await client.sandboxes.create({ name: "other" });
    expect(await curl("GET", "stats")).toEqual({
      status: 200,
      body: { active: 2, provisioning: 0, terminating: 0, total_created: 2, total_destroyed: 0 },
    });
    const shown = { ...item(box.id, "running"), agent_type: "coder", task_id: "task-7" };
    expect(await curl("GET", "list")).toEqual({ status: 200, body: [shown, item(other.id, "running")] });
    expect(await curl("GET", box.id)).toEqual({ status: 200, body: shown });
    expect(await curl("GET", "other")).toEqual({ status: 200, body: item(other.id, "running") });
    await Promise.all([box.delete(), other.delete()]);
    expect(await curl("GET", "list")).toEqual({ status: 200, body: [] });
    client.close();
  });

  it("report a sandbox without a task and one that is awake for long, because the profile asks for it", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    const { findings } = await box.diagnose({ windowMs: 100 });
    expect(findings.map(({ kind }) => kind)).toContain("no_task");
    const kinds = async () => (await client.alerts.list()).items.map(({ kind }) => kind);
    await vi.waitFor(async () => expect(await kinds()).toContain("running_long"), { timeout: 20_000 });
    await box.delete();
    client.close();
  });

  it("show what a sandbox last did and wrote", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    const before = Date.now();
    await box.exec("echo hello; echo trouble >&2");
    const { status, body } = await curl("GET", `${box.id}/logs`);
    expect(status).toBe(200);
    expect(body).toEqual({ id: box.id, last_activity_at: time, lines: expect.any(Array) });
    const { lines, last_activity_at } = body as { lines: { text: string }[]; last_activity_at: string };
    expect(Date.parse(last_activity_at)).toBeGreaterThanOrEqual(before - 1_000);
    for (const line of lines)
      expect(line).toEqual({
        at: time,
        kind: text,
        text,
        exec_id: expect.toSatisfy((id) => id === null || typeof id === "string"),
      });
    expect(lines).toContainEqual(expect.objectContaining({ kind: "stdout", text: "hello" }));
    expect(lines).toContainEqual(expect.objectContaining({ kind: "stderr", text: "trouble" }));
    expect(lines.some(({ text }) => text.startsWith("sandbox.ready"))).toBe(true);
    await box.delete();
    client.close();
  });

  it("measure a sandbox, also while it sleeps and after it failed", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    await box.exec("head -c 4000000 /dev/urandom > file; sync file");
    const loop = await box.execs.start("while :; do :; done", { timeoutMs: 60_000 });
    await vi.waitFor(
      async () => {
        const { status, body } = await curl("GET", `${box.id}/resources`);
        expect({ status, body }).toEqual({ status: 200, body: figures });
        expect((body as { cpu_percent: number }).cpu_percent).toBeGreaterThan(20);
        expect((body as { operations: number }).operations).toBeGreaterThanOrEqual(2);
      },
      { timeout: 30_000, interval: 500 },
    );
    await loop.cancel();
    await box.standby();
    const idle = { ...figures, cpu_percent: 0, memory_mb: 0 };
    expect(await curl("GET", `${box.id}/resources`)).toEqual({ status: 200, body: idle });
    expect(await curl("GET", box.id)).toMatchObject({ body: { status: "standby" } });
    expect(await curl("GET", "stats")).toMatchObject({ body: { active: 0, provisioning: 0 } });
    await box.exec("true");
    process.kill(server.keeperPid(box.id), "SIGKILL");
    await vi.waitFor(
      async () => expect(await curl("GET", box.id)).toMatchObject({ body: { status: "failed" } }),
      {
        timeout: 20_000,
      },
    );
    expect(await curl("GET", `${box.id}/resources`)).toEqual({ status: 200, body: idle });
    expect((await curl("GET", `${box.id}/logs`)).status).toBe(200);
    await box.delete();
    client.close();
  });

  it("delete a sandbox whatever it is doing, and answer once nothing of it is left", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    await box.execs.start("trap '' TERM; while :; do :; done");
    process.kill(server.keeperPid(box.id), "SIGSTOP");
    const before = (await curl("GET", "stats")).body as { total_destroyed: number };
    const ended = {
      id: box.id,
      status: "terminated",
      attempts: whole,
      next_attempt_at: null,
      last_error: null,
    };
    expect(await curl("DELETE", box.id)).toEqual({ status: 200, body: ended });
    expect(server.leftovers().filter((thing) => thing.includes(box.id))).toEqual([]);
    expect((await curl("GET", box.id)).status).toBe(404);
    expect((await curl("DELETE", box.id)).status).toBe(200);
    const after = (await curl("GET", "stats")).body as { total_destroyed: number };
    expect(after.total_destroyed).toBe(before.total_destroyed + 1);
    client.close();
  });

  const counts = (emergency: boolean) => ({
    ...{ emergency, dry_run: false, removed: whole, put_to_standby: whole, terminating: whole, failed: 0 },
    ...{ duration_ms: number, items: expect.any(Array) },
  });

  it("clean up, and in an emergency suspend idle sandboxes before removing disposable ones", async () => {
    const client = server.client();
    const idle = await client.sandboxes.create({ lifecycle: { onMemoryLoss: "cold-start" } });
    const busy = await client.sandboxes.create({ lifecycle: { disposable: true } });
    const disposable = await client.sandboxes.create({ lifecycle: { disposable: true } });
    await busy.execs.start("sleep 100");
    await idle.files.write("/home/user/kept", "kept");
    expect(await curl("POST", "cleanup")).toEqual({ status: 200, body: counts(false) });
    expect((await disposable.refresh()).status).toBe("ready");

    const { status, body } = await curl("POST", "cleanup/emergency");
    expect(status).toBe(200);
    expect(body).toEqual({ ...counts(true), removed: 1, put_to_standby: 1 });
    const { items } = body as { items: unknown[] };
    expect(items.slice(0, 2)).toEqual([
      { id: idle.id, action: "put_to_standby", rule: "idle", count: 1, message: text },
      { id: disposable.id, action: "removed", rule: "disposable", count: 1, message: text },
    ]);
    expect((await busy.refresh()).status).toBe("ready");
    expect((await idle.refresh()).status).toBe("standby");
    expect(await idle.files.readText("/home/user/kept")).toBe("kept");
    expect((await idle.exec("cat kept")).stdout).toBe("kept");
    expect((await curl("GET", disposable.id)).status).toBe(404);
    await Promise.all([idle.delete(), busy.delete()]);
    client.close();
  });

  it("require a key, and answer 404 for sandboxes that do not exist", async () => {
    const calls: [method: string, path: string][] = [
      ...["stats", "list", "none", "none/logs", "none/resources"].map(
        (path) => ["GET", path] as [string, string],
      ),
      ["DELETE", "none"],
      ["POST", "cleanup"],
      ["POST", "cleanup/emergency"],
    ];
    const error = {
      message: text,
      hint: text,
      retryable: false,
      dispatched: "no",
      request_id: text,
      operation: text,
    };
    for (const [method, path] of calls) {
      const { status, body } = await curl(method, path, "wrong");
      expect({ path, status, body }).toEqual({ path, status: 401, body: { code: "unauthorized", ...error } });
      if (!path.includes("none")) continue;
      const unknown = await curl(method, path);
      expect({ path, ...unknown }).toEqual({
        path,
        status: 404,
        body: { code: "sandbox_not_found", ...error },
      });
    }
  });
});

describe("docs/runbook.md", () => {
  const passages = passagesOf();

  it("has a section with commands for each symptom", () => {
    const headings = readFileSync(RUNBOOK, "utf8").match(/^## .+$/gm) ?? [];
    const covered = new Set(passages.map(({ heading }) => heading));
    for (const heading of headings) expect(covered).toContain(heading.slice(3));
    for (const { scene } of passages) expect(Object.keys(SCENES)).toContain(scene);
    expect(new Set(passages.map(({ scene }) => scene))).toEqual(new Set(Object.keys(SCENES)));
  });

  it("names every kind of alert", () => {
    const document = readFileSync(RUNBOOK, "utf8");
    for (const kind of ALERT_KINDS) expect(document).toContain(`\`${kind}\``);
  });

  it.each([
    "```sh\nls\n```",
    "text\n\n```sh\nls\n```",
    "<!-- expect: x -->\n```sh\nls\n```",
    "```js\n1\n```",
  ])("rejects commands that no test runs, such as %j", (document) => {
    expect(() => passagesOf(document)).toThrow(/^line \d/);
  });

  for (const { heading, scene, blocks } of passages) {
    it(`${heading}: the commands from line ${blocks[0]?.line} work in the scene "${scene}"`, async () => {
      const make = SCENES[scene];
      if (make === undefined) throw new Error(`there is no scene "${scene}"`);
      await using made = await make();
      using shell = new Shell(made.server, made.env);
      for (const block of blocks) await obey(shell, block);
    }, 180_000);
  }
});

/** Runs a block of commands, and compares its output and exit code with the runbook. */
async function obey(shell: Shell, { line, text, expected, exitCode }: Block): Promise<void> {
  const { code, output } = await shell.run(text);
  const where = `line ${line}:\n${text}\n\nprinted:\n${output}\n`;
  expect({ code }, where).toEqual({ code: exitCode });
  for (const words of expected) {
    const pattern = /^\/(.+)\/$/.exec(words)?.[1];
    if (pattern === undefined) expect(output, where).toContain(words);
    else expect(output, where).toMatch(new RegExp(pattern, "m"));
  }
}
