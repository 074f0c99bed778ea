/**
 * Shows on this very machine that the promises hold, through the same HTTP API that everyone uses: a sandbox that is
 * ready serves, one that breaks says so and why, and of what was deleted nothing is left.
 */
import type { AuditReport, Drive, Exec, Mount, Preview, Proof, Sandbox, Stats } from "@holdfast/contract";
import { randomText } from "@holdfast/contract";
import { LISTENER, PORT } from "./selftest-listener.ts";

export interface SelfTestParts {
  url: string;
  key: string;
  /** The host's pid of a sandbox's keeper: what no caller is told, and breaking one on purpose needs. */
  keeperPid(sandboxId: string): Promise<number>;
  /** What the host still has of these sandboxes. */
  remains(sandboxIds: readonly string[]): Promise<string[]>;
  print(line: string): void;
}

const CALL_MS = 90_000;
const CHANGE_MS = 20_000;
const POLL_MS = 20;

export async function selfTest(parts: SelfTestParts): Promise<boolean> {
  const api = new Api(parts.url, parts.key);
  const made: Sandbox[] = [];
  const step = async (title: string, work: () => Promise<string | undefined>) => {
    const startedAt = performance.now();
    try {
      const note = await work();
      parts.print(line("✓", title, performance.now() - startedAt, note));
    } catch (error) {
      parts.print(line("✗", title, performance.now() - startedAt, reasonOf(error)));
      throw error;
    }
  };
  try {
    await steps(parts, api, made, step);
    return true;
  } catch {
    return false;
  } finally {
    for (const { id } of made) await api.call("DELETE", `/v1/sandboxes/${id}`).catch(() => undefined);
  }
}

type Step = (title: string, work: () => Promise<string | undefined>) => Promise<void>;

async function steps(parts: SelfTestParts, api: Api, made: Sandbox[], step: Step): Promise<void> {
  const before = await api.call<Stats>("GET", "/v1/stats");
  const create = async (): Promise<Sandbox> => {
    const name = `selftest-${randomText(8)}`;
    const sandbox = await api.call<Sandbox>("POST", "/v1/sandboxes", {
      name,
      labels: { purpose: "self-test" },
    });
    made.push(sandbox);
    expect(sandbox.status === "ready", `the status is ${sandbox.status}`);
    return sandbox;
  };
  let whole = "";
  let broken = "";
  await step("create a sandbox, proven ready", async () => {
    whole = (await create()).id;
    return undefined;
  });
  await step("run a command in it", () => runCommand(api, whole));
  await step("write a file and read it back", () => copyFile(api, whole));
  await step("mount a drive in it, the same from both sides", () => shareDrive(api, whole));
  await step("serve a port, and take its preview back", () => openPort(api, whole));
  await step("verify it", () => verify(api, whole));
  await step("break another one on purpose: kill its keeper", async () => {
    broken = (await create()).id;
    process.kill(await parts.keeperPid(broken), "SIGKILL");
    return undefined;
  });
  await step("its status says so, with the cause", () => seeChange(api, broken));
  await step("delete both, absence observed", async () => {
    for (const id of [whole, broken]) {
      const { status } = await api.call<Sandbox>("DELETE", `/v1/sandboxes/${id}`);
      expect(status === "terminated", `the status is ${status}`);
    }
    return undefined;
  });
  await step("nothing is left", () => seeNothingLeft(parts, api, [whole, broken], before));
  await step("compare records with reality, both ways", () => audit(api, [whole, broken]));
}

async function runCommand(api: Api, id: string): Promise<string> {
  const command = "echo out; echo err >&2; exit 3";
  const exec = await api.call<Exec>("POST", `/v1/sandboxes/${id}/execs`, { command });
  expect(exec.exitCode === 3, `the exit code is ${exec.exitCode}, the status ${exec.status}`);
  expect(exec.stdout === "out\n" && exec.stderr === "err\n", "its output did not come back");
  return "exit code and output as they were";
}

async function copyFile(api: Api, id: string): Promise<string> {
  const content = randomText(100_000);
  const path = `/v1/sandboxes/${id}/files?path=/home/user/self-test.txt`;
  await api.call("PUT", path, content);
  expect((await api.text(path)) === content, "what was read is not what was written");
  return "100,000 bytes";
}

/** What a file call writes to the drive is seen at its mount, where no other file is. */
async function shareDrive(api: Api, id: string): Promise<string> {
  const name = `selftest-${randomText(8)}`;
  const { id: drive } = await api.call<Drive>("POST", "/v1/drives", {
    name,
    labels: { purpose: "self-test" },
  });
  try {
    const content = randomText(1_000);
    await api.call("PUT", `/v1/drives/${drive}/files?path=/self-test.txt`, content);
    const order = { drive, path: MOUNTED_AT };
    const { state } = await api.call<Mount>("PUT", `/v1/sandboxes/${id}/mounts`, order);
    expect(state === "proven", `the mount is ${state}`);
    const seen = await api.text(`/v1/sandboxes/${id}/files?path=${MOUNTED_AT}/self-test.txt`);
    expect(seen === content, "what is seen in the sandbox is not what is in the drive");
    await api.send("DELETE", `/v1/sandboxes/${id}/mounts?path=${MOUNTED_AT}`);
    return "mounted, proven, taken off again";
  } finally {
    await api.send("DELETE", `/v1/drives/${drive}?force=true`);
  }
}

