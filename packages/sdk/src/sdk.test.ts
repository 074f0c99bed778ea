import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  anExec,
  aSandbox,
  chunk,
  drop,
  FaultyServer,
  json,
  lines,
  refuse,
  truncate,
} from "./faulty-server.ts";
import {
  ConflictError,
  ConnectionError,
  type ExecRun,
  Holdfast,
  HoldfastError,
  NotFoundError,
  type Sandbox,
  UnavailableError,
} from "./index.ts";

let server: FaultyServer;
let holdfast: Holdfast;

beforeEach(async () => {
  server = await FaultyServer.start();
  holdfast = new Holdfast({ url: server.url, apiKey: "hf_test" });
});
afterEach(async () => {
  holdfast.close();
  await server.stop();
});

async function aBox(): Promise<Sandbox> {
  server.answer(json(200, aSandbox()));
  const box = await holdfast.sandboxes.get("box");
  server.seen.length = 0;
  return box;
}

async function aRun(): Promise<ExecRun> {
  const box = await aBox();
  server.answer(json(202, anExec({ status: "running", exitCode: null })));
  const run = await box.execs.start("sleep 1");
  server.seen.length = 0;
  return run;
}

const bodies = () => server.seen.map(({ body }) => JSON.parse(body.toString()) as Record<string, unknown>);
const failure = async (promise: Promise<unknown>): Promise<HoldfastError> => {
  const error = await promise.then(
    () => new Error("it did not fail"),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HoldfastError)) throw error;
  return error;
};

describe("an exec", () => {
  it("that ends at once costs one request", async () => {
    const box = await aBox();
    server.answer(json(200, anExec({ stdout: "42\n" })));
    const { stdout, exitCode } = await box.exec("node -p 6*7", { cwd: "/tmp", timeoutMs: 5 });
    expect({ stdout, exitCode }).toEqual({ stdout: "42\n", exitCode: 0 });
    expect(server.seen).toHaveLength(1);
    expect(bodies()[0]).toMatchObject({ command: "node -p 6*7", cwd: "/tmp", timeoutMs: 5 });
    expect(server.seen[0]?.headers.authorization).toBe("Bearer hf_test");
  });

  it("whose answer is lost is asked for again under the same id", async () => {
    const box = await aBox();
    server.answer(drop, truncate(anExec()), json(200, anExec({ exitCode: 3 })));
    const { exitCode } = await box.exec(["sh", "-c", "exit 3"]);
    expect(exitCode).toBe(3);
    const ids = bodies().map(({ id }) => id);
    expect(ids).toHaveLength(3);
    expect(new Set(ids).size).toBe(1);
  });

  it("that outlasts the first request is waited for with further ones", async () => {
    const box = await aBox();
    const running = anExec({ status: "running", exitCode: null });
    server.answer(json(202, running), json(200, running), drop, json(200, anExec({ exitCode: 7 })));
    expect((await box.exec("make")).exitCode).toBe(7);
    expect(server.seen.map(({ method }) => method)).toEqual(["POST", "GET", "GET", "GET"]);
    expect(Number(server.seen[1]?.url.searchParams.get("waitMs"))).toBeGreaterThan(1000);
  });

  it("returns a timeout, a cancellation and a loss as data", async () => {
    const box = await aBox();
    for (const status of ["timed_out", "cancelled", "lost"] as const) {
      server.answer(json(200, anExec({ status, exitCode: null })));
      expect((await box.exec("x")).status).toBe(status);
    }
  });

  it("that was refused throws, with the cause and that nothing was dispatched", async () => {
    const box = await aBox();
    const cause = { code: "capacity", message: "no room" };
    server.answer(json(200, anExec({ status: "refused", exitCode: null, dispatched: "no", cause })));
    expect(await failure(box.exec("x"))).toMatchObject({
      code: "exec_refused",
      message: "no room",
      dispatched: "no",
      execId: "exe_1",
    });
  });

  it("ends its waiting when the signal fires, with the signal's own reason", async () => {
    const box = await aBox();
    server.answer(() => {});
    const reason = new Error("enough");
    const controller = new AbortController();
    const waiting = box.exec("sleep 100", { signal: controller.signal });
    setTimeout(() => controller.abort(reason), 20);
    await expect(waiting).rejects.toBe(reason);
  });
});

