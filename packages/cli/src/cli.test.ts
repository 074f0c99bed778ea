import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { lstat, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import type { ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  anExec,
  aSandbox,
  chunk,
  FaultyServer,
  json,
  lines,
  refuse,
  type Seen,
} from "../../sdk/src/testing/faulty-server.ts";

const bin = fileURLToPath(new URL("../bin/holdfast.mjs", import.meta.url));
/** The launcher is meant for the system's Node, where there is one. */
const node = existsSync("/usr/bin/node") ? "/usr/bin/node" : process.execPath;

let server: FaultyServer;
let directory: string;

beforeEach(async () => {
  server = await FaultyServer.start();
  directory = await mkdtemp(join(tmpdir(), "holdfast-cli-"));
});
afterEach(async () => {
  await server.stop();
  await rm(directory, { recursive: true, force: true });
});

interface Ended {
  code: number | null;
  stdout: Buffer;
  stderr: string;
}

function start(...args: string[]): ChildProcess & { ended: Promise<Ended> } {
  const child = spawn(node, [bin, ...args], {
    cwd: directory,
    env: { ...process.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: "hf_test", HOLDFAST_DIR: directory },
  });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on("data", (piece: Buffer) => out.push(piece));
  child.stderr.on("data", (piece: Buffer) => err.push(piece));
  const ended = once(child, "close").then(([code]) => ({
    code: code as number | null,
    stdout: Buffer.concat(out),
    stderr: Buffer.concat(err).toString(),
  }));
  return Object.assign(child, { ended });
}

const holdfast = (...args: string[]): Promise<Ended> => start(...args).ended;

type Route = (request: Seen, response: ServerResponse) => void | Promise<void>;

/** A server that knows one sandbox, with answers for what matters to the test. */
function serve(routes: Record<string, Route>): void {
  const known: Record<string, Route> = {
    "POST /v1/sandboxes": json(201, aSandbox()),
    "GET /v1/sandboxes/box": json(200, aSandbox()),
    "DELETE /v1/sandboxes/sbx_0000000000000000": json(200, aSandbox({ status: "terminated" })),
    "POST /v1/sandboxes/sbx_0000000000000000/execs": json(202, anExec({ status: "running", exitCode: null })),
    ...routes,
  };
  server.answer((request, response) =>
    (known[`${request.method} ${request.url.pathname}`] ?? refuse(404, "not_found"))(request, response),
  );
}

const requests = () => server.seen.map(({ method, url }) => `${method} ${url.pathname}`);
const deleted = "DELETE /v1/sandboxes/sbx_0000000000000000";
const output = "GET /v1/execs/exe_1/output";
const end = (facts: Parameters<typeof anExec>[0]) => ({ type: "end", cursor: "9", exec: anExec(facts) });

describe("holdfast run", () => {
  it("writes both streams byte for byte, exits with the command's code and deletes the sandbox", async () => {
    const bytes = randomBytes(300_000);
    serve({
      [output]: lines([chunk("stdout", "1", bytes), chunk("stderr", "2", "oops\n"), end({ exitCode: 3 })]),
    });
    const { code, stdout, stderr } = await holdfast("run", "--timeout", "5s", "--", "sh", "-c", "exit 3");
    expect({ code, stderr }).toEqual({ code: 3, stderr: "oops\n" });
    expect(stdout.equals(bytes)).toBe(true);
    expect(requests().at(-1)).toBe(deleted);
    const started = server.seen.find(({ url }) => url.pathname.endsWith("/execs"));
    expect(JSON.parse(String(started?.body))).toMatchObject({
      argv: ["sh", "-c", "exit 3"],
      timeoutMs: 5000,
    });
  });

  it("exits with 128+n for a signal, 124 for a timeout, 125 for a lost exec", async () => {
    for (const [facts, expected] of [
      [{ exitCode: null, signal: "SIGSEGV" }, 139],
      [{ exitCode: null, status: "timed_out" }, 124],
      [{ exitCode: null, status: "lost" }, 125],
    ] as const) {
      serve({ [output]: lines([end(facts)]) });
      expect((await holdfast("run", "--", "x")).code).toBe(expected);
      expect(requests().at(-1)).toBe(deleted);
    }
  });

  it("exits with 125 and says why when Holdfast fails, and with 2 when it is used wrongly", async () => {
    serve({ "POST /v1/sandboxes": refuse(404, "image_not_found") });
    expect(await holdfast("run", "--image", "nope", "--", "true")).toMatchObject({
      code: 125,
      stderr: "holdfast: said image_not_found\ndo better\n",
    });
    expect((await holdfast("run", "--memory", "lots", "--", "true")).code).toBe(2);
    expect((await holdfast("run")).code).toBe(2);
  });

  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    it(`deletes the sandbox when ${signal} comes while the command runs`, async () => {
      serve({
        [output]: (_, response) => {
          response.writeHead(200).write(`${JSON.stringify(chunk("stdout", "1", "running\n"))}\n`);
        },
      });
      const run = start("run", "--", "sleep", "1000");
      await once(run.stdout ?? run, "data");
      run.kill(signal);
      const { code } = await run.ended;
      expect(code).toBe(signal === "SIGINT" ? 130 : 143);
      expect(requests().at(-1)).toBe(deleted);
    });
  }

  it("deletes the sandbox also when the signal comes while it is being created", async () => {
    let created: () => void = () => {};
    const creating = new Promise<void>((resolve) => {
      created = resolve;
    });
    serve({
      "POST /v1/sandboxes": (request, response) => {
        created();
        setTimeout(() => json(201, aSandbox())(request, response), 500);
      },
    });
    const run = start("run", "--", "true");
    await creating;
    run.kill("SIGTERM");
    expect((await run.ended).code).toBe(143);
    expect(requests()).toEqual(["POST /v1/sandboxes", deleted]);
  });

  it("passes stdin on, whole and with its end", async () => {
    const input = randomBytes(400_000);
    const taken: Buffer[] = [];
    let finish: () => void = () => {};
    const all = new Promise<void>((resolve) => {
      finish = resolve;
    });
    serve({
      [output]: async (request, response) => {
        await all;
        return lines([end({})])(request, response);
      },
      "POST /v1/execs/exe_1/stdin": ({ url, body }, response) => {
        taken.push(body);
        response.end(JSON.stringify({ accepted: Number(url.searchParams.get("offset")) + body.length }));
        if (url.searchParams.get("end") === "true") finish();
      },
    });
    const run = start("run", "-i", "--", "cat");
    run.stdin?.end(input);
    expect((await run.ended).code).toBe(0);
    expect(Buffer.concat(taken).equals(input)).toBe(true);
  });
});

