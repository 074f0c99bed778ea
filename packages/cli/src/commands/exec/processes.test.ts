import { describe, expect, it } from "vitest";
import { aProcess, json, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/processes";
const id = "prc_0000000000000000";
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast start", () => {
  it("prints only the id, once the process is ready", async () => {
    serve({
      [`POST ${base}`]: json(201, aProcess({ status: "starting" })),
      [`GET ${base}/${id}`]: json(200, aProcess()),
    });
    const line = "start box --name web --restart always --max-restarts 3 --backoff 2s --ready-port 3000";
    const more =
      "--ready-within 5s --connect-port 3000 --on-wake hup -w /app -e A=b -- node server.js --port 3000";
    const done = await runCli(...line.split(" "), ...more.split(" "));
    expect(done).toEqual({ code: 0, stdout: `${id}\n`, stderr: "" });
    expect(bodyOf(base)).toEqual({
      name: "web",
      argv: ["node", "server.js", "--port", "3000"],
      env: { A: "b" },
      cwd: "/app",
      onWake: { signal: "SIGHUP" },
      restart: { on: "always", max: 3, backoffMs: 2_000 },
      readyWhen: { port: 3_000, withinMs: 5_000 },
      connectBy: { port: 3_000, withinMs: 30_000 },
    });
  });

  it("does not wait with --no-wait, and prints the process as JSON", async () => {
    serve({ [`POST ${base}`]: json(201, aProcess({ status: "starting" })) });
    const { code, stdout } = await runCli(
      "start",
      "--no-wait",
      "--json",
      "--name",
      "web",
      "box",
      "--",
      "serve",
    );
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(aProcess({ status: "starting" }));
    expect(requests()).toEqual(["GET /v1/sandboxes/box", `POST ${base}`]);
  });

  it("fails with the reason the process is not ready, and points to its output", async () => {
    const cause = { code: "too_many_restarts", message: "It was started again 10 times in a row." };
    serve({
      [`POST ${base}`]: json(201, aProcess({ status: "starting" })),
      [`GET ${base}/${id}`]: json(
        200,
        aProcess({ status: "given_up", cause, endedAt: "2026-01-01T00:00:00.000Z" }),
      ),
    });
    const { code, stderr } = await runCli("start", "box", "--name", "web", "--", "false");
    expect(code).toBe(1);
    expect(stderr).toContain("Process web is given_up: It was started again 10 times in a row.");
    expect(stderr).toContain(`holdfast logs ${id}-1`);
  });

  it("requires a name and a valid restart policy", async () => {
    expect((await runCli("start", "box", "--", "serve")).stderr).toContain("--name");
    const odd = await runCli("start", "box", "--name", "web", "--restart", "never", "--", "serve");
    expect(odd.stderr).toContain("failure, always");
  });

  it("rejects options that would have no effect", async () => {
    const refused = async (...options: string[]) => {
      const { code, stderr } = await runCli("start", "box", "--name", "web", ...options, "--", "serve");
      expect(code).toBe(2);
      return stderr;
    };
    expect(await refused("--max-restarts", "3")).toContain("require --restart");
    expect(await refused("--backoff", "3s")).toContain("require --restart");
    expect(await refused("--ready-port", "80", "--ready-output", "up")).toContain("cannot be combined");
    expect(await refused("--ready-within", "3s")).toContain("requires --ready-port");
    expect(await refused("--connect-within", "3s")).toContain("requires --connect-port");
    expect(requests()).toEqual([]);
  });

  it("prints a hint when the sandbox does not support restarts", async () => {
    serve({ [`POST ${base}`]: refuse(409, "process_unsupported") });
    const { code, stderr } = await runCli(
      "start",
      "box",
      "--name",
      "web",
      "--restart",
      "always",
      "--",
      "serve",
    );
    expect(code).toBe(1);
    expect(stderr).toContain("process_unsupported");
  });
});

describe("holdfast ps", () => {
  it("lists processes with their actual state", async () => {
    const cause = { code: "between_runs", message: "Run 2 exited with 1; the next one follows." };
    const waits = aProcess({ name: "job", status: "waiting", runs: 2, restarts: 1, cause, suspended: true });
    serve({ [`GET ${base}`]: json(200, { items: [aProcess(), waits], nextCursor: null }) });
    const { code, stdout } = await runCli("ps", "box");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^NAME +STATUS +RUNS +RESTARTS/);
    expect(stdout).toMatch(/\nweb +ready +1 +0 /);
    expect(stdout).toMatch(/\njob +waiting, suspended +2 +1 .*Run 2 exited with 1/);
    expect(JSON.parse((await runCli("ps", "--json", "box")).stdout)).toEqual([aProcess(), waits]);
  });
});

describe("holdfast stop", () => {
  it("prints each stopped process; a failure does not prevent the others from being stopped", async () => {
    serve({
      [`DELETE ${base}/web`]: json(200, aProcess({ status: "stopped", endedAt: "2026-01-01T00:00:00.000Z" })),
      [`DELETE ${base}/job`]: refuse(404, "process_not_found"),
      [`POST ${base}/web/restart`]: json(200, aProcess({ runs: 2 })),
    });
    const { code, stdout, stderr } = await runCli("stop", "box", "job", "web");
    expect({ code, stdout }).toEqual({ code: 1, stdout: "web\n" });
    expect(stderr).toContain("process_not_found");
    expect(await runCli("stop", "--restart", "box", "web")).toMatchObject({ code: 0, stdout: "web\n" });
  });

  it("fails for a process that has not stopped yet", async () => {
    serve({ [`DELETE ${base}/web`]: json(200, aProcess({ status: "ready" })) });
    const { code, stdout, stderr } = await runCli("stop", "box", "web");
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toContain("has not stopped yet");
  });
});
