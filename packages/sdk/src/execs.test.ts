import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { ConnectionError, Holdfast } from "./index.ts";
import { failure, useBench } from "./testing/bench.ts";
import { anExec, chunk, drop, json, lines, refuse, truncate } from "./testing/faulty-server.ts";

const bench = useBench();
const bodies = () =>
  bench.server.seen.map(({ body }) => JSON.parse(body.toString()) as Record<string, unknown>);

describe("an exec", () => {
  it("that ends at once costs one request", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, anExec({ stdout: "42\n" })));
    const { stdout, exitCode } = await box.exec("node -p 6*7", { cwd: "/tmp", timeoutMs: 5 });
    expect({ stdout, exitCode }).toEqual({ stdout: "42\n", exitCode: 0 });
    expect(bench.server.seen).toHaveLength(1);
    expect(bodies()[0]).toMatchObject({ command: "node -p 6*7", cwd: "/tmp", timeoutMs: 5 });
    expect(bench.server.seen[0]?.headers.authorization).toBe("Bearer hf_test");
  });

  it("whose answer is lost is asked for again under the same id", async () => {
    const box = await bench.box();
    bench.server.answer(drop, truncate(anExec()), json(200, anExec({ exitCode: 3 })));
    const { exitCode } = await box.exec(["sh", "-c", "exit 3"]);
    expect(exitCode).toBe(3);
    const ids = bodies().map(({ id }) => id);
    expect(ids).toHaveLength(3);
    expect(ids[0]).toMatch(/^exe_/);
    expect(new Set(ids).size).toBe(1);
  });

  it("that outlasts the first request is waited for with further ones", async () => {
    const box = await bench.box();
    const running = anExec({ status: "running", exitCode: null });
    bench.server.answer(json(202, running), json(200, running), drop, json(200, anExec({ exitCode: 7 })));
    expect((await box.exec("make")).exitCode).toBe(7);
    expect(bench.server.seen.map(({ method }) => method)).toEqual(["POST", "GET", "GET", "GET"]);
    expect(Number(bench.server.seen[1]?.url.searchParams.get("waitMs"))).toBeGreaterThan(1000);
  });

  it("returns a timeout, a cancellation and a loss as data", async () => {
    const box = await bench.box();
    for (const status of ["timed_out", "cancelled", "lost"] as const) {
      bench.server.answer(json(200, anExec({ status, exitCode: null })));
      expect((await box.exec("x")).status).toBe(status);
    }
  });

  it("that was refused throws, with the cause and that nothing was dispatched", async () => {
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

  it("ends its waiting when the signal fires, with the signal's own reason", async () => {
    const box = await bench.box();
    bench.server.answer(() => {});
    const reason = new Error("enough");
    const controller = new AbortController();
    const waiting = box.exec("sleep 100", { signal: controller.signal });
    setTimeout(() => controller.abort(reason), 20);
    await expect(waiting).rejects.toBe(reason);
  });
});

describe("output", () => {
  const end = { type: "end", cursor: "9", exec: anExec() };

  it("is taken up behind the last chunk after a broken stream, without gap or repetition", async () => {
    const run = await bench.run();
    bench.server.answer(
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
    expect(bench.server.seen.map(({ url }) => url.searchParams.get("cursor"))).toEqual([
      null,
      "5",
      "5",
      "5",
      "5",
    ]);
    expect(run.info.status).toBe("exited");
  });

  it("is byte-exact, and its text never shows half a character", async () => {
    const run = await bench.run();
    const euro = Buffer.from("a€b𝄞c");
    const records = [...euro].map((byte, at) => chunk("stdout", String(at + 1), Uint8Array.of(byte)));
    const noise = randomBytes(200_000);
    bench.server.answer(lines([...records, chunk("stderr", "99", noise), end]));
    let text = "";
    const stderr: Uint8Array[] = [];
    for await (const piece of run.output()) {
      if (piece.stream === "stdout") text += piece.text;
      else stderr.push(piece.data);
    }
    expect(text).toBe("a€b𝄞c");
    expect(Buffer.concat(stderr).equals(noise)).toBe(true);
  });

  it.each([
    ["at once", []],
    ["after its greeting", [{ type: "start", cursor: "0", exec: anExec({ status: "running" }) }]],
  ])(
    "of a server that only ever hangs up, %s, ends with an error",
    async (_, records) => {
      const run = await bench.run();
      bench.server.answer(lines(records));
      const reading = (async () => {
        for await (const _ of run.output());
      })();
      expect(await failure(reading)).toBeInstanceOf(ConnectionError);
    },
    30_000,
  );

  it("of a stream that goes silent is asked for again", async () => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 100 });
    bench.server.answer(
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
    expect(bench.server.seen.at(-1)?.url.searchParams.get("cursor")).toBe("3");
    hasty.close();
  });

  it("that is not followed ends with what is there", async () => {
    const run = await bench.run();
    bench.server.answer(lines([chunk("stdout", "3", "one")]));
    const got: string[] = [];
    for await (const { text } of run.output({ follow: false })) got.push(text);
    expect(got).toEqual(["one"]);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("ends its connection when the reader leaves early", async () => {
    const run = await bench.run();
    let closed: () => void = () => {};
    const left = new Promise<void>((resolve) => {
      closed = resolve;
    });
    bench.server.answer((_, response) => {
      response.on("close", closed);
      response.writeHead(200).write(`${JSON.stringify(chunk("stdout", "3", "one"))}\n`);
    });
    for await (const _ of run.output()) break;
    await left;
  });
});

describe("stdin", () => {
  it("arrives once and in order when answers are lost and only parts are taken", async () => {
    const run = await bench.run();
    const data = randomBytes(600_000);
    const taken: Buffer[] = [];
    let accepted = 0;
    let turn = 0;
    bench.server.answer(({ url, body }, response) => {
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
    expect(bench.server.seen.at(-1)?.url.searchParams.get("end")).toBe("true");
  });

  it("goes on behind what the start brought along, and where another handle left off", async () => {
    const box = await bench.box();
    const started = json(202, anExec({ status: "running" }));
    const take: typeof drop = ({ url, body }, response) => {
      const offset = Number(url.searchParams.get("offset"));
      response.end(JSON.stringify({ accepted: Math.max(7, offset + body.length) }));
    };
    bench.server.answer(started, take, started, take);
    const run = await box.execs.start("cat", { stdin: "zwölf", openStdin: true });
    await run.writeStdin("x");
    const found = await box.execs.start("cat", { id: "mine", openStdin: true });
    await found.writeStdin("y");
    const offsets = bench.server.seen.map(({ url }) => url.searchParams.get("offset"));
    expect(offsets).toEqual([null, "6", null, "0", "7"]);
  });
});
