import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { BlaxelStage } from "../support/clients/blaxel-stage.ts";
import type { TestServer } from "../support/server/test-server.ts";

const CLIENT = join(import.meta.dirname, "..", "support", "clients", "blaxel-client.mjs");
const EXAMPLE = join(import.meta.dirname, "..", "..", "examples", "blaxel-drive.mjs");
const VERSIONS = ["blaxel-0.2", "blaxel-0.3"] as const;
type Version = (typeof VERSIONS)[number];

/** Number of rounds. HOLDFAST_BLAXEL_ROUNDS sets a larger number for more confidence. */
const ROUNDS = Number(process.env.HOLDFAST_BLAXEL_ROUNDS ?? 3);
const LONG_MS = 60_000 + ROUNDS * 10_000;
const CALLERS = 16;

let stage: BlaxelStage;
let server: TestServer;
beforeAll(async () => {
  stage = await BlaxelStage.start();
  server = stage.server;
});
afterAll(() => stage[Symbol.asyncDispose]());

const run = promisify(execFile);

const play = <Result>(version: Version, scenario: string, options: object = {}, key?: string) =>
  stage.play<Result>(CLIENT, [version, scenario, JSON.stringify(options)], { key, timeoutMs: LONG_MS });

interface Thrown {
  kind: string;
  text: string;
  code: number;
  errorCode: string;
  requestId: string;
  hint: string;
  retryable: boolean;
  dispatched: string;
}
interface Attempt {
  value?: unknown;
  thrown?: Thrown;
}
const refusedWith = (code: number, errorCode: string) => ({
  thrown: expect.objectContaining({ code, errorCode, requestId: expect.stringMatching(/^req_/) }),
});

