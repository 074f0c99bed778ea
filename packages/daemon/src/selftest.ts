/**
 * The self-test: checks on this machine that Holdfast keeps its promises, through the same HTTP API that clients use. A
 * ready sandbox serves, a broken one reports its failure and the cause, and a deleted one leaves nothing behind.
 */
import type { AuditReport, Drive, Exec, Mount, Preview, Proof, Sandbox, Stats } from "@holdfast/contract";
import { randomText } from "@holdfast/contract";
import { SELF_TEST_LABELS, SELF_TEST_TTL_MS, selfTestName } from "./selftest-leftovers.ts";
import { LISTENER, PORT } from "./selftest-listener.ts";

interface SelfTestParts {
  url: string;
  key: string;
  /**
   * Returns the host pid of a sandbox's keeper, which the self-test kills to break a sandbox. The API does not return
   * this pid.
   */
  keeperPid(sandboxId: string): Promise<number>;
  /** Lists the resources on the host that still belong to one of the given sandboxes. */
  remains(sandboxIds: readonly string[]): Promise<string[]>;
  print(line: string): void;
  /** Interrupts the self-test, which then deletes what it created. */
  signal?: AbortSignal;
}

const CALL_MS = 90_000;
const CHANGE_MS = 20_000;
const POLL_MS = 20;

