import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, anExec, drop, json, refuse, type Seen } from "../testing/faulty-server.ts";

const bench = useBench();
const asked = (name: string) => bench.server.seen.map(({ url }) => url.searchParams.get(name));

/** A server that accepts at most `most` bytes per request, like a keeper, and loses every second response. */
function keeper(most: number) {
  const taken: Buffer[] = [];
  let accepted = 0;
  let turn = 0;
  const answer: Answer = ({ url, body }: Seen, response) => {
    const skip = accepted - Number(url.searchParams.get("offset"));
    const fresh = body.subarray(skip, skip + most);
    taken.push(fresh);
    accepted += fresh.length;
    turn += 1;
    if (turn % 2 === 0) response.socket?.destroy();
    else response.end(JSON.stringify({ accepted }));
  };
  return { answer, taken: () => Buffer.concat(taken) };
}

describe("stdin", () => {
  it("arrives once and in order if responses are lost and only parts are accepted", async () => {
    const run = await bench.run();
    const data = randomBytes(1_200_000);
    const { answer, taken } = keeper(400_000);
    bench.server.answer(answer);
    await Promise.all([run.writeStdin(data.subarray(0, 7)), run.writeStdin(data.subarray(7), { end: true })]);
    expect(taken().equals(data)).toBe(true);
    expect(bench.server.seen.at(-1)?.url.searchParams.get("end")).toBe("true");
  });

  it.each([
    ["an async iterable", (pieces: Buffer[]) => pieces.values() as unknown as AsyncIterable<Uint8Array>],
    ["a ReadableStream", (pieces: Buffer[]) => ReadableStream.from(pieces) as AsyncIterable<Uint8Array>],
  ])("can be %s, and many pieces become few requests", async (_, sourceOf) => {
    const run = await bench.run();
    const data = randomBytes(3_000_000);
    const pieces = Array.from({ length: 300 }, (_, at) => data.subarray(at * 10_000, (at + 1) * 10_000));
    const { answer, taken } = keeper(Number.POSITIVE_INFINITY);
    bench.server.answer(answer);
    await run.writeStdin(sourceOf(pieces), { end: true });
    expect(taken().equals(data)).toBe(true);
    expect(asked("end").at(-1)).toBe("true");
    expect(bench.server.seen.length).toBeLessThan(40);
  });

  it("continues after the start's input, and after another handle's", async () => {
    const box = await bench.box();
    const started = json(202, anExec({ status: "running" }));
    const take: Answer = ({ url, body }, response) => {
      const offset = Number(url.searchParams.get("offset"));
      response.end(JSON.stringify({ accepted: Math.max(7, offset + body.length) }));
    };
    bench.server.answer(started, take, started, take);
    const run = await box.execs.start("cat", { stdin: "zwölf", openStdin: true });
    await run.writeStdin("x");
    const found = await box.execs.start("cat", { id: "mine", openStdin: true });
    await found.writeStdin("y");
    expect(asked("offset")).toEqual([null, "6", null, "0", "7"]);
  });

  it("asks for the position after a failed write, because it is unknown how much arrived", async () => {
    const run = await bench.run();
    bench.server.answer(drop);
    expect(await failure(run.writeStdin("abc"))).toMatchObject({ code: "connection" });
    bench.server.seen.length = 0;
    bench.server.answer(json(200, { accepted: 3 }), json(200, { accepted: 4 }));
    await run.writeStdin("d");
    expect(asked("offset")).toEqual(["0", "3"]);
  });

  it("waits for a queued exec, but not for one without stdin", async () => {
    const run = await bench.run();
    const refusal = refuse(409, "wrong_state");
    const queued = json(200, anExec({ status: "queued" }));
    const running = json(200, anExec({ status: "running" }));
    bench.server.answer(refusal, queued, refusal, running, json(200, { accepted: 1 }));
    await run.writeStdin("x");
    bench.server.answer(refusal, running, refusal, running);
    expect(await failure(run.writeStdin("y"))).toMatchObject({ code: "wrong_state" });
    bench.server.seen.length = 0;
    bench.server.answer(refusal, json(200, anExec()));
    expect(await failure(run.writeStdin("z"))).toMatchObject({ code: "wrong_state" });
    expect(bench.server.seen).toHaveLength(2);
  });

  it("that is not accepted is given up after the caller's limit", async () => {
    const run = await bench.run();
    bench.server.answer((_, response) => void setTimeout(() => response.end('{"accepted":0}'), 20));
    const error = await failure(run.writeStdin("x", { giveUpAfterMs: 200 }));
    expect(error).toMatchObject({ code: "exec_unfinished", exec: { status: "running" } });
  });

  it("is given up even while its source is idle", async () => {
    const run = await bench.run();
    bench.server.answer(json(200, { accepted: 1 }));
    async function* mute() {
      yield "x";
      await new Promise(() => {});
    }
    const error = await failure(run.writeStdin(mute(), { giveUpAfterMs: 100 }));
    expect(error).toMatchObject({ code: "exec_unfinished" });
    expect(bench.server.seen).toHaveLength(1);
  });
});

describe("a terminal", () => {
  it("appends input after other handles' input, and never sends it twice", async () => {
    const run = await bench.run();
    bench.server.answer(json(200, { accepted: 9 }));
    await Promise.all([run.write("l"), run.write("s\n")]);
    expect(bench.server.seen.map(({ body }) => body.toString())).toEqual(["l", "s\n"]);
    expect(asked("offset")).toEqual([null, null]);
    bench.server.seen.length = 0;
    bench.server.answer(drop);
    expect(await failure(run.write("rm"))).toMatchObject({ code: "connection", dispatched: "unknown" });
    expect(bench.server.seen).toHaveLength(1);
    bench.server.seen.length = 0;
    bench.server.answer(refuse(503, "link_lost", { dispatched: "no" }), json(200, { accepted: 11 }));
    await run.write("rm");
    expect(bench.server.seen).toHaveLength(2);
  });

  it("can be resized", async () => {
    const run = await bench.run();
    bench.server.answer(drop, json(200, anExec({ status: "running", tty: true })));
    expect((await run.resize({ cols: 100, rows: 40 })).tty).toBe(true);
    const { method, url, body } = bench.server.seen.at(-1) as Seen;
    expect([method, url.pathname, body.toString()]).toEqual([
      "POST",
      "/v1/execs/exe_1/resize",
      '{"cols":100,"rows":40}',
    ]);
  });
});
