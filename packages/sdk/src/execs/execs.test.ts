import { describe, expect, it } from "vitest";
import { ExecUnfinishedError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, anExec, drop, FaultyServer, json, refuse, truncate } from "../testing/faulty-server.ts";

const bench = useBench();
const bodies = () =>
  bench.server.seen.map(({ body }) => JSON.parse(body.toString()) as Record<string, unknown>);

describe("an exec", () => {
  it("that ends immediately costs one request", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, anExec({ stdout: "42\n" })));
    const { stdout, exitCode } = await box.exec("node -p 6*7", { cwd: "/tmp", timeoutMs: 5 });
    expect({ stdout, exitCode }).toEqual({ stdout: "42\n", exitCode: 0 });
    expect(bench.server.seen).toHaveLength(1);
    expect(bodies()[0]).toMatchObject({ command: "node -p 6*7", cwd: "/tmp", timeoutMs: 5 });
    expect(bench.server.seen[0]?.headers.authorization).toBe("Bearer hf_test");
  });

  it("is retried with the same id after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(drop, truncate(anExec()), json(200, anExec({ exitCode: 3 })));
    const { exitCode } = await box.exec(["sh", "-c", "exit 3"]);
    expect(exitCode).toBe(3);
    const ids = bodies().map(({ id }) => id);
    expect(ids).toHaveLength(3);
    expect(ids[0]).toMatch(/^exe_/);
    expect(new Set(ids).size).toBe(1);
  });

  it("that outlasts the first request is awaited with further ones", async () => {
    const box = await bench.box();
    const running = anExec({ status: "running", exitCode: null });
    bench.server.answer(json(202, running), json(200, running), drop, json(200, anExec({ exitCode: 7 })));
    expect((await box.exec("make")).exitCode).toBe(7);
    expect(bench.server.seen.map(({ method }) => method)).toEqual(["POST", "GET", "GET", "GET"]);
    expect(Number(bench.server.seen[1]?.url.searchParams.get("waitMs"))).toBeGreaterThan(1000);
  });

  it("returns a timeout, a cancellation and a loss as results", async () => {
    const box = await bench.box();
    for (const status of ["timed_out", "cancelled", "lost"] as const) {
      bench.server.answer(json(200, anExec({ status, exitCode: null })));
      expect((await box.exec("x")).status).toBe(status);
    }
  });

  it("that was refused throws with the cause and dispatched 'no'", async () => {
    const box = await bench.box();
    const cause = { code: "capacity", message: "no room" };
    bench.server.answer(json(200, anExec({ status: "refused", exitCode: null, dispatched: "no", cause })));
    expect(await failure(box.exec("x"))).toMatchObject({
      code: "exec_refused",
      message: "no room",
      dispatched: "no",
      execId: "exe_1",
    });
  });

  it("stops waiting when the signal fires, with the signal's reason", async () => {
    const box = await bench.box();
    bench.server.answer(() => {});
    const reason = new Error("enough");
    const controller = new AbortController();
    const waiting = box.exec("sleep 100", { signal: controller.signal });
    setTimeout(() => controller.abort(reason), 20);
    await expect(waiting).rejects.toBe(reason);
  });

  it("runs once, however often its start is sent", async () => {
    const box = await bench.box();
    const ran: string[] = [];
    const server: Answer = ({ body }, response) => {
      const { id } = JSON.parse(body.toString()) as { id: string };
      if (!ran.includes(id)) ran.push(id);
      if (bench.server.seen.length < 5) response.socket?.destroy();
      else response.end(JSON.stringify(anExec({ id })));
    };
    bench.server.answer(server);
    const { id } = await box.exec("rm -rf /tmp/x");
    expect(bench.server.seen).toHaveLength(5);
    expect(ran).toEqual([id]);
  });

  it("sends only the given options", async () => {
    const box = await bench.box();
    bench.server.answer(json(202, anExec({ status: "running" })));
    await box.execs.start(["top"], { id: "mine", cwd: undefined, tty: { cols: 80, rows: 24 } });
    expect(bodies()).toEqual([{ id: "mine", argv: ["top"], tty: { cols: 80, rows: 24 }, detach: true }]);
  });

  it("sends its standby options", async () => {
    const box = await bench.box();
    bench.server.answer(json(202, anExec({ status: "running", keepAwake: false, suspended: true })));
    const run = await box.execs.start("serve", { keepAwake: false, onWake: { signal: "SIGHUP" } });
    expect(run.info).toMatchObject({ keepAwake: false, suspended: true });
    bench.server.answer(json(200, anExec()));
    await box.exec("serve", { onWake: { argv: ["reconnect"] } });
    expect(bodies()).toMatchObject([
      { command: "serve", keepAwake: false, onWake: { signal: "SIGHUP" } },
      { command: "serve", onWake: { argv: ["reconnect"] } },
    ]);
    expect(bodies()[1]).not.toHaveProperty("keepAwake");
  });

  it("that wakes its sandbox is retried with the same id until the sandbox is awake", async () => {
    const box = await bench.box();
    bench.server.answer(
      refuse(503, "wake_timeout"),
      refuse(429, "too_many_held", { retryable: true }),
      json(200, anExec({ exitCode: 4 })),
    );
    expect((await box.exec("x")).exitCode).toBe(4);
    expect(new Set(bodies().map(({ id }) => id)).size).toBe(1);
    expect(bodies()).toHaveLength(3);
  });
});

