import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { lstat, mkdir, readdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import {
  anExec,
  aSandbox,
  chunk,
  ending,
  FaultyServer,
  FRAMES,
  frame,
  frames,
  greeting,
  type Item,
  json,
  made,
  refuse,
  step,
} from "../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, start, serve, requests, atTerminal } = bench;

const deleted = "DELETE /v1/sandboxes/sbx_0000000000000000";
const output = "GET /v1/execs/exe_1/output";
/** Output to the end, and output that goes on. */
const ended = (facts: Parameters<typeof anExec>[0], ...items: Item[]) =>
  frames([greeting(), ...items, ending(99, facts)]);
const going = frames([greeting(), chunk("stdout", 8, "running\n")], "silence");

describe("holdfast run", () => {
  it("writes both streams byte for byte, exits with the command's code and deletes the sandbox", async () => {
    const bytes = randomBytes(300_000);
    serve({
      [output]: ended({ exitCode: 3 }, chunk("stdout", 1, bytes), chunk("stderr", 2, "oops\n")),
    });
    const { code, stdout, stderr } = await holdfast("run", "--timeout", "5s", "--", "sh", "-c", "exit 3");
    expect({ code, stderr }).toEqual({ code: 3, stderr: "oops\n" });
    expect(stdout.equals(bytes)).toBe(true);
    expect(requests().at(-1)).toBe(deleted);
    const started = bench.server.seen.find(({ url }) => url.pathname.endsWith("/execs"));
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
      serve({ [output]: ended(facts) });
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

  it("leaves a sandbox that the server may delete itself, should nobody be left to do it; --keep leaves one that stays", async () => {
    serve({ [output]: ended({}) });
    const created = async (...options: string[]) => {
      bench.server.seen.length = 0;
      expect((await holdfast("run", ...options, "--", "true")).code).toBe(0);
      return JSON.parse(String(bench.server.seen[0]?.body)).lifecycle;
    };
    expect(await created()).toEqual({ disposable: true });
    const { ttlMs } = await created("--timeout", "30s");
    expect(ttlMs).toBeGreaterThan(120_000);
    expect(await created("--timeout", "30s", "--ttl", "5m")).toEqual({ disposable: true, ttlMs: 300_000 });
    expect(await created("--keep", "--timeout", "30s")).toBeUndefined();
    expect(await created("--keep", "--ttl", "5m")).toEqual({ ttlMs: 300_000 });
  });

  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    it(`deletes the sandbox when ${signal} comes while the command runs`, async () => {
      serve({ [output]: going });
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
        return ended({})(request, response);
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
    const commands = [...stdout.toString().matchAll(/^ {2}([\w-]+) .*/gm)].map(([, name]) => String(name));
    const named = commands.filter((name) => !["help", "holdfast"].includes(name));
    expect(named).toEqual(
      "doctor run create ls get rm verify update pause resume standby wake restart checkpoint exec shell attach execs kill logs start ps stop cp drive mount unmount mounts preview top resources diagnose events stats alerts server-logs audit cleanup image".split(
        " ",
      ),
    );
    const helps = await Promise.all(named.map((name) => holdfast(name, "--help")));
    for (const help of helps) expect(help.stdout.toString()).toContain("Examples:\n  ");
  }, 60_000);

  it("says in one line and a hint that there is no server", async () => {
    const { url } = bench.server;
    const ls = start("ls");
    await bench.server.stop();
    const { code, stderr } = await ls.ended;
    bench.server = await FaultyServer.start();
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

  it("deletes by id what has no readable record", async () => {
    serve({
      "GET /v1/sandboxes/sbx_0000000000000000": refuse(409, "pending_cleanup", {
        sandboxId: "sbx_0000000000000000",
      }),
      [deleted]: refuse(410, "sandbox_gone"),
    });
    expect(await holdfast("get", "sbx_0000000000000000")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("'holdfast rm sbx_0000000000000000' removes it now"),
    });
    const { code, stdout } = await holdfast("rm", "sbx_0000000000000000");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "sbx_0000000000000000\n" });
    expect(requests().at(-1)).toBe(deleted);
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
    bench.server.seen.length = 0;
    expect(await holdfast("rm", "twin")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("use the id shown by 'holdfast ls'"),
    });
    expect(requests()).not.toContain(deleted);
  });

  it("kills the command of an exec that is interrupted, and leaves a detached one alone", async () => {
    const cancelled = "DELETE /v1/execs/exe_1";
    serve({
      [output]: going,
      [cancelled]: json(200, anExec({ status: "cancelled" })),
    });
    const exec = start("exec", "box", "--", "sleep", "1000");
    await once(exec.stdout ?? exec, "data");
    exec.kill("SIGINT");
    expect((await exec.ended).code).toBe(130);
    expect(requests().at(-1)).toBe(cancelled);
    bench.server.seen.length = 0;
    const detached = await holdfast("exec", "-d", "box", "--", "sleep", "1000");
    expect({ code: detached.code, stdout: detached.stdout.toString() }).toEqual({
      code: 0,
      stdout: "exe_1\n",
    });
    expect(requests()).not.toContain(cancelled);
  });

  it("shows what is kept of output that was dropped, and says so", async () => {
    let asked = 0;
    serve({
      "GET /v1/execs/exe_1": json(200, anExec()),
      [output]: (request, response) =>
        asked++ === 0
          ? refuse(410, "output_dropped", { floor: "exe_1.9" })(request, response)
          : ended({}, chunk("stdout", 12, "end"))(request, response),
    });
    const { code, stdout, stderr } = await holdfast("logs", "--since-cursor", "exe_1.1", "exe_1");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "end" });
    expect(stderr).toBe("holdfast: output before this is no longer kept\n");
  });

  it("ends like any program when its reader leaves", async () => {
    serve({
      [output]: (_, response) => {
        const record = frame(chunk("stdout", 1, "y".repeat(60_000)));
        response.writeHead(200, FRAMES);
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
    expect(await readFile(join(bench.directory, "here", "a"), "utf8")).toBe("content");
    expect(await readFile(join(bench.directory, "here", "to-a"), "utf8")).toBe("content");
    expect(((await lstat(join(bench.directory, "here", "a"))).mode & 0o777).toString(8)).toBe("640");
    expect((await readdir(join(bench.directory, "here"))).sort()).toEqual(["a", "to-a"]);
  });

  it("writes nothing outside its target, whatever the sandbox says its files are", async () => {
    await writeFile(join(bench.directory, "precious"), "mine");
    await mkdir(join(bench.directory, "elsewhere"));
    await mkdir(join(bench.directory, "here"));
    await symlink(join(bench.directory, "precious"), join(bench.directory, "here", "a"));
    await symlink(join(bench.directory, "elsewhere"), join(bench.directory, "here", "sub"));
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

    expect(await readFile(join(bench.directory, "precious"), "utf8")).toBe("mine");
    expect(await readFile(join(bench.directory, "here", "a"), "utf8")).toBe("theirs");
    expect(await readdir(join(bench.directory, "elsewhere"))).toEqual([]);
  });

  it("takes a directory there, and goes between pipes and files", async () => {
    await mkdir(join(bench.directory, "src"));
    await writeFile(join(bench.directory, "src", "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
    await symlink("run.sh", join(bench.directory, "src", "link"));
    serve({
      [`GET ${base}/stat`]: refuse(404, "file_not_found"),
      [`POST ${base}/mkdir`]: json(200, {}),
      [`PUT ${base}`]: json(200, {}),
      [`GET ${base}`]: (_, response) => void response.end("out of it"),
      [`PUT ${base}/tar`]: json(200, { path: "/home/user/src", files: 1, bytes: 0 }),
    });
    expect(await holdfast("cp", "src", "box:/home/user/src")).toMatchObject({ code: 0, stderr: "" });
    const put = bench.server.seen.find(({ method, url }) => method === "PUT" && url.pathname === base);
    expect(Object.fromEntries(put?.url.searchParams ?? [])).toMatchObject({
      path: "/home/user/src/run.sh",
      mode: "0755",
    });
    const linked = bench.server.seen.find(({ url }) => url.pathname.endsWith("/files/tar"));
    expect(linked?.url.searchParams.get("path")).toBe("/home/user/src");
    expect(String(linked?.body)).toContain("linkpath=run.sh\n");
    expect((await holdfast("cp", "box:/etc/x", "-")).stdout.toString()).toBe("out of it");
    bench.server.seen.length = 0;
    const pipe = start("cp", "-", "box:/tmp/now");
    pipe.stdin?.end("into it");
    expect((await pipe.ended).code).toBe(0);
    expect(bench.server.seen.at(-1)?.body.toString()).toBe("into it");
    expect((await holdfast("cp", "a", "b")).code).toBe(2);
  });
});

describe("holdfast create", () => {
  it("asks for what its options say, and nothing else", async () => {
    serve({});
    const wanted = async (...options: string[]) => {
      bench.server.seen.length = 0;
      expect(await holdfast("create", ...options, "box")).toMatchObject({ code: 0, stderr: "" });
      return JSON.parse(String(bench.server.seen[0]?.body));
    };
    expect(await wanted()).toEqual({ name: "box" });
    expect(await wanted("--idle-standby", "15s", "--idle-ttl", "30m")).toEqual({
      name: "box",
      lifecycle: { idleTtlMs: 1_800_000, idleStandbyMs: 15_000 },
    });
    const lifecycle = ["--ttl", "2h", "--max-execs", "9", "--disposable", "--on-memory-loss", "cold-start"];
    expect(await wanted("--disk", "2g", "--memory", "64m", ...lifecycle)).toEqual({
      name: "box",
      resources: { memoryMb: 64, diskMb: 2048 },
      lifecycle: { ttlMs: 7_200_000, maxExecs: 9, disposable: true, onMemoryLoss: "cold-start" },
    });
    for (const wrong of [
      ["--ttl", "soon"],
      ["--idle-standby", "0"],
      ["--max-execs", "0"],
      ["--on-memory-loss", "x"],
    ])
      expect((await holdfast("create", ...wrong)).code).toBe(2);
  }, 30_000);

  const slowly: Route = async (_, response) => {
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    for (const record of [step("waiting"), step("root"), step("unheard-of"), made()]) {
      response.write(`${JSON.stringify(record)}\n`);
      await new Promise((resolve) => setTimeout(resolve, 700));
    }
    response.end();
  };

  it("shows on a terminal what it is doing, and takes that away again", async () => {
    serve({ "POST /v1/sandboxes": slowly });
    await using typist = atTerminal("create box");
    const shown = await typist.sees("creating: waiting for a turn");
    expect(shown).not.toContain("mounting");
    await typist.sees("creating: mounting its root");
    expect(await typist.end()).toContain("\x1b[Kbox\r\nexit code 0");
  });

  it("is quiet where nobody looks", async () => {
    serve({ "POST /v1/sandboxes": slowly });
    const { code, stdout, stderr } = await holdfast("create", "box");
    expect({ code, stdout: stdout.toString(), stderr }).toEqual({ code: 0, stdout: "box\n", stderr: "" });
  });
});

describe("holdfast get", () => {
  it("shows when a sandbox expires, and how many execs it has left", async () => {
    const expiresAt = new Date(Date.now() + 3_630_000).toISOString();
    const lifecycle = { ttlMs: 3_600_000, maxExecs: 5, disposable: true, onMemoryLoss: "cold-start" };
    const resources = { memoryMb: 64, cpus: 1, pids: 9, diskMb: 128 };
    serve({
      "GET /v1/sandboxes/box": json(200, aSandbox({ expiresAt, execsStarted: 2, lifecycle, resources })),
    });
    const text = (await holdfast("get", "box")).stdout.toString();
    expect(text).toContain(`${expiresAt} (in 1h)\n`);
    expect(text).toMatch(/^execs started: +2 of 5\ndisposable: +yes\non memory loss: +cold-start$/m);
    expect(text).toContain("128 MB of disk");
    serve({});
    const plain = (await holdfast("get", "box")).stdout.toString();
    expect(plain).toMatch(/^execs started: +0$/m);
    expect(plain).not.toMatch(/expires|disposable|disk|recovery/);
  });

  it("shows what is being done about one that does not serve", async () => {
    const nextAt = new Date(Date.now() + 9_000_000).toISOString();
    const recovery = { step: "relink", since: nextAt, tries: 1, nextAt, message: "A new link.\x1b[2J" };
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ status: "degraded", recovery })) });
    expect((await holdfast("get", "box")).stdout.toString()).toMatch(
      /^recovery: +relink: A new link\.\\x1b\[2J \(next decision in 2h\)$/m,
    );
  });
});
