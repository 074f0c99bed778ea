import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { lstat, mkdir, readdir, readFile, symlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Pack, pack } from "tar-stream";
import { describe, expect, it } from "vitest";
import {
  anExec,
  aSandbox,
  chunk,
  drop,
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
const interrupted = "POST /v1/execs/exe_1/signal";
/** Output streams of an ended exec, and of one that continues. */
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

  it("exits with 125 and the reason when Holdfast fails, and with 2 on wrong usage", async () => {
    serve({ "POST /v1/sandboxes": refuse(404, "image_not_found") });
    expect(await holdfast("run", "--image", "nope", "--", "true")).toMatchObject({
      code: 125,
      stderr: "holdfast: said image_not_found\ndo better\n",
    });
    expect((await holdfast("run", "--memory", "lots", "--", "true")).code).toBe(2);
    expect((await holdfast("run")).code).toBe(2);
  });

  it("creates a disposable sandbox, so that the server can delete it if the CLI is killed; --keep creates a permanent one", async () => {
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

  for (const [signals, code] of [
    [["SIGINT", "SIGINT"], 130],
    [["SIGTERM"], 143],
    [["SIGHUP"], 129],
  ] as const) {
    it(`deletes the sandbox when ${signals.join(" and ")} arrives while the command runs`, async () => {
      serve({ [output]: going, [interrupted]: json(200, anExec({ status: "running" })) });
      const run = start("run", "--", "sleep", "1000");
      await once(run.stdout ?? run, "data");
      for (const signal of signals) {
        run.kill(signal);
        if (signal === "SIGINT") await sleep(400);
      }
      expect((await run.ended).code).toBe(code);
      expect(requests().filter((request) => request === interrupted)).toHaveLength(signals.length - 1);
      expect(requests().at(-1)).toBe(deleted);
    });
  }

  it("deletes the sandbox when the signal arrives while it is being created", async () => {
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

  it("forwards all of stdin and its end", async () => {
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
  it("prints usage with an example for every command", async () => {
    const { stdout, code } = await holdfast("--help");
    expect(code).toBe(0);
    const commands = [...stdout.toString().matchAll(/^ {2}([\w-]+) .*/gm)].map(([, name]) => String(name));
    const named = commands.filter((name) => !["help", "holdfast"].includes(name));
    expect(named).toEqual(
      "doctor run create ls get rm verify update pause resume standby wake restart checkpoint exec shell attach execs kill logs start ps stop cp drive mount unmount mounts preview top resources diagnose events stats alerts server-logs audit cleanup image export import backup restore".split(
        " ",
      ),
    );
    const helps = await Promise.all(named.map((name) => holdfast(name, "--help")));
    for (const help of helps) expect(help.stdout.toString()).toContain("Examples:\n  ");
  }, 60_000);

  it("reports an unreachable server in one line and a hint", async () => {
    const { url } = bench.server;
    const ls = start("ls");
    await bench.server.stop();
    const { code, stderr } = await ls.ended;
    bench.server = await FaultyServer.start();
    expect(code).toBe(1);
    expect(stderr.split("\n")[0]).toContain(`holdfast: The server at ${url} cannot be reached`);
    expect(stderr.split("\n")[1]).toContain("npm start");
  });

  it("lists all pages as a table, as ids and as JSON", async () => {
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

  it("deletes what it can and fails for the rest; --force ignores missing sandboxes", async () => {
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

  it("deletes a sandbox without a readable record by id", async () => {
    serve({
      "GET /v1/sandboxes/sbx_0000000000000000": refuse(409, "pending_cleanup", {
        sandboxId: "sbx_0000000000000000",
      }),
      [deleted]: refuse(410, "sandbox_gone"),
    });
    expect(await holdfast("get", "sbx_0000000000000000")).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("'holdfast rm sbx_0000000000000000' removes the sandbox now"),
    });
    const { code, stdout } = await holdfast("rm", "sbx_0000000000000000");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "sbx_0000000000000000\n" });
    expect(requests().at(-1)).toBe(deleted);
  });

  it("finds a failed sandbox by its former name, unless several had it", async () => {
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

  it("interrupts the command at the first SIGINT, kills it at the second, and leaves a detached command running", async () => {
    const cancelled = "DELETE /v1/execs/exe_1";
    serve({
      [output]: going,
      [interrupted]: json(200, anExec({ status: "running" })),
      [cancelled]: json(200, anExec({ status: "cancelled" })),
    });
    const exec = start("exec", "box", "--", "sleep", "1000");
    await once(exec.stdout ?? exec, "data");
    exec.kill("SIGINT");
    exec.kill("SIGINT");
    await bench.requested(interrupted);
    await sleep(400);
    expect(requests()).not.toContain(cancelled);
    exec.kill("SIGINT");
    expect(await exec.ended).toMatchObject({ code: 130, stderr: "" });
    expect(requests().slice(-2)).toEqual([interrupted, cancelled]);
    const sent = bench.server.seen.find(({ url }) => url.pathname.endsWith("/signal"));
    expect(JSON.parse(String(sent?.body))).toEqual({ signal: "SIGINT" });
    bench.server.seen.length = 0;
    const detached = await holdfast("exec", "-d", "box", "--", "sleep", "1000");
    expect({ code: detached.code, stdout: detached.stdout.toString() }).toEqual({
      code: 0,
      stdout: "exe_1\n",
    });
    expect(requests()).not.toContain(cancelled);
  });

  it("says on a terminal what each Ctrl-C does, even if the server confirms none", async () => {
    serve({ [output]: going, [interrupted]: () => {}, "DELETE /v1/execs/exe_1": () => {} });
    await using person = atTerminal("exec box -- sleep 1000");
    await person.sees("running");
    person.type("\x03");
    await person.sees("SIGINT is not confirmed yet; press Ctrl-C again to kill the command");
    person.type("\x03");
    await person.sees("killing the command; press Ctrl-C again to leave it");
    await sleep(400);
    person.type("\x03");
    await person.sees("exit code 130");
  });

  it("cancels a command that cannot be interrupted because it waits in the queue", async () => {
    const cancelled = "DELETE /v1/execs/exe_1";
    serve({
      [output]: going,
      [interrupted]: refuse(409, "wrong_state"),
      "GET /v1/execs/exe_1": json(200, anExec({ status: "queued", endedAt: null })),
      [cancelled]: json(200, anExec({ status: "cancelled" })),
    });
    const exec = start("exec", "box", "--", "sleep", "1000");
    await once(exec.stdout ?? exec, "data");
    exec.kill("SIGINT");
    expect((await exec.ended).code).toBe(130);
    expect(requests().at(-1)).toBe(cancelled);
  });

  it("warns about dropped output and shows the rest", async () => {
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
    expect(stderr).toBe("holdfast: earlier output is no longer available\n");
  });

  it("exits on SIGPIPE when the reader of its output exits", async () => {
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

  const isDirectory = { [`GET ${base}/stat`]: json(200, entry("/src", "directory")) };
  const sends = (archive: (tar: Pack) => void): Record<string, Route> => ({
    ...isDirectory,
    [`GET ${base}/tar`]: async (_, response) => {
      const tar = pack();
      archive(tar);
      tar.finalize();
      response.writeHead(200, { "content-type": "application/x-tar" });
      for await (const piece of tar) response.write(piece);
      response.end();
    },
  });

  it("downloads a directory as one archive, with permissions, times and links", async () => {
    const mtime = new Date("2020-02-02T02:02:02.500Z");
    const pax = { mtime: String(mtime.getTime() / 1_000) };
    const big = randomBytes(300_000);
    serve(
      sends((tar) => {
        tar.entry({ name: "./", type: "directory", mode: 0o750, mtime, pax });
        tar.entry({ name: "a", mode: 0o4640, mtime, pax }, "content");
        tar.entry({ name: "to-a", type: "symlink", linkname: "a", mtime });
        tar.entry({ name: "pipe", type: "fifo" });
        tar.entry({ name: "sub/", type: "directory", mode: 0o500, mtime });
        tar.entry({ name: `sub/${"long".repeat(50)}`, mtime }, big);
      }),
    );
    expect(await holdfast("cp", "box:/src", "here")).toMatchObject({
      code: 1,
      stderr: "holdfast: skipped pipe: it is a fifo\n",
    });
    const here = (...parts: string[]) => join(bench.directory, "here", ...parts);
    expect(await readFile(here("to-a"), "utf8")).toBe("content");
    expect((await readFile(here("sub", "long".repeat(50)))).equals(big)).toBe(true);
    expect((await readdir(here())).sort()).toEqual(["a", "sub", "to-a"]);
    const modeOf = async (path: string) => ((await lstat(path)).mode & 0o7777).toString(8);
    expect(await Promise.all([here(), here("a"), here("sub")].map(modeOf))).toEqual(["750", "640", "700"]);
    for (const path of [here(), here("a")]) expect((await lstat(path)).mtimeMs).toBe(mtime.getTime());
    expect((await lstat(here("to-a"))).mtimeMs).toBe(Math.floor(mtime.getTime() / 1_000) * 1_000);
    expect(requests().filter((request) => request.includes("/files"))).toHaveLength(2);
  });

  it("fails when the archive is damaged or cut", async () => {
    for (const [broken, message] of [
      [(tar: Buffer) => Buffer.alloc(tar.length, "x"), "Invalid tar header"],
      [(tar: Buffer) => tar.subarray(0, 700), "Unexpected end of data"],
    ] as const) {
      serve({
        ...isDirectory,
        [`GET ${base}/tar`]: async (_, response) => {
          const tar = pack();
          tar.entry({ name: "a" }, "x".repeat(1_000));
          tar.finalize();
          const pieces = (await Array.fromAsync(tar)) as Buffer[];
          response.writeHead(200, { "content-type": "application/x-tar" });
          response.end(broken(Buffer.concat(pieces)));
        },
      });
      const { code, stderr } = await holdfast("cp", "box:/src/.", "here");
      expect(code).toBe(1);
      expect(stderr).toContain(message);
      expect(await readdir(join(bench.directory, "here"))).toEqual([]);
    }
  });

  it("writes nothing outside its target, even if the sandbox sends a malicious archive", async () => {
    await writeFile(join(bench.directory, "precious"), "mine");
    await mkdir(join(bench.directory, "elsewhere"));
    await mkdir(join(bench.directory, "here"));
    await symlink(join(bench.directory, "precious"), join(bench.directory, "here", "a"));
    await symlink(join(bench.directory, "elsewhere"), join(bench.directory, "here", "sub"));

    serve(sends((tar) => tar.entry({ name: "a" }, "theirs")));
    expect((await holdfast("cp", "box:/src/.", "here")).code).toBe(0);
    const elsewhere = join(bench.directory, "elsewhere");
    for (const trap of [
      (tar: Pack) => tar.entry({ name: "sub/", type: "directory" }),
      (tar: Pack) => tar.entry({ name: "sub/file" }, "theirs"),
      (tar: Pack) => tar.entry({ name: "../precious" }, "theirs"),
      (tar: Pack) => tar.entry({ name: "x/../../precious" }, "theirs"),
      (tar: Pack) => tar.entry({ name: ".." }, "theirs"),
      (tar: Pack) => {
        tar.entry({ name: "link", type: "symlink", linkname: elsewhere });
        tar.entry({ name: "link/file" }, "theirs");
      },
    ]) {
      serve(sends(trap));
      expect((await holdfast("cp", "box:/src/.", "here")).code).toBe(1);
    }

    expect(await readFile(join(bench.directory, "precious"), "utf8")).toBe("mine");
    expect(await readFile(join(bench.directory, "here", "a"), "utf8")).toBe("theirs");
    expect(await readdir(elsewhere)).toEqual([]);
  }, 30_000);

  it("uploads a directory as one archive, with permissions, times and links", async () => {
    const src = join(bench.directory, "src");
    await mkdir(join(src, "sub"), { recursive: true });
    await writeFile(join(src, "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
    await writeFile(join(src, "sub", "big"), randomBytes(3_000_000));
    await symlink("run.sh", join(src, "link"));
    await utimes(join(src, "run.sh"), new Date(1_500), new Date(1_500));
    execFileSync("mkfifo", [join(src, "pipe")]);
    serve({
      [`GET ${base}/stat`]: refuse(404, "file_not_found"),
      [`PUT ${base}/tar`]: json(200, { path: "/home/user/src", files: 3, bytes: 0 }),
    });
    const { code, stderr } = await holdfast("cp", "src", "box:/home/user/src");
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: "holdfast: skipped src/pipe: it is not a file, directory or symbolic link\n",
    });
    const sent = bench.server.seen.find(({ method }) => method === "PUT");
    expect(sent?.url.searchParams.get("path")).toBe("/home/user/src");
    const names = execFileSync("tar", ["tvf", "-"], {
      input: sent?.body,
      env: { TZ: "UTC", PATH: process.env.PATH },
    });
    const listed = names.toString().trim().split("\n").sort();
    expect(listed.map((line) => line.split(/ +/).slice(5).join(" ")).sort()).toEqual(
      ["./", "link -> run.sh", "run.sh", "sub/", "sub/big"].sort(),
    );
    expect(names.toString()).toMatch(/-rwxr-xr-x \S+ +10 1970-01-01 00:00 run.sh/);
    expect(sent?.body.includes("mtime=1.5\n")).toBe(true);
  });

  it("sends a directory again when the server restarts meanwhile", async () => {
    await mkdir(join(bench.directory, "src"));
    await writeFile(join(bench.directory, "src", "a"), "content");
    let tries = 0;
    serve({
      [`GET ${base}/stat`]: refuse(404, "file_not_found"),
      [`PUT ${base}/tar`]: (request, response) => {
        tries += 1;
        return (tries === 1 ? drop : json(200, { path: "/src", files: 1, bytes: 7 }))(request, response);
      },
    });
    expect(await holdfast("cp", "src", "box:/src")).toMatchObject({ code: 0, stderr: "" });
    const [first, second] = bench.server.seen.filter(({ method }) => method === "PUT");
    expect(second?.body.equals(first?.body ?? Buffer.of())).toBe(true);
  });

  it("copies between pipes and files, and between pipes and directories as tar archives", async () => {
    const isFile = { [`GET ${base}/stat`]: json(200, entry("/etc/x", "file")) };
    serve({ ...isFile, [`GET ${base}`]: (_, response) => void response.end("out of it") });
    expect((await holdfast("cp", "box:/etc/x", "-")).stdout.toString()).toBe("out of it");
    serve(sends((tar) => tar.entry({ name: "a" }, "content")));
    const archive = (await holdfast("cp", "box:/src", "-")).stdout;
    expect(execFileSync("tar", ["xOf", "-", "a"], { input: archive }).toString()).toBe("content");

    const send = async (target: string) => {
      bench.server.seen.length = 0;
      const pipe = start("cp", "-", target);
      pipe.stdin?.end("into it");
      expect((await pipe.ended).code).toBe(0);
      const { url, body } = bench.server.seen.at(-1) ?? {};
      return [url?.pathname.slice(base.length), url?.searchParams.get("path"), String(body)];
    };
    const answers = { [`PUT ${base}`]: json(200, {}), [`PUT ${base}/tar`]: json(200, {}) };
    serve({ ...answers, [`GET ${base}/stat`]: refuse(404, "file_not_found") });
    expect(await send("box:/tmp/now")).toEqual(["", "/tmp/now", "into it"]);
    expect(await send("box:/tmp/new/")).toEqual(["/tar", "/tmp/new", "into it"]);
    serve({ ...answers, ...isDirectory });
    expect(await send("box:/src")).toEqual(["/tar", "/src", "into it"]);
    expect((await holdfast("cp", "a", "b")).code).toBe(2);
  }, 30_000);
});

describe("holdfast create", () => {
  it("sends exactly the given options", async () => {
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

  it("shows the current step on a terminal, then clears the line", async () => {
    serve({ "POST /v1/sandboxes": slowly });
    await using typist = atTerminal("create box");
    const shown = await typist.sees("creating: queued");
    expect(shown).not.toContain("mounting");
    await typist.sees("creating: mounting the root file system");
    expect(await typist.end()).toContain("\x1b[Kbox\r\nexit code 0");
  });

  it("prints no progress without a terminal", async () => {
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

  it("shows the recovery in progress of a degraded sandbox", async () => {
    const nextAt = new Date(Date.now() + 9_000_000).toISOString();
    const recovery = { step: "relink", since: nextAt, tries: 1, nextAt, message: "A new link.\x1b[2J" };
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ status: "degraded", recovery })) });
    expect((await holdfast("get", "box")).stdout.toString()).toMatch(
      /^recovery: +relink: A new link\.\\x1b\[2J \(next decision in 2h\)$/m,
    );
  });
});