describe.each(VERSIONS)("%s, unmodified", (version) => {
  /** Returns a name that only this version's tests use. */
  const own = (name: string) => `${name}-${version.replace("blaxel-0.", "v")}`;

  it(
    "makes the calls of a working day, each as the first call after standby",
    async () => {
      const drive = own("day");
      const options = { name: own("day"), drive, rounds: ROUNDS };
      const rounds = await play<Record<string, unknown>[]>(version, "rounds", options);
      const mount = { driveName: drive, mountPath: "/workspace", drivePath: "/" };
      expect(rounds).toEqual(
        rounds.map(({ text }, index) => ({
          round: index + 1,
          text,
          before: index === 0 ? [] : ["/workspace"],
          mounted: { success: true, driveName: drive, mountPath: "/workspace" },
          after: [mount],
          ran: { status: "completed", exitCode: 0, stdout: `${text}\n` },
          read: `${text}\n`,
          files: expect.arrayContaining([`${index + 1}.txt`]),
          processes: index + 1,
        })),
      );
      expect(rounds).toHaveLength(ROUNDS);
      expect(rounds.at(-1)?.files).toHaveLength(ROUNDS);
    },
    LONG_MS,
  );

  it("passes the loops that were reported to fail on Blaxel", async () => {
    const options = { name: own("rep"), drive: own("rep"), atOnce: 8, rounds: 5, boxes: 3 };
    const { parallel, woken, shared } = await play<Record<string, unknown[]>>(version, "reported", options);
    expect(parallel).toEqual(Array(8).fill(true));
    expect(woken).toEqual(Array(15).fill(true));
    expect(shared?.[0]).toHaveLength(23);
    expect(shared?.[1]).toEqual(shared?.[0]);
    expect(shared?.[2]).toEqual(shared?.[0]);
  });

  it("wakes a sandbox once for many first calls, and runs each command once", async () => {
    const answer = await play<{ outputs: string[]; ran: string[]; wakes: number }>(version, "together", {
      name: own("together"),
      callers: CALLERS,
    });
    const all = Array.from({ length: CALLERS }, (_, index) => `${index}`);
    expect(answer.outputs).toEqual(all.map((index) => `${index}\n`));
    expect(answer.ran.sort()).toEqual(all.sort());
    expect(answer.wakes).toBe(1);
  });

  it("creates, finds, lists and deletes sandboxes", async () => {
    const name = own("life");
    const labels = { team: "a", "any text, is/a:key": "ü".repeat(300) };
    const url = `${server.url}/compat/blaxel/run/demo/sandboxes/${name}`;
    const answer = await play<Record<string, Record<string, unknown>>>(version, "lifecycle", { name });
    const running = {
      ...{ name, url, labels, workspace: "demo", status: "DEPLOYED", state: "RUNNING" },
      ...{ memory: 512, image: "blaxel/base-image:latest", ttl: "2h" },
    };
    expect(answer.made).toMatchObject({ ...running, events: ["sandbox.created", "sandbox.ready"] });
    expect(answer.made?.expiresIn).toBeGreaterThan(7_000);
    expect(answer.again).toEqual(refusedWith(409, "name_taken"));
    expect(answer.same).toMatchObject(running);
    expect(answer.env).toBe("hello 0\n");
    expect(answer.listed).toMatchObject(running);
    // The older client does not have this call.
    expect(answer.external).toBe(version === "blaxel-0.2" ? null : name);
    expect(answer.sleeping).toMatchObject({ ...running, state: "STANDBY" });
    expect(answer.removed).toEqual({ name, status: "TERMINATED" });
    expect(answer.gone).toEqual(refusedWith(404, "sandbox_not_found"));
  });

  it("shares drives between sandboxes, and detaches them", async () => {
    const drive = own("shared");
    const options = { name: own("one"), other: own("two"), drive };
    const answer = await play<Record<string, unknown>>(version, "drives", options);
    const mounted = { success: true, driveName: drive, mountPath: "/data", drivePath: "/part" };
    expect(answer).toMatchObject({
      made: { name: drive, displayName: "My drive", status: "DEPLOYED", labels: { team: "a" } },
      again: refusedWith(409, "drive_exists"),
      same: drive,
      listed: expect.arrayContaining([drive]),
      mounted,
      repeated: mounted,
      seen: "from one",
      inUse: refusedWith(409, "drive_mounted"),
      unmounted: { success: true, mountPath: "/data" },
      left: [],
      below: refusedWith(404, "file_not_found"),
      notThere: refusedWith(404, "mount_not_found"),
      removed: "TERMINATED",
      gone: refusedWith(404, "drive_not_found"),
    });
  });

  it("streams, follows, names, stops and kills processes", async () => {
    const answer = await play<Record<string, unknown>>(version, "processes", { name: own("procs") });
    const ticks = "tick 1\ntick 2\ntick 3\n";
    const output = { stdout: "one\nä end", stderr: "two\n", logs: "one\ntwo\nä end" };
    const ended = { status: "completed", exitCode: 0, isCompleted: true };
    expect(answer).toMatchObject({
      streamed: { status: "failed", exitCode: 3, ...output },
      received: output,
      background: { status: "running", name: "ticker", isCompleted: false },
      twice: refusedWith(400, "invalid_request"),
      waited: { ...ended, name: "ticker", stdout: ticks, logs: ticks, stderr: "" },
      followed: ["tick 1", "tick 2", "tick 3"],
      byPid: true,
      logs: { all: ticks, stdout: ticks, stderr: "" },
      reused: { ...ended, stdout: "another\n", isOther: true },
      latest: { stdout: "another\n" },
      first: { stdout: ticks },
      afterKill: { status: "killed", exitCode: -1, isCompleted: true },
      afterStop: { status: "stopped", exitCode: -1, isCompleted: true },
      late: { status: "killed", exitCode: -1, stdout: "begun\n" },
      cwd: { stdout: "/usr\n", workingDir: "/usr" },
      listening: { status: "running" },
      both: "out\nerr\nout again\n",
    });
    expect(answer.list).toEqual(expect.arrayContaining(["ticker", "sleeper", "term", "server"]));
  });

  it("restarts a failed process, and follows it through its runs", async () => {
    expect(await play(version, "restarts", { name: own("restarts") })).toMatchObject({
      begun: { status: "running", restarts: true },
      taken: refusedWith(400, "invalid_request"),
      waited: { status: "completed", exitCode: 0, restarts: 2, ofMost: 5, logs: "run 1\nrun 2\nrun 3\n" },
      samePid: true,
      byName: "third time",
      lines: ["run 1", "run 2", "run 3"],
      given: { status: "failed", exitCode: 3, restarts: 1, ofMost: 1 },
      again: "over\n",
      stopped: "stopped",
      listed: 3,
    });
  });

  it("writes, reads, lists and removes files, text and bytes, of any size", async () => {
    const answer = await play<Record<string, unknown>>(version, "files", { name: own("files") });
    expect(answer).toMatchObject({
      ...{ text: "täxt\n", odd: "odd", empty: "", emptyBinary: 0, relative: "relative" },
      ...{ small: true, large: true, largeText: true, uploads: [] },
      listing: {
        path: "/root",
        files: expect.arrayContaining(["a.txt", "copy.txt", "empty.txt", "large.bin", "small.bin"]),
        directories: expect.arrayContaining(["/root/dir with space", "/root/made", "/root/tree"]),
        a: { name: "a.txt", path: "/root/a.txt", size: 6, permissions: "644" },
      },
      tree: [".hidden", "node_modules", "src"],
      removed: refusedWith(404, "file_not_found"),
      full: refusedWith(409, "file_conflict"),
      mode: expect.stringMatching(/^644:\w+\n700:\w+\n$/),
      treeGone: refusedWith(404, "file_not_found"),
    });
  });

  it("finds files by name and content", async () => {
    const answer = await play<Record<string, unknown>>(version, "searches", { name: own("files") });
    expect(answer).toEqual({
      all: ["src/deep/other.ts", "src/main.js"],
      js: ["src/main.js"],
      hidden: [".hidden/x.js", "src/main.js"],
      directories: ["src", "src/deep"],
      one: 1,
      insensitive: [".hidden/x.js:1:1", "src/deep/other.ts:1:4", "src/main.js:1:7"],
      sensitive: [".hidden/x.js: needle", "src/main.js: const needle = 1;"],
      fuzzy: refusedWith(400, "invalid_request"),
    });
  });

  it("receives changes below a watched directory", async () => {
    const { seen, failed } = await play<{ seen: object[]; failed: string[] }>(version, "watch", {
      name: own("files"),
    });
    expect(failed).toEqual([]);
    expect(seen[0]).toMatchObject({ name: "new.txt", path: "/root/watched/below" });
    expect(JSON.stringify(seen)).not.toContain("skip");
  });

  it("throws its own typed error for bad input, with Holdfast's code and the request id", async () => {
    const options = { name: own("bad"), drive: own("bad") };
    const answers = await play<Record<string, Attempt>>(version, "bad", options);
    const refusals = Object.entries(answers).map(([what, { thrown }]) => [
      what,
      thrown?.code,
      thrown?.errorCode,
    ]);
    expect(refusals).toEqual(REFUSALS(version));
    for (const { thrown } of Object.values(answers)) {
      expect(thrown?.requestId).toMatch(/^req_/);
      expect(thrown?.hint).toBeTruthy();
      expect(thrown?.dispatched).toMatch(/^(yes|no)$/);
      expect(thrown?.text).toContain(`(${thrown?.errorCode}, ${thrown?.requestId})`);
      expect(thrown?.text).not.toContain(server.dir);
    }
    const kinds = new Set(Object.values(answers).map(({ thrown }) => thrown?.kind));
    // The older client throws plain errors for drives; errors that have a body of their own are thrown as that body.
    expect([...kinds].sort()).toEqual(
      version === "blaxel-0.2" ? ["Error", "ResponseError", "body"] : ["ResponseError", "body"],
    );
  });

  it("is rejected with an unknown key", async () => {
    const answers = await play<Record<string, Attempt>>(
      version,
      "stranger",
      { name: own("bad") },
      "hf_nobody",
    );
    const refused = refusedWith(401, "unauthorized");
    expect(answers).toEqual({ control: refused, data: refused, drives: refused });
  });

  it("never replaces a failed sandbox that has files", async () => {
    const name = own("failed");
    await play(version, "named", { name, command: "true" });
    const client = server.client();
    const { id } = (await client.sandboxes.get(name)).info;
    process.kill(server.keeperPid(id), "SIGKILL");
    const isFailed = async () => (await client.sandboxes.get(id)).info.status === "failed";
    await expect.poll(isFailed, { timeout: 30_000 }).toBe(true);
    client.close();
    expect(await play(version, "failed", { name })).toEqual({
      found: "FAILED",
      errors: [{ code: "keeper_died", fatal: true }],
      again: version === "blaxel-0.2" ? { value: "FAILED" } : refusedWith(410, "sandbox_failed"),
      over: refusedWith(409, "name_taken"),
      ran: refusedWith(410, "sandbox_failed"),
    });
  });

  it("runs the example", async () => {
    const env = { ...stage.environment(), BLAXEL_PACKAGE: version };
    const { stdout } = await run(process.execPath, [EXAMPLE], { cwd: stage.home, env });
    expect(stdout).toMatch(/8\. drives\.list\(\) .*\nEverything is as it should be\.\n$/s);
    const wrong = { ...env, HOLDFAST_API_KEY: "hf_nobody" };
    const failed = run(process.execPath, [EXAMPLE], { cwd: stage.home, env: wrong });
    await expect(failed).rejects.toMatchObject({ code: 1 });
  });

  it("finds a process by its name although the server was killed in between", async () => {
    const name = own("restart");
    await play(version, "named", { name, command: "echo begun; exec sleep 300" });
    await server.kill("SIGKILL");
    await server.start();
    const twice = await play<Attempt>(version, "named", { name, command: "true" });
    expect(twice).toEqual(refusedWith(400, "invalid_request"));
    const after = await play<Record<string, unknown>>(version, "ended", { name });
    expect(after).toEqual({ status: "running", stdout: "begun\n", killed: "killed" });
  });
});

