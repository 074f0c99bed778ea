import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { ExecUnfinishedError, Holdfast, type OutputChunk, OutputDroppedError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import {
  type Answer,
  anExec,
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
  keepalive,
  refuse,
} from "../testing/faulty-server.ts";

const bench = useBench();
const cursors = () => bench.server.seen.map(({ url }) => url.searchParams.get("cursor"));

async function all(output: AsyncIterable<OutputChunk>): Promise<OutputChunk[]> {
  const chunks: OutputChunk[] = [];
  for await (const each of output) chunks.push(each);
  return chunks;
}
const texts = async (output: AsyncIterable<OutputChunk>) => (await all(output)).map(({ text }) => text);

describe("output", () => {
  it("resumes after the last chunk of a broken stream, without gaps or repetition", async () => {
    const run = await bench.run();
    bench.server.answer(
      frames([greeting(), chunk("stdout", 3, "one"), chunk("stderr", 5, "e1")], "cut"),
      drop,
      refuse(503, "shutting_down"),
      refuse(429, "too_many_readers", { retryable: true }),
      frames([greeting(), keepalive(5)]),
      frames([greeting(), chunk("stdout", 8, "two"), ending(8)]),
    );
    const got = (await all(run.output())).map(({ stream, text, cursor }) => `${stream}:${text}@${cursor}`);
    expect(got).toEqual(["stdout:one@exe_1.3", "stderr:e1@exe_1.5", "stdout:two@exe_1.8"]);
    expect(cursors()).toEqual([null, ...Array(5).fill("exe_1.5")]);
    expect(run.info.status).toBe("exited");
    expect(run.cursor).toBe("exe_1.8");
  });

  it("of an exec frozen with its sandbox is marked suspended, and continues after the wake", async () => {
    const run = await bench.run();
    const asleep = keepalive(3, { suspended: true });
    bench.server.answer(
      frames([greeting(), chunk("stdout", 3, "one"), asleep, asleep, chunk("stdout", 6, "two")]),
      frames([greeting({ suspended: true }), keepalive(6), chunk("stdout", 9, "three"), ending(9)]),
    );
    const got: [string, boolean][] = [];
    for await (const { text } of run.output()) got.push([text, run.info.suspended]);
    expect(got).toEqual([
      ["one", false],
      ["two", true],
      ["three", false],
    ]);
    expect(cursors()).toEqual([null, "exe_1.6"]);
  });

  it("is complete whatever byte the streams are cut at", async () => {
    const journal: Item[] = [];
    for (let offset = 0, at = 0; at < 40; at++) {
      const data = randomBytes(1 + (at % 7) * 40);
      offset += 24 + data.length;
      journal.push(chunk(at % 3 === 0 ? "stderr" : "stdout", offset, data));
    }
    const run = await bench.run();
    /** Sends the output after the cursor, and breaks off at an arbitrary byte. */
    const faulty: Answer = ({ url }, response) => {
      const from = Number(url.searchParams.get("cursor")?.split(".")[1] ?? 0);
      const behind = journal.filter((item) => "offset" in item && item.offset > from);
      const bytes = Buffer.concat([greeting(), ...behind, ending(1e6)].map(frame));
      const sent = Math.floor(Math.random() * 3_000);
      response.writeHead(200, FRAMES);
      if (sent >= bytes.length) response.end(bytes);
      else response.write(bytes.subarray(0, sent), () => response.socket?.destroy());
    };
    bench.server.answer(faulty);
    const got = await all(run.output());
    for (const stream of ["stdout", "stderr"] as const) {
      const expected = journal.flatMap((item) => (item.type === stream && "data" in item ? [item.data] : []));
      const read = got.filter((each) => each.stream === stream).map(({ data }) => data);
      expect(Buffer.concat(read).equals(Buffer.concat(expected))).toBe(true);
    }
    expect(bench.server.seen.length).toBeGreaterThan(2);
  });

  it("is byte-exact, and its text never splits a character", async () => {
    const run = await bench.run();
    const euro = Buffer.from("a€b𝄞c");
    const pieces = [...euro].map((byte, at) => chunk("stdout", at + 1, Uint8Array.of(byte)));
    const noise = randomBytes(200_000);
    bench.server.answer(frames([greeting(), ...pieces, chunk("stderr", 99, noise), ending(99)]));
    let text = "";
    const stderr: Uint8Array[] = [];
    for await (const piece of run.output()) {
      if (piece.stream === "stdout") text += piece.text;
      else stderr.push(piece.data);
      expect(piece.at).toBe("2026-01-01T00:00:00.000Z");
    }
    expect(text).toBe("a€b𝄞c");
    expect(Buffer.concat(stderr).equals(noise)).toBe(true);
  });

  it("can be limited to one stream, starting at a cursor", async () => {
    const run = await bench.run();
    bench.server.answer(frames([greeting(), ending(0)]));
    await all(run.output({ stream: "stderr", cursor: "exe_1.7" }));
    expect(Object.fromEntries(bench.server.seen[0]?.url.searchParams ?? [])).toEqual({
      stream: "stderr",
      cursor: "exe_1.7",
      follow: "true",
    });
  });

  it("survives a restart of the server", async () => {
    const run = await bench.run();
    const { port } = bench.server;
    const states: string[] = [];
    bench.server.answer(frames([greeting(), chunk("stdout", 3, "one")], "silence"));
    const got: string[] = [];
    for await (const { text } of run.output({ onConnection: (state) => states.push(state) })) {
      got.push(text);
      if (got.length > 1) continue;
      await bench.server.stop();
      setTimeout(async () => {
        bench.server = await FaultyServer.start(port);
        bench.server.answer(frames([greeting(), chunk("stdout", 6, "two"), ending(6)]));
      }, 1_000);
    }
    expect(got).toEqual(["one", "two"]);
    expect(states).toEqual(["lost", "back"]);
    expect(cursors()).toEqual(["exe_1.3"]);
  });

  it.each([
    ["at once", []],
    ["after its greeting", [greeting()]],
  ])("of a server that always disconnects, %s, ends with the known state", async (_, items) => {
    const run = await bench.run();
    bench.server.answer(frames([greeting(), chunk("stdout", 3, "one")]), frames(items));
    const error = await failure(all(run.output()));
    expect(error).toBeInstanceOf(ExecUnfinishedError);
    expect(error).toMatchObject({ cursor: "exe_1.3", exec: { status: "running" } });
    expect(error.cause).toMatchObject({ code: "connection" });
  });

  it("is given up after the caller's limit", async () => {
    const run = await bench.run();
    bench.server.answer(frames([greeting(), chunk("stdout", 3, "one")], "silence"));
    const got: string[] = [];
    const reading = (async () => {
      for await (const { text } of run.output({ giveUpAfterMs: 300 })) got.push(text);
    })();
    expect(await failure(reading)).toMatchObject({ code: "exec_unfinished", cursor: "exe_1.3" });
    expect(got).toEqual(["one"]);
    bench.server.answer(frames([greeting({ status: "exited" })], "silence"));
    const late = await failure(all(run.output({ giveUpAfterMs: 100 })));
    expect(late).toMatchObject({ code: "exec_unfinished", exec: { status: "exited" } });
  });

  it("throws the reason of the caller's signal, and keeps the cursor in the handle", async () => {
    const run = await bench.run();
    const states: string[] = [];
    bench.server.answer(frames([greeting(), chunk("stdout", 3, "one")], "silence"));
    const controller = new AbortController();
    const reason = new Error("enough");
    const { signal } = controller;
    const reading = (async () => {
      for await (const _ of run.output({ signal, onConnection: (state) => states.push(state) }))
        setTimeout(() => controller.abort(reason), 20);
    })();
    await expect(reading).rejects.toBe(reason);
    expect(run.cursor).toBe("exe_1.3");
    expect(states).toEqual([]);
  });

  it("of a stream that goes silent is requested again; a slow reader is not affected", async () => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 1_000 });
    bench.server.answer(json(200, anExec({ status: "running" })));
    const run = await hasty.execs.get("exe_1");
    bench.server.seen.length = 0;
    bench.server.answer(
      frames([greeting(), chunk("stdout", 3, "one")], "silence"),
      frames([greeting(), chunk("stdout", 4, "."), ending(4)]),
    );
    const got: string[] = [];
    for await (const { text } of run.output()) {
      got.push(text);
      await new Promise((resolve) => setTimeout(resolve, 1_500));
    }
    expect(got).toEqual(["one", "."]);
    expect(cursors()).toEqual([null, "exe_1.3"]);
    hasty.close();
  });

  it("without follow ends with the output so far", async () => {
    const run = await bench.run();
    bench.server.answer(frames([greeting(), chunk("stdout", 3, "one")]));
    expect(await texts(run.output({ follow: false }))).toEqual(["one"]);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("without follow expects an end record if the exec has ended", async () => {
    const run = await bench.run();
    const over = greeting({ status: "exited", exitCode: 0 });
    bench.server.answer(
      frames([over, chunk("stdout", 3, "one")]),
      frames([over, chunk("stdout", 6, "two"), ending(6)]),
    );
    expect(await texts(run.output({ follow: false }))).toEqual(["one", "two"]);
  });

  it("closes its connection when the reader leaves early", async () => {
    const run = await bench.run();
    let closed: () => void = () => {};
    const left = new Promise<void>((resolve) => {
      closed = resolve;
    });
    bench.server.answer((request, response) => {
      response.on("close", closed);
      return frames([greeting(), chunk("stdout", 3, "one")], "silence")(request, response);
    });
    for await (const _ of run.output()) break;
    await left;
  });

  it("that is no longer kept throws with the oldest cursor, or is skipped and marked", async () => {
    const run = await bench.run();
    const begun = frames([greeting(), chunk("stdout", 3, Buffer.of(0xe2))], "cut");
    const gone = refuse(410, "output_dropped", { floor: "exe_1.50" });
    const rest = frames([greeting(), chunk("stdout", 53, "x"), chunk("stdout", 54, "y"), ending(54)]);
    bench.server.answer(begun, gone);
    const error = await failure(all(run.output()));
    expect(error).toBeInstanceOf(OutputDroppedError);
    expect(error).toMatchObject({ floor: "exe_1.50", code: "output_dropped" });
    bench.server.seen.length = 0;
    bench.server.answer(begun, gone, rest);
    const got = await all(run.output({ onDropped: "skip" }));
    expect(got.map(({ text, dropped }) => [text, dropped])).toEqual([
      ["", false],
      ["x", true],
      ["y", false],
    ]);
    expect(cursors()).toEqual([null, "exe_1.3", "exe_1.50"]);
    bench.server.answer(begun, refuse(410, "output_dropped"));
    expect(await failure(all(run.output({ onDropped: "skip" })))).toMatchObject({ floor: null });
  });

  it("in an unexpected content type is rejected", async () => {
    const run = await bench.run();
    bench.server.answer((_, response) => void response.writeHead(200).write("<h1>proxy</h1>"));
    expect(await failure(all(run.output()))).toMatchObject({
      code: "unexpected_response",
      body: "<h1>proxy</h1>",
    });
    bench.server.answer((_, response) => void response.writeHead(200, FRAMES).write("<h1>proxy</h1>"));
    expect(await failure(all(run.output()))).toMatchObject({ code: "unexpected_response" });
  });

  it("can be read through the caller's fetch", async () => {
    const { url } = bench.server;
    const viaFetch = new Holdfast({ url, apiKey: "x", fetch: globalThis.fetch, outageMs: 2_000 });
    bench.server.answer(
      json(200, anExec({ status: "running" })),
      frames([greeting(), chunk("stdout", 3, "one")], "cut"),
      frames([greeting(), chunk("stdout", 6, "two"), ending(6)]),
    );
    const run = await viaFetch.execs.get("exe_1");
    expect(await texts(run.output())).toEqual(["one", "two"]);
  });
});
