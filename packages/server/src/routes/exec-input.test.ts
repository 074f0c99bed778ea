import { HoldfastError, type TerminalSize } from "@holdfast/contract";
import { expect, test } from "vitest";
import { anExec, json, serve } from "../testing/double.ts";

test("stdin is passed on byte for byte with its offset", async () => {
  const chunks: unknown[] = [];
  await using server = await serve({
    execs: {
      writeStdin: async (_id, { offset, data, end }) => {
        chunks.push([offset, Buffer.from(data).toString("hex"), end]);
        return { accepted: (offset ?? 0) + data.length };
      },
    },
  });
  const body = Buffer.from([0, 255, 10]);
  const response = await server.fetch("/v1/execs/exe_1/stdin?offset=4", { method: "POST", body });
  expect(await response.json()).toEqual({ accepted: 7 });
  await server.fetch("/v1/execs/exe_1/stdin?offset=7&end=true", { method: "POST" });
  expect(chunks).toEqual([
    [4, "00ff0a", false],
    [7, "", true],
  ]);
});

test("stdin without an offset is appended", async () => {
  const offsets: unknown[] = [];
  await using server = await serve({
    execs: {
      writeStdin: async (_id, { offset }) => {
        offsets.push(offset);
        return { accepted: 9 };
      },
    },
  });
  const response = await server.fetch("/v1/execs/exe_1/stdin", { method: "POST", body: "hi" });
  expect(await response.json()).toEqual({ accepted: 9 });
  expect(offsets).toEqual([null]);
});

test("a terminal is resized, within the sizes that a terminal can have", async () => {
  const sizes: TerminalSize[] = [];
  await using server = await serve({
    execs: {
      resize: async (_id, size) => {
        sizes.push(size);
        return anExec({ tty: true });
      },
    },
  });
  const resize = (body: unknown) => server.fetch("/v1/execs/exe_1/resize", json(body));
  expect(await (await resize({ cols: 80, rows: 24 })).json()).toMatchObject({ id: "exe_1", tty: true });
  for (const wrong of [
    { cols: 0, rows: 24 },
    { cols: 80 },
    { cols: 80, rows: 24, x: 1 },
    { cols: 9e9, rows: 1 },
  ]) {
    expect((await resize(wrong)).status).toBe(400);
  }
  expect(sizes).toEqual([{ cols: 80, rows: 24 }]);
});

test("an exec without a terminal cannot be resized", async () => {
  await using server = await serve({
    execs: { resize: () => Promise.reject(new HoldfastError("wrong_state")) },
  });
  const response = await server.fetch("/v1/execs/exe_1/resize", json({ cols: 80, rows: 24 }));
  expect(response.status).toBe(409);
});
