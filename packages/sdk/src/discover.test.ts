import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { discover, isAnnounced, remoteUrls } from "./discover.ts";
import { Holdfast } from "./index.ts";
import { failure } from "./testing/bench.ts";
import { FaultyServer, json } from "./testing/faulty-server.ts";

let directory: string;
let env: NodeJS.ProcessEnv;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "holdfast-discover-"));
  env = { HOLDFAST_DIR: directory };
});
afterEach(() => rm(directory, { recursive: true, force: true }));

const URL_HERE = "http://127.0.0.1:9";
const KEY = "hf_run_secret";

function startTimeOf(pid: number): string {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
}

/** Writes what a server announces; this process stands for the server. */
function announce(facts: object = {}): Promise<void> {
  const { pid } = process;
  const announced = { url: URL_HERE, pid, startTime: startTimeOf(pid), key: KEY, ...facts };
  return writeFile(join(directory, "server.json"), `${JSON.stringify(announced)}\n`);
}

describe("the server", () => {
  beforeEach(() => writeFile(join(directory, "admin.key"), "hf_admin\n"));

  it("is found with the key that it announces, which is not the admin key", async () => {
    await announce();
    expect(discover({}, env)).toMatchObject({ url: URL_HERE, apiKey: KEY, problem: undefined });
  });

  it("is chosen by the caller, then by the environment", async () => {
    await announce();
    const both = { ...env, HOLDFAST_URL: "http://env.example", HOLDFAST_API_KEY: "hf_env" };
    expect(discover({}, both)).toMatchObject({
      url: "http://env.example",
      apiKey: "hf_env",
      announced: null,
    });
    const given = { url: "http://given.example", apiKey: "hf_given" };
    expect(discover(given, both)).toMatchObject({ ...given, announced: null, absent: undefined });
  });

  it("gets the announced key at its own address only", async () => {
    await announce();
    const elsewhere = ["http://example.com", "http://127.0.0.1.example.com", "http://10.0.0.1:9"];
    for (const url of [...elsewhere, "http://127.0.0.1:4750", "http://127.0.0.2:9", "https://127.0.0.1:9"]) {
      expect(discover({ url }, env)).toMatchObject({ url, apiKey: undefined, absent: undefined });
      expect(discover({}, { ...env, HOLDFAST_URL: url })).toMatchObject({ apiKey: undefined });
    }
    expect(discover({ url: "http://127.0.0.1:9/" }, env)).toMatchObject({ url: URL_HERE, apiKey: KEY });
    // Another program may listen at the same port of ::1.
    expect(discover({ url: "http://localhost:9" }, env)).toMatchObject({ url: URL_HERE, apiKey: KEY });
  });

  it("that listens beyond loopback gets no key of the directory", async () => {
    await announce({ url: "http://10.0.0.1:9" });
    const found = discover({}, env);
    expect(found).toMatchObject({ url: "http://10.0.0.1:9", apiKey: undefined });
    expect(found.problem).toContain("HOLDFAST_API_KEY");
  });

  it.each([
    ["withdrew its announcement", null],
    ["was killed", { pid: 4_194_305 }],
    ["was killed, and its pid reused", { startTime: "1" }],
    ["is of a version without an announced key", { key: undefined }],
  ])("that %s is absent, whatever listens at its address", async (_why, facts) => {
    if (facts !== null) await announce(facts);
    for (const given of [{}, { url: URL_HERE }, { apiKey: "hf_own" }])
      expect(discover(given, env).absent).toBeTypeOf("string");
    expect(discover({}, env).apiKey).toBeUndefined();
    expect(discover({}, env, "http://127.0.0.1:77").url).toBe("http://127.0.0.1:77");
  });

  it("in another network namespace is absent: its address belongs to other programs here", async () => {
    const server = spawn("unshare", ["--net", "sleep", "60"], { stdio: "ignore" });
    await once(server, "spawn");
    const pid = server.pid ?? 0;
    // unshare(1) replaces itself by sleep(1) once it has left the network.
    await expect.poll(() => readFileSync(`/proc/${pid}/comm`, "utf8").trim()).toBe("sleep");
    await announce({ pid, startTime: startTimeOf(pid) });
    expect(discover({}, env).absent).toContain("network namespace");
    server.kill("SIGKILL");
    await once(server, "exit");
  });

  it("lists the addresses for other machines, if it has some", async () => {
    await announce();
    expect(remoteUrls(directory)).toEqual([]);
    await announce({ remote: ["http://10.0.0.1:9"] });
    expect(remoteUrls(directory)).toEqual(["http://10.0.0.1:9"]);
    await announce({ remote: ["http://10.0.0.1:9"], startTime: "1" });
    expect(remoteUrls(directory)).toEqual([]);
  });

  it("no longer holds its announcement once its process ended or another server announced itself", async () => {
    await announce();
    const { announced } = discover({}, env);
    if (announced === null) throw new Error("it was not found");
    expect(isAnnounced(announced)).toBe(true);
    expect(isAnnounced({ ...announced, startTime: "1" })).toBe(false);
    await announce({ key: "hf_run_next" });
    expect(isAnnounced(announced)).toBe(false);
  });
});

