import { describe, expect, it } from "vitest";
import { ConflictError, ProcessNotReadyError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import {
  type Answer,
  anExec,
  aProcess,
  chunk,
  drop,
  ending,
  frames,
  greeting,
  json,
  refuse,
} from "../testing/faulty-server.ts";

const bench = useBench();
const base = "/v1/sandboxes/sbx_0000000000000000/processes";
const id = "prc_0000000000000000";
const requests = () =>
  bench.server.seen.map(({ method, url }) => `${method} ${url.pathname.replace(base, "")}${url.search}`);
const inTurn = (...answers: Answer[]): Answer => {
  let next = 0;
  return (request, response) => {
    const answer = answers[Math.min(next, answers.length - 1)] ?? drop;
    next += 1;
    return answer(request, response);
  };
};
describe("a named process", () => {
  it("is started with the given options, with a retry after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(inTurn(drop, json(200, aProcess())));
    const options = { restart: { on: "always" }, readyWhen: { port: 3000 }, cwd: "/app" } as const;
    const web = await box.processes.start("web", ["node", "server.js"], options);
    expect(web).toMatchObject({ id, name: "web", info: aProcess() });
    expect(requests()).toEqual(["POST ?waitMs=0", "POST ?waitMs=0"]);
    expect(JSON.parse(String(bench.server.seen[1]?.body))).toEqual({
      name: "web",
      argv: ["node", "server.js"],
      ...options,
    });
  });

  it("with different settings is a conflict", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(409, "process_conflict"));
    expect(await failure(box.processes.start("web", "x"))).toBeInstanceOf(ConflictError);
  });

  it("is listed, found, stopped and restarted, by name or by its handle", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, { items: [aProcess()], nextCursor: null }));
    expect(await box.processes.list()).toEqual([aProcess()]);
    bench.server.answer(json(200, aProcess({ status: "stopped" })));
    const web = await box.processes.get("web");
    expect((await web.stop()).status).toBe("stopped");
    await web.restart();
    await box.processes.stop("web");
    await box.processes.restart("web");
    await web.runs({ limit: 2 });
    expect(requests()).toEqual([
      "GET ",
      "GET /web?waitMs=0",
      `DELETE /${id}`,
      `POST /${id}/restart?waitMs=0`,
      "DELETE /web",
      "POST /web/restart?waitMs=0",
      `GET /${id}/runs?limit=2`,
    ]);
  });

  it("is not restarted twice after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(drop);
    expect((await failure(box.processes.restart("web"))).dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(1);
  });
});

describe("waiting for readiness", () => {
  const started = async (...answers: Answer[]) => {
    const box = await bench.box();
    bench.server.answer(json(201, aProcess({ status: "starting", ready: null })));
    const web = await box.processes.start("web", "serve");
    bench.server.answer(inTurn(...answers));
    return web;
  };

  it("continues until the process is ready, across lost connections and restarts", async () => {
    const web = await started(
      json(200, aProcess({ status: "starting" })),
      drop,
      json(200, aProcess({ status: "waiting" })),
      json(200, aProcess({ runs: 2 })),
    );
    expect(await web.ready()).toMatchObject({ status: "ready", runs: 2 });
    expect(web.info.runs).toBe(2);
  });

  it.each(["given_up", "exited", "stopped", "lost", "unready"] as const)(
    "throws with the process if its status is %s",
    async (status) => {
      const cause = { code: "port_closed", message: "Nothing listens at port 3000." };
      const web = await started(json(200, aProcess({ status, cause, ready: null })));
      const error = await failure(web.ready());
      expect(error).toBeInstanceOf(ProcessNotReadyError);
      expect(error).toMatchObject({ code: "process_not_ready", process: { status }, cause });
      expect(error.message).toContain("Nothing listens at port 3000");
      expect(error.retryable).toBe(status === "unready");
    },
  );

  it("ends if the sandbox failed, because nothing follows until it is restarted", async () => {
    const cause = { code: "sandbox_failed", message: "Run 1 was lost; its sandbox failed." };
    const web = await started(json(200, aProcess({ status: "waiting", cause, ready: null })));
    const error = await failure(web.ready({ giveUpAfterMs: 5_000 }));
    expect(error).toMatchObject({ code: "process_not_ready", retryable: false, cause });
  });

  it("ends with the known state after giveUpAfterMs", async () => {
    const web = await started(json(200, aProcess({ status: "starting" })));
    const error = await failure(web.ready({ giveUpAfterMs: 100 }));
    expect(error).toMatchObject({ code: "process_not_ready", process: { status: "starting" } });
  });
});

describe("output", () => {
  it("continues with the next run, until the process ends", async () => {
    const box = await bench.box();
    const execOf = (run: number) => anExec({ id: `${id}-${run}`, status: "exited", exitCode: run });
    const outputOf = (run: number) =>
      frames([greeting({ id: `${id}-${run}` }), chunk("stdout", 5, `run ${run}`), ending(5, execOf(run))]);
    let shown = 0;
    bench.server.answer((request, response) => {
      const { pathname } = request.url;
      const run = Number(/-(\d+)/.exec(pathname.slice(pathname.indexOf(id)))?.[1]);
      if (pathname.endsWith("/output")) return outputOf(run)(request, response);
      if (pathname.startsWith("/v1/execs/")) return json(200, execOf(run))(request, response);
      shown += 1;
      const process =
        shown < 4
          ? aProcess({ runs: 1, status: shown === 3 ? "waiting" : "ready" })
          : aProcess({ runs: 2, status: shown < 6 ? "ready" : "given_up" });
      return json(200, process)(request, response);
    });
    const web = await box.processes.get("web");
    const heard: string[] = [];
    for await (const { execId, text } of web.output()) heard.push(`${execId.slice(-1)}: ${text}`);
    expect(heard).toEqual(["1: run 1", "2: run 2"]);
  });
});