/** Refused requests and their errors. The older client omits fields that it does not know. */
const REFUSALS = (version: Version): [what: string, code: number, errorCode: string][] => [
  ["an unknown sandbox", 404, "sandbox_not_found"],
  ["a command in an unknown sandbox", 404, "sandbox_not_found"],
  ["a file of an unknown sandbox", 404, "sandbox_not_found"],
  ["the mounts of an unknown sandbox", 404, "sandbox_not_found"],
  ["an unknown image", 404, "image_not_found"],
  ["a bad name", 400, "invalid_request"],
  ["a taken name", 409, "name_taken"],
  ["a duration that is none", 400, "invalid_request"],
  ["too little memory", 400, "invalid_request"],
  ["ports at create that are not TCP", 501, "not_supported"],
  ["a network at create", 501, "not_supported"],
  ["idle expiry after no duration", 400, "invalid_request"],
  ["an unknown drive", 404, "drive_not_found"],
  ["mounting an unknown drive", 404, "drive_not_found"],
  ["a volume that is no drive", 404, "drive_not_found"],
  version === "blaxel-0.2"
    ? ["a volume that lasts no longer than the sandbox", 404, "drive_not_found"]
    : ["a volume that lasts no longer than the sandbox", 501, "not_supported"],
  ["a path that leads up", 400, "invalid_path"],
  ["a path of the keeper's", 403, "forbidden_path"],
  ["a file that is not there", 404, "file_not_found"],
  ["a directory that is not there", 404, "file_not_found"],
  ["a directory where a file is", 409, "file_conflict"],
  ["permissions that are none", 400, "invalid_request"],
  ["an unknown process", 404, "exec_not_found"],
  ["logs of an unknown process", 404, "exec_not_found"],
  ["killing an unknown process", 404, "exec_not_found"],
  ["a directory to run in that is not there", 400, "invalid_request"],
  ["a variable that can't be one", 400, "invalid_request"],
  ["restarts that are waited for", 501, "not_supported"],
  ["how long a deleted sandbox is kept", 501, "not_supported"],
  ["a preview of no port", 400, "invalid_request"],
  ["a preview with a URL of one's own", 501, "not_supported"],
  ["an unknown preview", 404, "preview_not_found"],
  ["a session with headers", 501, "not_supported"],
  ["a session that is over", 400, "invalid_request"],
  ["a volume from a template", 501, "not_supported"],
  ["code generation", 501, "not_supported"],
  ["upgrading it", 501, "not_supported"],
  ["another drive at the same path", 409, "mount_conflict"],
  ["a mount within a mount", 409, "mount_conflict"],
  ["a mount that leads up", 400, "invalid_path"],
  ["a mount over the root", 422, "mount_refused"],
  ["a taken drive name", 409, "drive_exists"],
  ["a drive that is mounted", 409, "drive_mounted"],
];