describe("giving up on an exec", () => {
  const running = anExec({ status: "running", exitCode: null });
  const never: Answer = () => {};

  it("after giveUpAfterMs reports its id and last known state", async () => {
    const box = await bench.box();
    bench.server.answer(json(202, running), never);
    const error = await failure(box.exec("sleep 100", { id: "mine", giveUpAfterMs: 200 }));
    expect(error).toBeInstanceOf(ExecUnfinishedError);
    expect(error).toMatchObject({
      code: "exec_unfinished",
      execId: "mine",
      exec: { status: "running" },
      dispatched: "yes",
      retryable: true,
      cause: { name: "TimeoutError" },
    });
    expect(error.message).toMatch(/after 200 ms .* its last known status was running/);
  });

  it("before any response reports that it may have been started", async () => {
    const box = await bench.box();
    bench.server.answer(never);
    const error = await failure(box.exec("sleep 100", { giveUpAfterMs: 50 }));
    const { id } = bodies()[0] ?? {};
    expect(error).toMatchObject({ code: "exec_unfinished", execId: id, exec: null, dispatched: "unknown" });
    expect(error.hint).toContain("never runs twice");
    bench.server.answer(drop);
    const lost = await failure(box.execs.start("sleep 100"));
    expect(lost).toMatchObject({ code: "exec_unfinished", exec: null, cause: { code: "connection" } });
  });

  it("is not reported if no request arrived, because nothing was started", async () => {
    const box = await bench.box();
    await bench.server.stop();
    // Until the client has noticed that the idle connection is closed, it could send a request on it.
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(await failure(box.exec("true"))).toMatchObject({ code: "connection", dispatched: "no" });
    bench.server = await FaultyServer.start();
  });

  it("reports that it may have been started if any attempt may have arrived", async () => {
    const box = await bench.box();
    const { port } = bench.server;
    bench.server.answer((request, response) => {
      drop(request, response);
      void bench.server.stop();
    });
    expect(await failure(box.exec("true"))).toMatchObject({ code: "exec_unfinished", dispatched: "unknown" });
    bench.server = await FaultyServer.start(port);
  });

  it("does not poll constantly if the server responds without waiting", async () => {
    const run = await bench.run();
    bench.server.answer(json(200, running));
    expect(await failure(run.result({ giveUpAfterMs: 600 }))).toMatchObject({ code: "exec_unfinished" });
    expect(bench.server.seen.length).toBeLessThan(12);
  });

  it("after an outage reports the outage as its cause", async () => {
    const run = await bench.run();
    bench.server.answer(drop);
    const error = await failure(run.result());
    expect(error).toMatchObject({ code: "exec_unfinished", execId: "exe_1", exec: { status: "running" } });
    expect(error.cause).toMatchObject({ code: "connection" });
    bench.server.answer(json(200, anExec({ exitCode: 4 })));
    expect((await run.result()).exitCode).toBe(4);
  });

  it("does not happen if the server recovers in time: 'unavailable' is retried like an outage", async () => {
    const run = await bench.run();
    const back = performance.now() + 1_500;
    bench.server.answer((request, response) =>
      performance.now() < back
        ? refuse(503, "link_lost", { dispatched: "unknown" })(request, response)
        : json(200, anExec({ exitCode: 4 }))(request, response),
    );
    expect((await run.result()).exitCode).toBe(4);
  });

  it("does not replace errors that the server returns", async () => {
    const run = await bench.run();
    bench.server.answer(refuse(404, "exec_not_found"));
    expect(await failure(run.result({ giveUpAfterMs: 5_000 }))).toMatchObject({ code: "exec_not_found" });
  });

  it("by the caller's signal throws its reason, and the handle keeps the known state", async () => {
    const run = await bench.run();
    bench.server.answer(json(200, anExec({ status: "running", exitCode: null, startedAt: "later" })), never);
    const controller = new AbortController();
    const waiting = run.result({ signal: controller.signal, giveUpAfterMs: 60_000 });
    const reason = new Error("enough");
    setTimeout(() => controller.abort(reason), 100);
    await expect(waiting).rejects.toBe(reason);
    expect(run.info).toMatchObject({ status: "running", startedAt: "later" });
  });
});