describe("a call", () => {
  it("that gets 503 is repeated, and one that gets another error is not", async () => {
    const box = await aBox();
    server.answer(
      refuse(503, "link_lost", { dispatched: "unknown" }),
      refuse(503, "capacity"),
      json(200, anExec()),
    );
    await box.exec("true");
    expect(server.seen).toHaveLength(3);
    server.seen.length = 0;
    server.answer(refuse(409, "wrong_state"));
    expect(await failure(box.exec("true"))).toBeInstanceOf(ConflictError);
    expect(server.seen).toHaveLength(1);
  });

  it("that must not happen twice is repeated only if it was not dispatched", async () => {
    const run = await aRun();
    server.answer(drop);
    expect(await failure(run.signal("SIGINT"))).toMatchObject({ code: "connection", dispatched: "unknown" });
    expect(server.seen).toHaveLength(1);
    server.seen.length = 0;
    server.answer(refuse(503, "link_lost", { dispatched: "unknown" }));
    expect(await failure(run.signal("SIGINT"))).toBeInstanceOf(UnavailableError);
    expect(server.seen).toHaveLength(1);
    server.seen.length = 0;
    server.answer(refuse(503, "link_lost", { dispatched: "no" }), json(200, anExec()));
    await run.signal("SIGINT");
    expect(server.seen).toHaveLength(2);
  });

  it("creates under one idempotency key, however often it is sent", async () => {
    server.answer(drop, refuse(503, "shutting_down"), json(201, aSandbox()));
    await holdfast.sandboxes.create({ image: "host" });
    const keys = server.seen.map(({ headers }) => headers["idempotency-key"]);
    expect(keys).toHaveLength(3);
    expect(new Set(keys).size).toBe(1);
    expect(keys[0]).toBeTruthy();
  });

  it("survives a server that goes away and comes back", async () => {
    const box = await aBox();
    const { port } = server;
    await server.stop();
    setTimeout(async () => {
      server = await FaultyServer.start(port);
      server.answer(json(200, anExec({ exitCode: 5 })));
    }, 1_500);
    expect((await box.exec("true")).exitCode).toBe(5);
  });

  it("gives up soon on a server that was never there, and says that nothing was dispatched", async () => {
    const { url } = server;
    await server.stop();
    const error = await failure(new Holdfast({ url, apiKey: "x" }).sandboxes.list());
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ code: "connection", dispatched: "no", retryable: true, method: "GET" });
    expect(error.hint).toContain("npm start");
    server = await FaultyServer.start();
  });

  it("that is never answered ends at its timeout", async () => {
    server.answer(() => {});
    const hasty = new Holdfast({ url: server.url, apiKey: "x", timeoutMs: 50 });
    expect(await failure(hasty.stats())).toMatchObject({ code: "timeout", dispatched: "unknown" });
    hasty.close();
  });

  it("carries everything the server said into its error", async () => {
    server.answer(
      refuse(404, "sandbox_not_found", { sandboxId: "sbx_x", cause: { code: "a", message: "b" } }),
    );
    const error = await failure(holdfast.sandboxes.get("nobody"));
    expect(error).toBeInstanceOf(NotFoundError);
    expect(error).toMatchObject({
      name: "NotFoundError",
      code: "sandbox_not_found",
      message: "said sandbox_not_found",
      hint: "do better",
      status: 404,
      method: "GET",
      url: `${server.url}/v1/sandboxes/nobody`,
      requestId: "req_1",
      sandboxId: "sbx_x",
      cause: { code: "a", message: "b" },
    });
    expect(error.body).toContain("do better");
  });

  it("tells an answer that is not Holdfast's from one that is", async () => {
    server.answer((_, response) => void response.writeHead(404).end("<h1>nginx</h1>"));
    expect(await failure(holdfast.sandboxes.get("x"))).toMatchObject({
      code: "unexpected_response",
      body: "<h1>nginx</h1>",
    });
  });

  it("goes through the caller's fetch where one is given, with the same retries", async () => {
    const viaFetch = new Holdfast({ url: server.url, apiKey: "x", fetch: globalThis.fetch });
    server.answer(json(200, aSandbox()), drop, truncate(anExec()), json(200, anExec({ exitCode: 9 })));
    const box = await viaFetch.sandboxes.get("box");
    expect((await box.exec("true")).exitCode).toBe(9);
    expect(server.seen).toHaveLength(4);
  });
});