describe("holdfast", () => {
  it("says how it is used, for every command with an example", async () => {
    const { stdout, code } = await holdfast("--help");
    expect(code).toBe(0);
    const commands = [...stdout.toString().matchAll(/^ {2}(\w+) .*/gm)].map(([, name]) => String(name));
    const named = commands.filter((name) => !["help", "holdfast"].includes(name));
    expect(named).toEqual("doctor run create ls get rm verify exec logs cp events stats image".split(" "));
    const helps = await Promise.all(named.map((name) => holdfast(name, "--help")));
    for (const help of helps) expect(help.stdout.toString()).toContain("Examples:\n  ");
  }, 60_000);

  it("says in one line and a hint that there is no server", async () => {
    const { url } = server;
    const ls = start("ls");
    await server.stop();
    const { code, stderr } = await ls.ended;
    server = await FaultyServer.start();
    expect(code).toBe(1);
    expect(stderr.split("\n")[0]).toContain(`holdfast: The server at ${url} can't be reached`);
    expect(stderr.split("\n")[1]).toContain("npm start");
  });

  it("lists as a table, as ids and as JSON over all pages", async () => {
    const box = aSandbox({ createdAt: new Date().toISOString(), image: "host", cause: null });
    serve({
      "GET /v1/sandboxes": ({ url }, response) => {
        const second = url.searchParams.get("cursor") === "2";
        response.end(JSON.stringify({ items: [box], nextCursor: second ? null : "2" }));
      },
    });
    const [asTable, ids, asJson] = await Promise.all([
      holdfast("ls"),
      holdfast("ls", "-q"),
      holdfast("ls", "--json"),
    ]);
    expect(asTable?.stdout.toString()).toMatch(/^NAME +STATUS.*\nbox +ready +host.*\nbox/);
    expect(ids?.stdout.toString()).toBe(`${box.id}\n${box.id}\n`);
    expect(JSON.parse(String(asJson?.stdout))).toEqual([box, box]);
  });

  it("deletes what it can of several and fails for the rest; with --force absence is fine", async () => {
    serve({
      "GET /v1/sandboxes/gone": refuse(404, "sandbox_not_found"),
      "GET /v1/sandboxes": json(200, { items: [], nextCursor: null }),
    });
    const { code, stdout, stderr } = await holdfast("rm", "gone", "box");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 1, stdout: "box\n" });
    expect(stderr).toContain("said sandbox_not_found");
    expect((await holdfast("rm", "-f", "gone")).code).toBe(0);
    expect((await holdfast("rm")).code).toBe(2);
  });

  it("finds a failed sandbox by the name it is listed under, unless several had it", async () => {
    const box = { createdAt: new Date().toISOString(), status: "failed", resources: {}, labels: {} };
    const [wreck, twin] = ["wreck", "twin"].map((name) => aSandbox({ ...box, name }));
    const listed = json(200, { items: [wreck, twin, twin], nextCursor: null });
    serve({
      "GET /v1/sandboxes/wreck": refuse(404, "sandbox_not_found"),
      "GET /v1/sandboxes/twin": refuse(404, "sandbox_not_found"),
      "GET /v1/sandboxes": listed,
      "GET /v1/sandboxes/sbx_0000000000000000": json(200, wreck),
      [deleted]: json(200, { ...wreck, status: "terminated" }),
    });
    expect((await holdfast("get", "wreck")).stdout.toString()).toContain("failed");
    const { code, stdout } = await holdfast("rm", "wreck");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "wreck\n" });
    expect(requests().at(-1)).toBe(deleted);
    server.seen.length = 0;
    expect(await holdfast("rm", "twin")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("use the id shown by 'holdfast ls'"),
    });
    expect(requests()).not.toContain(deleted);
  });

  it("kills the command of an exec that is interrupted, and leaves a detached one alone", async () => {
    const cancelled = "DELETE /v1/execs/exe_1";
    serve({
      [output]: (_, response) => {
        response.writeHead(200).write(`${JSON.stringify(chunk("stdout", "1", "running\n"))}\n`);
      },
      [cancelled]: json(200, anExec({ status: "cancelled" })),
    });
    const exec = start("exec", "box", "--", "sleep", "1000");
    await once(exec.stdout ?? exec, "data");
    exec.kill("SIGINT");
    expect((await exec.ended).code).toBe(130);
    expect(requests().at(-1)).toBe(cancelled);
    server.seen.length = 0;
    const detached = await holdfast("exec", "-d", "box", "--", "sleep", "1000");
    expect({ code: detached.code, stdout: detached.stdout.toString() }).toEqual({
      code: 0,
      stdout: "exe_1\n",
    });
    expect(requests()).not.toContain(cancelled);
  });

  it("ends like any program when its reader leaves", async () => {
    serve({
      [output]: (_, response) => {
        const record = `${JSON.stringify(chunk("stdout", "1", "y".repeat(60_000)))}\n`;
        response.writeHead(200);
        const timer = setInterval(() => response.write(record), 5);
        response.on("close", () => clearInterval(timer));
      },
    });
    const run = start("run", "--", "yes");
    await once(run.stdout ?? run, "data");
    run.stdout?.destroy();
    expect((await run.ended).code).toBe(141);
    expect(requests().at(-1)).toBe(deleted);
  });
});