const MOUNTED_AT = "/self-test";

const LISTENER_MS = 60_000;

/** What listens is reached with the key and by a preview's link, and by the link no more once that is taken back. */
async function openPort(api: Api, id: string): Promise<string> {
  const order = { command: LISTENER, detach: true, timeoutMs: LISTENER_MS };
  const exec = await api.call<Exec>("POST", `/v1/sandboxes/${id}/execs`, order);
  if (!(await listens(api, id, exec.id)))
    return "skipped: nothing in the image can listen (perl, node, python3)";
  const base = `/v1/sandboxes/${id}/previews`;
  const { name, pathUrl } = await api.call<Preview>("POST", base, { port: PORT });
  const link = new URL(pathUrl).pathname;
  const open = await api.visit(link);
  expect(open.ok && (await open.text()) === "served", `the link was answered with ${open.status}`);
  await api.send("DELETE", `${base}/${name}`);
  const { status } = await api.visit(link);
  expect(status === 403, `the link is answered with ${status} though it was taken back`);
  return "by key and by link";
}

/** False where nothing does, and nothing will. */
async function listens(api: Api, id: string, execId: string): Promise<boolean> {
  const deadline = performance.now() + CHANGE_MS;
  while (performance.now() < deadline) {
    const response = await api.ask("GET", `/v1/sandboxes/${id}/ports/${PORT}/`);
    const said = await response.text();
    if (response.ok && said === "served") return true;
    const { exitCode, endedAt } = await api.call<Exec>("GET", `/v1/execs/${execId}`);
    if (exitCode === 127) return false;
    expect(endedAt === null, `what was to listen has ended with ${exitCode}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`port ${PORT} was not served after ${CHANGE_MS / 1000} s`);
}

async function verify(api: Api, id: string): Promise<string> {
  const proof = await api.call<Proof>("POST", `/v1/sandboxes/${id}/verify`);
  const failed = proof.checks.filter((check) => !check.ok).map(({ name, message }) => `${name}: ${message}`);
  expect(proof.ok, failed.join("; "));
  return proof.checks.map((check) => check.name).join(", ");
}

async function seeChange(api: Api, id: string): Promise<string> {
  const deadline = performance.now() + CHANGE_MS;
  while (performance.now() < deadline) {
    const { status, cause } = await api.call<Sandbox>("GET", `/v1/sandboxes/${id}`);
    if (status !== "ready" && cause) return `${status}: ${cause.message}`;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`it still called itself ready after ${CHANGE_MS / 1000} s`);
}

async function seeNothingLeft(
  parts: SelfTestParts,
  api: Api,
  ids: readonly string[],
  before: Stats,
): Promise<string> {
  const remains = await parts.remains(ids);
  expect(remains.length === 0, remains.join(", "));
  const { totals } = await api.call<Stats>("GET", "/v1/stats");
  const created = totals.created - before.totals.created;
  const terminated = totals.terminated - before.totals.terminated;
  expect(
    created >= ids.length && terminated >= ids.length,
    `counted ${created} created, ${terminated} terminated`,
  );
  return "no process, mount, cgroup or directory; counters agree";
}

/** What an earlier time has left is shown and no reason to fail: the audit deals with it. */
async function audit(api: Api, ids: readonly string[]): Promise<string> {
  const { complete, findings } = await api.call<AuditReport>("POST", "/v1/audit");
  expect(complete, "what there is could not be listed");
  const own = findings.filter(({ sandboxId }) => sandboxId !== undefined && ids.includes(sandboxId));
  expect(own.length === 0, own.map(({ kind, message }) => `${kind}: ${message}`).join("; "));
  return `audit found ${findings.length} difference${findings.length === 1 ? "" : "s"}`;
}

/** The little of a client that this needs. */
class Api {
  readonly #url: string;
  readonly #key: string;

  constructor(url: string, key: string) {
    this.#url = url;
    this.#key = key;
  }

  /** Without the key. */
  visit(path: string): Promise<Response> {
    return fetch(this.#url + path, { signal: AbortSignal.timeout(CALL_MS) });
  }

  async send(method: string, path: string, body?: object | string): Promise<Response> {
    const response = await this.ask(method, path, body);
    if (response.ok) return response;
    throw new Error(`${method} ${path.split("?", 1)[0]}: ${response.status} ${await response.text()}`);
  }

  ask(method: string, path: string, body?: object | string): Promise<Response> {
    const headers: Record<string, string> = { authorization: `Bearer ${this.#key}` };
    const init: RequestInit = { method, headers, signal: AbortSignal.timeout(CALL_MS) };
    if (typeof body === "object") headers["content-type"] = "application/json";
    if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
    return fetch(this.#url + path, init);
  }

  async call<Answer = unknown>(method: string, path: string, body?: object | string): Promise<Answer> {
    return (await (await this.send(method, path, body)).json()) as Answer;
  }

  async text(path: string): Promise<string> {
    return (await this.send("GET", path)).text();
  }
}

function expect(holds: boolean, otherwise: string): void {
  if (!holds) throw new Error(otherwise);
}

const TITLE_WIDTH = 48;
const line = (mark: string, title: string, ms: number, note: string | undefined): string =>
  `  ${mark} ${title.padEnd(TITLE_WIDTH)} ${ms.toFixed(0).padStart(6)} ms${note ? `  ${note}` : ""}`;

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