describe("output", () => {
  const end = { type: "end", cursor: "9", exec: anExec() };

  it("is taken up behind the last chunk after a broken stream, without gap or repetition", async () => {
    const run = await aRun();
    server.answer(
      lines(
        [
          { type: "start", cursor: "0", exec: anExec() },
          chunk("stdout", "3", "one"),
          chunk("stderr", "5", "e1"),
        ],
        "cut",
      ),
      drop,
      refuse(503, "shutting_down"),
      lines([{ type: "keepalive", cursor: "5" }]),
      lines([chunk("stdout", "8", "two"), end]),
    );
    const got: string[] = [];
    for await (const { stream, text, cursor } of run.output()) got.push(`${stream}:${text}@${cursor}`);
    expect(got).toEqual(["stdout:one@3", "stderr:e1@5", "stdout:two@8"]);
    expect(server.seen.map(({ url }) => url.searchParams.get("cursor"))).toEqual([null, "5", "5", "5", "5"]);
    expect(run.info.status).toBe("exited");
  });

  it("is byte-exact, and its text never shows half a character", async () => {
    const run = await aRun();
    const euro = Buffer.from("a€b𝄞c");
    const records = [...euro].map((byte, at) => chunk("stdout", String(at + 1), Uint8Array.of(byte)));
    const noise = randomBytes(200_000);
    server.answer(lines([...records, chunk("stderr", "99", noise), end]));
    let text = "";
    const stderr: Uint8Array[] = [];
    for await (const piece of run.output()) {
      if (piece.stream === "stdout") text += piece.text;
      else stderr.push(piece.data);
    }
    expect(text).toBe("a€b𝄞c");
    expect(Buffer.concat(stderr).equals(noise)).toBe(true);
  });

  it("of a server that only ever hangs up ends with an error", async () => {
    const run = await aRun();
    server.answer(lines([]));
    const reading = (async () => {
      for await (const _ of run.output());
    })();
    expect(await failure(reading)).toBeInstanceOf(ConnectionError);
  }, 30_000);

  it("of a stream that goes silent is asked for again", async () => {
    const hasty = new Holdfast({ url: server.url, apiKey: "x", timeoutMs: 100 });
    server.answer(
      json(200, anExec({ status: "running" })),
      (_, response) => {
        response.writeHead(200).write(`${JSON.stringify(chunk("stdout", "3", "one"))}\n`);
      },
      lines([end]),
    );
    const run = await hasty.execs.get("exe_1");
    const got: string[] = [];
    for await (const { text } of run.output()) got.push(text);
    expect(got).toEqual(["one"]);
    expect(server.seen.at(-1)?.url.searchParams.get("cursor")).toBe("3");
    hasty.close();
  });

  it("that is not followed ends with what is there", async () => {
    const run = await aRun();
    server.answer(lines([chunk("stdout", "3", "one")]));
    const got: string[] = [];
    for await (const { text } of run.output({ follow: false })) got.push(text);
    expect(got).toEqual(["one"]);
    expect(server.seen).toHaveLength(1);
  });

  it("ends its connection when the reader leaves early", async () => {
    const run = await aRun();
    let closed: () => void = () => {};
    const left = new Promise<void>((resolve) => {
      closed = resolve;
    });
    server.answer((_, response) => {
      response.on("close", closed);
      response.writeHead(200).write(`${JSON.stringify(chunk("stdout", "3", "one"))}\n`);
    });
    for await (const _ of run.output()) break;
    await left;
  });
});

