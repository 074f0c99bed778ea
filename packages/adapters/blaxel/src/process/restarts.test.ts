import type { EngineApi, OutputRecord } from "@holdfast/engine";
import { anExec, aProcess } from "@holdfast/server/testing";
import { expect, test } from "vitest";
import { Restarts } from "./restarts.ts";

const MB = 1_048_576;
const { signal } = new AbortController();

/** Creates a process whose runs have written these outputs, the first run first. */
function written(...texts: string[]) {
  const runs = texts.map((_, at) => anExec({ id: `prc_0123456789abcdef-${at + 1}` }));
  const read: string[] = [];
  const engine = {
    processes: { runs: async () => ({ items: runs.toReversed(), nextCursor: null }) },
    execs: {
      async *output(id: string): AsyncIterable<OutputRecord> {
        read.push(id);
        const text = texts[runs.findIndex((run) => run.id === id)] ?? "";
        const lines = text.match(/.{1,65536}/gs) ?? [];
        for (const line of lines) yield { type: "stdout", cursor: "c", at: 0, data: Buffer.from(line) };
      },
    },
  };
  return { restarts: new Restarts(engine as unknown as Pick<EngineApi, "execs" | "processes">), read };
}

test("the output of all runs of a process is returned in order", async () => {
  const { restarts } = written("one\n", "two\n");
  expect(await restarts.output(aProcess(), signal)).toEqual({
    ...{ stdout: "one\ntwo\n", stderr: "", logs: "one\ntwo\n" },
    truncated: false,
  });
});

test("the output of all runs together is limited to that of one run, dropping the oldest", async () => {
  const size = 10 * MB;
  const { restarts, read } = written("a".repeat(size), "b".repeat(size), "c".repeat(size));
  const { stdout, logs, truncated } = await restarts.output(aProcess(), signal);
  expect([stdout.length, logs.length, truncated]).toEqual([16 * MB, 16 * MB, true]);
  expect(stdout.indexOf("c")).toBe(6 * MB);
  expect(stdout).toMatch(/^b+c+$/);
  expect(read.length).toBe(2);
});