/** Returns whether all steps passed. An interrupted step is not reported, because it did not fail. */
export async function selfTest(parts: SelfTestParts): Promise<boolean> {
  const { signal = new AbortController().signal } = parts;
  const api = new Api(parts.url, parts.key, signal);
  const made: Sandbox[] = [];
  const step = async (title: string, work: () => Promise<string | undefined>) => {
    const startedAt = performance.now();
    try {
      signal.throwIfAborted();
      const note = await work();
      signal.throwIfAborted();
      parts.print(line("✓", title, performance.now() - startedAt, note));
    } catch (error) {
      if (!signal.aborted) parts.print(line("✗", title, performance.now() - startedAt, reasonOf(error)));
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
    const sandbox = await api.call<Sandbox>("POST", "/v1/sandboxes", {
      name: selfTestName(),
      labels: SELF_TEST_LABELS,
      lifecycle: { ttlMs: SELF_TEST_TTL_MS },
    });
    made.push(sandbox);
    expect(sandbox.status === "ready", `the status is ${sandbox.status}`);
    return sandbox;
  };
  let whole = "";
  let broken = "";
  await step("create a sandbox and prove it ready", async () => {
    whole = (await create()).id;
    return undefined;
  });
  await step("run a command", () => runCommand(api, whole));
  await step("write a file and read it back", () => copyFile(api, whole));
  await step("mount a drive, same content from both sides", () => shareDrive(api, whole));
  await step("serve a port, then revoke its preview", () => openPort(api, whole));
  await step("verify the sandbox", () => verify(api, whole));
  await step("create a second sandbox and kill its keeper", async () => {
    broken = (await create()).id;
    process.kill(await parts.keeperPid(broken), "SIGKILL");
    return undefined;
  });
  await step("the status reports the failure and its cause", () => seeChange(api, broken));
  await step("delete both and observe their absence", async () => {
    for (const id of [whole, broken]) {
      const { status } = await api.call<Sandbox>("DELETE", `/v1/sandboxes/${id}`);
      expect(status === "terminated", `the status is ${status}`);
    }
    return undefined;
  });
  await step("no leftovers on the host", () => seeNothingLeft(parts, api, [whole, broken], before));
  await step("audit records against the host's state", () => audit(api, [whole, broken]));
}

async function runCommand(api: Api, id: string): Promise<string> {
  const command = "echo out; echo err >&2; exit 3";
  const exec = await api.call<Exec>("POST", `/v1/sandboxes/${id}/execs`, { command });
  expect(exec.exitCode === 3, `the exit code is ${exec.exitCode}, the status ${exec.status}`);
  expect(exec.stdout === "out\n" && exec.stderr === "err\n", "the output does not match");
  return "exit code and output match";
}

async function copyFile(api: Api, id: string): Promise<string> {
  const content = randomText(100_000);
  const path = `/v1/sandboxes/${id}/files?path=/home/user/self-test.txt`;
  await api.call("PUT", path, content);
  expect((await api.text(path)) === content, "the content read back does not match");
  return "100,000 bytes";
}

/** Checks that a file written through the drive API appears at the mount in the sandbox. */
async function shareDrive(api: Api, id: string): Promise<string> {
  const order = { name: selfTestName(), labels: SELF_TEST_LABELS };
  const { id: drive } = await api.call<Drive>("POST", "/v1/drives", order);
  try {
    const content = randomText(1_000);
    await api.call("PUT", `/v1/drives/${drive}/files?path=/self-test.txt`, content);
    const mount = { drive, path: MOUNTED_AT };
    const { state } = await api.call<Mount>("PUT", `/v1/sandboxes/${id}/mounts`, mount);
    expect(state === "proven", `the mount is ${state}`);
    const seen = await api.text(`/v1/sandboxes/${id}/files?path=${MOUNTED_AT}/self-test.txt`);
    expect(seen === content, "the content in the sandbox does not match the drive");
    await api.send("DELETE", `/v1/sandboxes/${id}/mounts?path=${MOUNTED_AT}`);
    return "mounted, proven and unmounted";
  } finally {
    await api.send("DELETE", `/v1/drives/${drive}?force=true`);
  }
}

const MOUNTED_AT = "/self-test";

const LISTENER_MS = 60_000;

/**
 * Checks that a listener can be reached with the key and by the URL of a preview, and that this URL no longer works
 * after the preview was deleted.
 */
async function openPort(api: Api, id: string): Promise<string> {
  const order = { command: LISTENER, detach: true, timeoutMs: LISTENER_MS };
  const exec = await api.call<Exec>("POST", `/v1/sandboxes/${id}/execs`, order);
  if (!(await listens(api, id, exec.id)))
    return "skipped: the image has no perl, node or python3 to listen with";
  const base = `/v1/sandboxes/${id}/previews`;
  const { name, pathUrl } = await api.call<Preview>("POST", base, { port: PORT });
  const link = new URL(pathUrl).pathname;
  const open = await api.visit(link);
  expect(open.ok && (await open.text()) === "served", `the link returned ${open.status}`);
  await api.send("DELETE", `${base}/${name}`);
  const { status } = await api.visit(link);
  expect(status === 403, `the link returned ${status} after it was revoked`);
  return "reached by key and by link";
}

/** Waits until the listener answers. Returns false if the image has no interpreter that could run the listener. */
async function listens(api: Api, id: string, execId: string): Promise<boolean> {
  const deadline = performance.now() + CHANGE_MS;
  while (performance.now() < deadline) {
    const response = await api.ask("GET", `/v1/sandboxes/${id}/ports/${PORT}/`);
    const body = await response.text();
    if (response.ok && body === "served") return true;
    const { exitCode, endedAt } = await api.call<Exec>("GET", `/v1/execs/${execId}`);
    if (exitCode === 127) return false;
    expect(endedAt === null, `the listener exited with ${exitCode}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`port ${PORT} did not answer within ${CHANGE_MS / 1000} s`);
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
  throw new Error(`the sandbox still reported ready after ${CHANGE_MS / 1000} s`);
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

/**
 * The audit may also report findings about other sandboxes. They do not fail the self-test, because the audit itself
 * acts on them.
 */
async function audit(api: Api, ids: readonly string[]): Promise<string> {
  const { complete, findings } = await api.call<AuditReport>("POST", "/v1/audit");
  expect(complete, "the audit could not list everything on the host");
  const own = findings.filter(({ sandboxId }) => sandboxId !== undefined && ids.includes(sandboxId));
  expect(own.length === 0, own.map(({ kind, message }) => `${kind}: ${message}`).join("; "));
  return `audit found ${findings.length} difference${findings.length === 1 ? "" : "s"}`;
}

const CREATING: ReadonlySet<string> = new Set(["/v1/sandboxes", "/v1/drives"]);

/** The part of an API client that the self-test needs. */
class Api {
  readonly #url: string;
  readonly #key: string;
  readonly #signal: AbortSignal;

  constructor(url: string, key: string, signal: AbortSignal) {
    this.#url = url;
    this.#key = key;
    this.#signal = signal;
  }

  /** Requests without the key. */
  visit(path: string): Promise<Response> {
    return fetch(this.#url + path, { signal: AbortSignal.any([AbortSignal.timeout(CALL_MS), this.#signal]) });
  }

  async send(method: string, path: string, body?: object | string): Promise<Response> {
    const response = await this.ask(method, path, body);
    if (response.ok) return response;
    throw new Error(`${method} ${path.split("?", 1)[0]}: ${response.status} ${await response.text()}`);
  }

  ask(method: string, path: string, body?: object | string): Promise<Response> {
    const headers: Record<string, string> = { authorization: `Bearer ${this.#key}` };
    const deadline = AbortSignal.timeout(CALL_MS);
    // A call that creates something is not interrupted, because its result names what must be deleted.
    const isWhole = method === "DELETE" || (method === "POST" && CREATING.has(path));
    const signal = isWhole ? deadline : AbortSignal.any([deadline, this.#signal]);
    const init: RequestInit = { method, headers, signal };
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