describe("stdin", () => {
  it("arrives once and in order when answers are lost and only parts are taken", async () => {
    const run = await aRun();
    const data = randomBytes(600_000);
    const taken: Buffer[] = [];
    let accepted = 0;
    let turn = 0;
    server.answer(({ url, body }, response) => {
      const skip = accepted - Number(url.searchParams.get("offset"));
      const fresh = body.subarray(skip, skip + 200_000);
      taken.push(fresh);
      accepted += fresh.length;
      turn += 1;
      if (turn % 2 === 0) response.socket?.destroy();
      else response.end(JSON.stringify({ accepted }));
    });
    await Promise.all([run.writeStdin(data.subarray(0, 7)), run.writeStdin(data.subarray(7), { end: true })]);
    expect(Buffer.concat(taken).equals(data)).toBe(true);
    expect(server.seen.at(-1)?.url.searchParams.get("end")).toBe("true");
  });
});

describe("a handle", () => {
  it("that created its sandbox deletes it when disposed, and waits until it is gone", async () => {
    server.answer(
      json(201, aSandbox()),
      json(202, aSandbox({ status: "stopping" })),
      json(200, aSandbox({ status: "terminated" })),
    );
    {
      await using box = await holdfast.sandboxes.create();
      expect(box.name).toBe("box");
    }
    expect(server.seen.map(({ method }) => method)).toEqual(["POST", "DELETE", "DELETE"]);
  });

  it("that found its sandbox leaves it alone", async () => {
    server.answer(json(200, aSandbox()));
    {
      await using found = await holdfast.sandboxes.get("box");
      await using same = await holdfast.sandboxes.getOrCreate({ name: "box" });
      expect(found.id).toBe(same.id);
    }
    expect(server.seen.map(({ method }) => method)).toEqual(["GET", "POST"]);
  });
});

describe("files", () => {
  it("of any size go up and down byte-exact, also as streams", async () => {
    const box = await aBox();
    const content = randomBytes(3_000_000);
    server.answer(
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      (_, response) => void response.end(content),
    );
    await box.files.write("/a b", content, { mode: "0755" });
    await box.files.write(
      "/c",
      (async function* () {
        yield "text ";
        yield content;
      })(),
    );
    expect(server.seen[0]?.body.equals(content)).toBe(true);
    expect(server.seen[0]?.url.searchParams.get("path")).toBe("/a b");
    expect(server.seen[1]?.body.equals(Buffer.concat([Buffer.from("text "), content]))).toBe(true);
    expect(Buffer.from(await box.files.read("/a b")).equals(content)).toBe(true);
  });

  it("in memory are sent again after a lost answer, streams are not", async () => {
    const box = await aBox();
    server.answer(drop, json(200, {}));
    await box.files.write("/a", randomBytes(2_000_000));
    expect(server.seen).toHaveLength(2);
    server.seen.length = 0;
    const stream = async function* () {
      yield "once";
    };
    server.answer(drop, json(200, {}));
    expect(await failure(box.files.write("/a", stream()))).toBeInstanceOf(ConnectionError);
    expect(server.seen).toHaveLength(1);
  });

  it("whose upload is refused early report the refusal and stop reading the source", async () => {
    const box = await aBox();
    let pulled = 0;
    const endless = async function* () {
      for (;;) {
        pulled += 1;
        yield new Uint8Array(65_536);
      }
    };
    server.early((_, response) => refuse(403, "permission_denied")({} as never, response));
    expect(await failure(box.files.write("/etc/x", endless()))).toMatchObject({ code: "permission_denied" });
    const before = pulled;
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(pulled - before).toBeLessThan(3);
  });

  it("that are not there do not exist, and other failures are not taken for that", async () => {
    const box = await aBox();
    server.answer(refuse(404, "file_not_found"), refuse(404, "sandbox_not_found"));
    expect(await box.files.exists("/x")).toBe(false);
    expect(await failure(box.files.exists("/x"))).toMatchObject({ code: "sandbox_not_found" });
  });
});