describe("holdfast cp", () => {
  const base = "/v1/sandboxes/sbx_0000000000000000/files";
  const entry = (path: string, kind: string, facts: object = {}) => ({
    path,
    name: path.split("/").at(-1),
    kind,
    mode: kind === "directory" ? "0755" : "0640",
    ...facts,
  });

  it("brings a directory here, with permissions and links", async () => {
    serve({
      [`GET ${base}/stat`]: json(200, entry("/src", "directory")),
      [`GET ${base}/list`]: json(200, {
        truncated: false,
        items: [entry("/src/a", "file"), entry("/src/to-a", "symlink", { target: "a" })],
      }),
      [`GET ${base}`]: (_, response) => void response.end("content"),
    });
    expect(await holdfast("cp", "box:/src", "here")).toMatchObject({ code: 0, stderr: "" });
    expect(await readFile(join(directory, "here", "a"), "utf8")).toBe("content");
    expect(await readFile(join(directory, "here", "to-a"), "utf8")).toBe("content");
    expect(((await lstat(join(directory, "here", "a"))).mode & 0o777).toString(8)).toBe("640");
    expect((await readdir(join(directory, "here"))).sort()).toEqual(["a", "to-a"]);
  });

  it("writes nothing outside its target, whatever the sandbox says its files are", async () => {
    await writeFile(join(directory, "precious"), "mine");
    await mkdir(join(directory, "elsewhere"));
    await mkdir(join(directory, "here"));
    await symlink(join(directory, "precious"), join(directory, "here", "a"));
    await symlink(join(directory, "elsewhere"), join(directory, "here", "sub"));
    const items = (list: object[]) => json(200, { truncated: false, items: list });
    const stat = { [`GET ${base}/stat`]: json(200, entry("/src", "directory")) };
    const content: Route = (_, response) => void response.end("theirs");

    serve({ ...stat, [`GET ${base}/list`]: items([entry("/src/a", "file")]), [`GET ${base}`]: content });
    expect((await holdfast("cp", "box:/src/.", "here")).code).toBe(0);
    for (const trap of [
      entry("/src/sub", "directory"),
      entry("/src/x", "file", { name: "../precious" }),
      entry("/src/x", "file", { name: ".." }),
    ]) {
      const below = items([entry("/src/sub/file", "file")]);
      const list: Route = (request, response) =>
        (request.url.searchParams.get("path") === "/src" ? items([trap]) : below)(request, response);
      serve({ ...stat, [`GET ${base}/list`]: list, [`GET ${base}`]: content });
      expect((await holdfast("cp", "box:/src/.", "here")).code).toBe(1);
    }

    expect(await readFile(join(directory, "precious"), "utf8")).toBe("mine");
    expect(await readFile(join(directory, "here", "a"), "utf8")).toBe("theirs");
    expect(await readdir(join(directory, "elsewhere"))).toEqual([]);
  });

  it("takes a directory there, and goes between pipes and files", async () => {
    await mkdir(join(directory, "src"));
    await writeFile(join(directory, "src", "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
    await symlink("run.sh", join(directory, "src", "link"));
    serve({
      [`GET ${base}/stat`]: refuse(404, "file_not_found"),
      [`POST ${base}/mkdir`]: json(200, {}),
      [`PUT ${base}`]: json(200, {}),
      [`GET ${base}`]: (_, response) => void response.end("out of it"),
      "POST /v1/sandboxes/sbx_0000000000000000/execs": json(200, anExec()),
    });
    expect(await holdfast("cp", "src", "box:/home/user/src")).toMatchObject({ code: 0, stderr: "" });
    const put = server.seen.find(({ method }) => method === "PUT");
    expect(Object.fromEntries(put?.url.searchParams ?? [])).toMatchObject({
      path: "/home/user/src/run.sh",
      mode: "0755",
    });
    const linked = server.seen.find(({ url }) => url.pathname.endsWith("/execs"));
    expect(JSON.parse(String(linked?.body)).argv).toEqual([
      "ln",
      "-sfn",
      "--",
      "run.sh",
      "/home/user/src/link",
    ]);
    expect((await holdfast("cp", "box:/etc/x", "-")).stdout.toString()).toBe("out of it");
    server.seen.length = 0;
    const pipe = start("cp", "-", "box:/tmp/now");
    pipe.stdin?.end("into it");
    expect((await pipe.ended).code).toBe(0);
    expect(server.seen.at(-1)?.body.toString()).toBe("into it");
    expect((await holdfast("cp", "a", "b")).code).toBe(2);
  });
});