it("a process without keepAlive keeps running past the idle time while a client waits for it", async () => {
  const waits = VERSIONS.map((version, index) =>
    play(version, "patience", { name: `patience-${index}`, seconds: 22 }),
  );
  const ended = { status: "completed", stdout: "done\n" };
  expect(await Promise.all(waits)).toEqual([ended, ended]);
});

it("the newer client feeds a process's stdin", async () => {
  const answer = await play("blaxel-0.3", "stdin", { name: "stdin" });
  expect(answer).toEqual({
    started: "running",
    stdout: "one\ntwo\nover\n",
    late: refusedWith(409, "wrong_state"),
  });
});

describe("on the wire", () => {
  it("a plain Authorization header is accepted; older clients get arrays, newer clients get pages", async () => {
    const old = await server.fetch("/compat/blaxel/v0/sandboxes");
    expect(await old.json()).toBeInstanceOf(Array);
    const headers = { "blaxel-version": "2026-04-28" };
    const first = await server.fetch("/compat/blaxel/v0/sandboxes?limit=1", { headers });
    const { data, meta } = (await first.json()) as { data: object[]; meta: { nextCursor: string } };
    expect(data).toHaveLength(1);
    const second = await server.fetch(`/compat/blaxel/v0/sandboxes?limit=1&cursor=${meta.nextCursor}`, {
      headers,
    });
    expect(((await second.json()) as { data: object[] }).data).not.toEqual(data);
  });

  it("an error carries the request's id in its header and its body", async () => {
    const answer = await server.fetch("/compat/blaxel/v0/sandboxes/nobody");
    expect(answer.status).toBe(404);
    const body = (await answer.json()) as Record<string, unknown>;
    expect(body).toMatchObject({
      code: 404,
      errorCode: "sandbox_not_found",
      retryable: false,
      dispatched: "no",
    });
    expect(body.requestId).toBe(answer.headers.get("x-request-id"));
  });

  it("a client behind a proxy reaches the control plane by the host name that the proxy forwards", async () => {
    const headers = { "x-forwarded-proto": "https", "x-forwarded-host": "holdfast.example" };
    const answer = await server.fetch("/compat/blaxel/api/sandboxes", { headers });
    const [one] = (await answer.json()) as { metadata: { url: string } }[];
    expect(one?.metadata.url).toMatch(
      /^https:\/\/holdfast\.example\/compat\/blaxel\/run\/holdfast\/sandboxes\//,
    );
  });

  it.each([
    ["GET", "/compat/blaxel/v0/policies"],
    ["POST", "/compat/blaxel/v0/sandboxes/x/archive"],
    ["GET", "/compat/blaxel/run/demo/sandboxes/x/network/tunnel"],
    ["PUT", "/compat/blaxel/run/demo/sandboxes/x/filesystem-multipart"],
    ["GET", "/compat/blaxel/run/demo/sandboxes/x"],
    ["GET", "/compat/blaxel"],
  ])("%s %s is refused as not supported", async (method, path) => {
    const answer = await server.fetch(path, { method });
    expect([answer.status, await answer.json()]).toEqual([
      501,
      expect.objectContaining({ code: 501, errorCode: "not_supported" }),
    ]);
  });

  it("no Blaxel route is in the API document", async () => {
    expect(await (await server.fetch("/openapi.json")).text()).not.toContain("/compat");
  });
});