it("a server whose process ended is absent, although its parent has not reaped it", async () => {
  const parent = spawn("sh", ["-c", "sleep 60 & echo $!; exec sleep 60"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const [line] = (await once(parent.stdout, "data")) as [Buffer];
  const pid = Number(String(line));
  const readProc = (of: number | undefined, file: string) => readFileSync(`/proc/${of}/${file}`, "utf8");
  // The shell would reap its child. The program that replaces it does not know of the child.
  await expect.poll(() => readProc(parent.pid, "comm")).toBe("sleep\n");
  process.kill(pid, "SIGKILL");
  await expect.poll(() => readProc(pid, "stat")).toContain(") Z ");
  await announce({ pid, startTime: startTimeOf(pid) });
  expect(discover({}, env).absent).toContain("is not running");
  parent.kill("SIGKILL");
  await once(parent, "exit");
});

it("no request and no key is sent for a state directory that does not exist, unless a URL is given", async () => {
  const nowhere = { HOLDFAST_DIR: join(directory, "none"), HOLDFAST_API_KEY: "hf_own" };
  expect(discover({}, nowhere).absent).toContain("does not exist");
  const { HOLDFAST_DIR } = process.env;
  process.env.HOLDFAST_DIR = nowhere.HOLDFAST_DIR;
  const client = new Holdfast({ apiKey: "hf_own", outageMs: 300 });
  const error = await failure(client.sandboxes.list());
  client.close();
  if (HOLDFAST_DIR === undefined) delete process.env.HOLDFAST_DIR;
  else process.env.HOLDFAST_DIR = HOLDFAST_DIR;
  expect(error).toMatchObject({ code: "connection", dispatched: "no" });
  expect(error.message).toBe(`${nowhere.HOLDFAST_DIR} does not exist.`);
  expect(discover({ url: URL_HERE }, nowhere)).toMatchObject({ url: URL_HERE, absent: undefined });
});

describe("a program that listens where the server used to", () => {
  let impostor: FaultyServer;
  beforeEach(async () => {
    await writeFile(join(directory, "admin.key"), "hf_admin\n");
    impostor = await FaultyServer.start();
    impostor.answer(json(200, { items: [], nextCursor: null }));
    process.env.HOLDFAST_DIR = directory;
  });
  afterEach(async () => {
    delete process.env.HOLDFAST_DIR;
    await impostor.stop();
  });

  it("receives no request while a stale announcement names its address", async () => {
    await announce({ url: impostor.url, startTime: "1" });
    for (const given of [{}, { fetch: globalThis.fetch }, { url: impostor.url }]) {
      const client = new Holdfast({ outageMs: 300, ...given });
      const error = await failure(client.sandboxes.list());
      expect(error).toMatchObject({ code: "connection", dispatched: "no" });
      expect(error.message).toContain("is not running");
      client.close();
    }
    expect(impostor.seen).toEqual([]);
  });

  it("receives no request of a client that found the server before it ended", async () => {
    await announce({ url: impostor.url });
    const client = new Holdfast({ outageMs: 300 });
    await client.sandboxes.list();
    expect(impostor.seen.map(({ headers }) => headers.authorization)).toEqual([`Bearer ${KEY}`]);
    await announce({ url: impostor.url, startTime: "1" });
    expect(await failure(client.sandboxes.list())).toMatchObject({ code: "connection", dispatched: "no" });
    expect(impostor.seen).toHaveLength(1);
    client.close();
  });
});
