import { HoldfastError, type SandboxStory } from "@holdfast/contract";
import type { EngineApi, OutputRecord } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { anEvent, anExec, aSandbox, serve } from "../testing/double.ts";
import { readSandboxStory } from "./sandbox-story.ts";

const signal = new AbortController().signal;
const second = (n: number) => `2025-01-01T00:00:${String(n).padStart(2, "0")}.000Z`;
const out = (type: "stdout" | "stderr", at: number, data: string | Uint8Array): OutputRecord => ({
  type,
  cursor: "exe_1.k.0",
  at: Date.parse(second(at)),
  data: Buffer.from(data),
});

/** Creates an engine with one sandbox, these events (newest first), and these execs with their output. */
function engineWith(
  events: readonly [number, string][],
  execs: Record<string, readonly OutputRecord[] | Error> = {},
): EngineApi {
  return {
    sandboxes: { get: async () => aSandbox({ lastActivityAt: second(9) }) },
    events: async ({ limit }: { limit: number }) => ({
      items: events
        .map(([at, message], seq) => anEvent({ seq, at: second(at), message }))
        .reverse()
        .slice(0, limit),
      nextCursor: null,
    }),
    execs: {
      list: async () => ({ items: Object.keys(execs).map((id) => anExec({ id })), nextCursor: null }),
      async *output(id: string) {
        const records = execs[id] ?? [];
        yield { type: "start", cursor: "exe_1.k.0", exec: anExec({ id }) };
        if (records instanceof Error) throw records;
        yield* records;
      },
    },
  } as unknown as EngineApi;
}

const texts = ({ lines }: SandboxStory) => lines.map(({ text }) => text);

describe("the story of a sandbox", () => {
  test("contains events and command output in time order", async () => {
    const engine = engineWith(
      [
        [1, "Made."],
        [4, "Ended."],
      ],
      {
        exe_b: [out("stdout", 3, "three\n")],
        exe_a: [out("stdout", 2, "two\n"), out("stderr", 5, "five\n")],
      },
    );
    const story = await readSandboxStory(engine, "demo", { limit: 100 }, signal);
    expect(story).toMatchObject({ sandboxId: aSandbox().id, lastActivityAt: second(9) });
    expect(story.lines).toEqual([
      { at: second(1), kind: "event", text: "sandbox.ready: Made.", execId: null },
      { at: second(2), kind: "stdout", text: "two", execId: "exe_a" },
      { at: second(3), kind: "stdout", text: "three", execId: "exe_b" },
      { at: second(4), kind: "event", text: "sandbox.ready: Ended.", execId: null },
      { at: second(5), kind: "stderr", text: "five", execId: "exe_a" },
    ]);
  });

  test("has complete lines, however they arrived, and an unterminated last one", async () => {
    const bytes = Buffer.from("é\n");
    const engine = engineWith([], {
      exe_a: [
        out("stdout", 1, "o"),
        out("stderr", 2, "between\r\n"),
        out("stdout", 3, "ne\ntwo\n\nth"),
        out("stdout", 4, "ree "),
        out("stdout", 5, bytes.subarray(0, 1)),
        out("stdout", 6, bytes.subarray(1)),
        out("stdout", 7, "end"),
      ],
    });
    const { lines } = await readSandboxStory(engine, "demo", { limit: 100 }, signal);
    expect(lines.map(({ at, text }) => [at, text])).toEqual([
      [second(1), "one"],
      [second(2), "between"],
      [second(3), "two"],
      [second(3), ""],
      [second(3), "three é"],
      [second(7), "end"],
    ]);
  });

  test("has at most the requested number of lines, the newest, and no endless line", async () => {
    const many = Array.from({ length: 500 }, (_, n) => `line ${n}\n`).join("");
    const engine = engineWith([[1, "Made."]], {
      exe_a: [out("stdout", 2, many), out("stdout", 3, "x".repeat(99_999))],
    });
    const story = await readSandboxStory(engine, "demo", { limit: 3 }, signal);
    expect(texts(story).slice(0, 2)).toEqual(["line 498", "line 499"]);
    expect(texts(story)[2]?.length).toBe(2_000);
  });

  test("reads a bounded part of a chatty command's output, and marks where it stopped", async () => {
    let given = 0;
    const chunk = Buffer.from(`${"y".repeat(99)}\n`.repeat(10_000));
    const engine = engineWith([], { exe_a: [] });
    engine.execs.output = async function* () {
      for (; given < 1_000; given++) yield { ...out("stdout", 1, ""), data: chunk } as OutputRecord;
    };
    const story = await readSandboxStory(engine, "demo", { limit: 5 }, signal);
    expect(given).toBeLessThan(20);
    expect(texts(story).at(-1)).toBe("More output follows; it is not read here.");
  });

  test("is complete except for unreadable parts, which leave a note", async () => {
    const engine = engineWith([[1, "Made."]], {
      exe_b: new HoldfastError("output_dropped"),
      exe_a: [out("stdout", 2, "two\n")],
    });
    const story = await readSandboxStory(engine, "demo", { limit: 10 }, signal);
    expect(texts(story)).toContain("two");
    expect(texts(story)).toContain(
      "The output could not be read: The output at that cursor is no longer kept.",
    );
  });
});

test("has host paths removed from events, but not from command output", async () => {
  const engine = engineWith([[1, "/srv/state/x failed"]], { exe_a: [out("stdout", 2, "/srv/state/x\n")] });
  await using server = await serve(engine, { hostPaths: ["/srv/state"] });
  const response = await server.fetch("/v1/sandboxes/demo/logs?limit=5");
  expect(response.status).toBe(200);
  expect(texts((await response.json()) as SandboxStory)).toEqual([
    "sandbox.ready: <host path> failed",
    "/srv/state/x",
  ]);
});
