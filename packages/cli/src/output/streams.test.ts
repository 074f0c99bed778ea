import { once } from "node:events";
import { glob, readFile } from "node:fs/promises";
import type { ServerResponse } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import {
  aDrive,
  anEvent,
  anExec,
  aSandbox,
  chunk,
  ending,
  FRAMES,
  frame,
  frames,
  greeting,
  json,
  refuse,
} from "../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../testing/bench.ts";

const bench = useBench();
const { bash, serve, start } = bench;

const ID = "sbx_0000000000000000";
/** Far more than a pipe holds. */
const ROWS = 2_000;
const MUCH_BYTES = 990_000;
/** A little more than a pipe holds: Node takes the rest at once, in pieces below its buffer's limit, and keeps it. */
const LITTLE_MORE_BYTES = 72_000;
const PIECE = 6_000;
const textOf = (bytes: number) => "0123456789".repeat(bytes / 10);
const page = (items: object[]) => json(200, { items, nextCursor: null });
const rows = <Row>(row: (at: number) => Row) => Array.from({ length: ROWS }, (_, at) => row(at));
const createdAt = "2020-01-01T00:00:00.000Z";
const output =
  (bytes: number): Route =>
  (request, response) => {
    const pieces = Array.from({ length: bytes / PIECE }, () => textOf(PIECE));
    const chunks = pieces.flatMap((piece, at) => [
      chunk("stdout", 2 * at + 1, piece),
      chunk("stderr", 2 * at + 2, piece),
    ]);
    return frames([greeting(), ...chunks, ending(1_000, { exitCode: 3 })])(request, response);
  };

const archive =
  (bytes: number): Route =>
  (_, response) => {
    response.writeHead(200, { "content-type": "application/x-tar" });
    response.end(textOf(bytes));
  };
const aBackup = (bytes: number) => ({
  ...{ state: "incomplete", directory: "/b", startedAt: createdAt, endedAt: createdAt, error: null },
  ...{ sandboxes: 1, drives: 0, images: 0, sizeBytes: 1 },
  skipped: [{ kind: "sandbox", id: ID, name: "box", reason: textOf(bytes) }],
});

function serveMuch(bytes = MUCH_BYTES): void {
  serve({
    "GET /v1/sandboxes": page(rows((at) => aSandbox({ name: `box-${at}`, createdAt, image: "host" }))),
    [`GET /v1/sandboxes/${ID}/execs`]: page(rows((at) => anExec({ id: `exe_${at}` }))),
    "GET /v1/events": page(rows((seq) => anEvent({ seq }))),
    "GET /v1/logs": page(
      rows((at) => ({ at: createdAt, level: "info", message: "x".repeat(at), fields: {} })),
    ),
    "GET /v1/execs/exe_1": json(200, anExec()),
    "DELETE /v1/execs/exe_1": json(200, anExec({ status: "cancelled" })),
    "GET /v1/execs/exe_1/output": output(bytes),
    [`GET /v1/sandboxes/${ID}/files/stat`]: json(200, {
      path: "/big",
      name: "big",
      kind: "file",
      mode: "0644",
    }),
    [`GET /v1/sandboxes/${ID}/files`]: (_, response) => void response.end(textOf(bytes)),
    "GET /v1/sandboxes/box/export": archive(bytes),
    "GET /v1/drives/data/export": archive(bytes),
    "POST /v1/sandboxes/import": json(201, aSandbox({ labels: { long: textOf(bytes) } })),
    "POST /v1/drives/import": json(201, aDrive({ labels: { long: textOf(bytes) } })),
    "POST /v1/backup": json(202, aBackup(bytes)),
  });
}

const COMMANDS: readonly [command: string, code: number][] = [
  ["ls --json", 0],
  ["ls", 0],
  ["execs --json box", 0],
  ["events --json", 0],
  ["events", 0],
  ["server-logs -n 1000", 0],
  ["server-logs -n 1000 --json", 0],
  ["logs exe_1", 0],
  ["exec box -- cat big", 3],
  ["run -- cat big", 3],
  ["cp box:/big -", 0],
  ["export box", 0],
  ["drive export data", 0],
  ["import --json /dev/null", 0],
  ["drive import --json /dev/null", 0],
  ["backup --json /b", 1],
  ["backup /b", 1],
  ["run --help", 0],
];

describe("a command writes all of its output", () => {
  for (const [command, code] of COMMANDS) {
    it(`${command}: to a file, to a fast reader and to a slow one`, async () => {
      serveMuch(LITTLE_MORE_BYTES);
      const { stdout } = await bash(
        `holdfast ${command} > whole 2>/dev/null; echo $?
         holdfast ${command} 2>/dev/null | cmp - whole; echo \${PIPESTATUS[@]}
         holdfast ${command} 2>/dev/null | (sleep 1; cmp - whole); echo \${PIPESTATUS[@]}`,
      );
      expect(stdout.toString()).toBe(`${code}\n${code} 0\n${code} 0\n`);
      const whole = await readFile(join(bench.directory, "whole"), "utf8");
      expect(whole.length).toBeGreaterThan(command.includes("help") ? 1_000 : 70_000);
      if (code === 3 || /^(?:cp|(?:drive )?export) /.test(command))
        expect(whole === textOf(LITTLE_MORE_BYTES)).toBe(true);
    }, 60_000);
  }

  it("to stderr as well", async () => {
    serveMuch(LITTLE_MORE_BYTES);
    for (const command of ["logs exe_1", "exec box -- cat big"]) {
      const { stdout } = await bash(`holdfast ${command} 2>&1 >/dev/null | (sleep 1; cat)`);
      expect(stdout.toString() === textOf(LITTLE_MORE_BYTES)).toBe(true);
    }
    serve({ "GET /v1/sandboxes": page([]) });
    const names = rows((at) => `gone-${at}-${"x".repeat(20)}`);
    bench.server.answer((request, response) =>
      request.url.pathname === "/v1/sandboxes"
        ? page([])(request, response)
        : refuse(404, "sandbox_not_found", { message: request.url.pathname })(request, response),
    );
    const { stdout } = await bash(`holdfast rm ${names.join(" ")} 2>&1 | (sleep 3; cat)`);
    for (const name of names) expect(stdout.toString()).toContain(name);
  }, 60_000);
});

describe("a reader that leaves", () => {
  for (const [command] of COMMANDS) {
    it(`ends ${command} quietly`, async () => {
      serveMuch();
      const { stdout, stderr } = await bash(
        `holdfast ${command} 2>error | head -c 1 >/dev/null; echo \${PIPESTATUS[0]}; cut -c 1-200 error | grep -v 0123456789`,
      );
      // A help text fits into the pipe, so it was written before the reader left.
      expect(["0\n", "141\n"]).toContain(stdout.toString());
      if (!command.includes("help")) expect(stdout.toString()).toBe("141\n");
      expect(stderr).toBe("");
    }, 30_000);
  }
});

describe("a file that accepts no more data", () => {
  it("fails the command instead of cutting its output", async () => {
    serveMuch();
    for (const command of [
      "ls --json",
      "cp box:/big -",
      "export box",
      "import --json /dev/null",
      "backup /b",
    ]) {
      const { stdout, stderr } = await bash(`holdfast ${command} > /dev/full; echo $?`);
      expect(stdout.toString()).toBe("1\n");
      expect(stderr).toMatch(/^holdfast: cannot write the output: ENOSPC.*\nThe output is incomplete\.\n$/);
    }
    const failed = await bash(
      "holdfast logs exe_1 > /dev/full 2>/dev/null; holdfast exec box -- cat big 2>error > /dev/full; echo $?; cut -c 1-80 error | grep -v 0123",
    );
    expect(failed.stdout.toString()).toMatch(/^125\nholdfast: cannot write.*\nThe output is incomplete\.\n$/);
  }, 30_000);

  it("even if it takes a part of the last write", async () => {
    serveMuch();
    // A limit on the size of files cuts a write in the same way as a full disk.
    const { stdout, stderr } = await bash(
      `export NODE_DISABLE_COMPILE_CACHE=1; trap "" XFSZ; ulimit -f 64; holdfast ls --json > f; echo $?; wc -c < f`,
    );
    expect(stdout.toString()).toBe("1\n65536\n");
    expect(stderr).toContain("The output is incomplete.\n");
  }, 30_000);
});

describe("a reader that stops reading", () => {
  const MB = 1_048_576;
  const TOTAL_MB = 256;
  /** What the CLI, the pipe and both sockets may hold together. */
  const HELD_MB = 64;

  /** Sends pieces as fast as the CLI takes them, and counts those that left. */
  const flood =
    (piece: Buffer, head: Buffer, tail: Buffer, sent: { count: number }): Route =>
    async (_, response: ServerResponse) => {
      response.writeHead(200, FRAMES);
      response.write(head);
      for (; sent.count < TOTAL_MB; sent.count++) if (!response.write(piece)) await once(response, "drain");
      response.end(tail);
    };

  for (const kind of ["exec", "cp"]) {
    it(`holds back ${kind} in bounded memory, and then gets everything`, async () => {
      const sent = { count: 0 };
      const data = Buffer.alloc(MB, "z");
      serve(
        kind === "exec"
          ? {
              "GET /v1/execs/exe_1/output": flood(
                frame(chunk("stdout", 1, data)),
                frame(greeting()),
                frame(ending(9)),
                sent,
              ),
            }
          : {
              [`GET /v1/sandboxes/${ID}/files/stat`]: json(200, {
                path: "/z",
                name: "z",
                kind: "file",
                mode: "0644",
              }),
              [`GET /v1/sandboxes/${ID}/files`]: flood(data, Buffer.of(), Buffer.of(), sent),
            },
      );
      const fifo = kind === "exec" ? "exec box -- cat /z" : "cp box:/z -";
      const running = bash(
        `holdfast ${fifo} | (head -c 1; touch reading; while [ ! -e go ]; do sleep 0.1; done; wc -c)`,
      );
      const isStill = async () => {
        const before = sent.count;
        await sleep(700);
        return before > 0 && sent.count === before;
      };
      while (!(await isStill())) if (sent.count >= TOTAL_MB) break;
      expect(sent.count).toBeLessThan(HELD_MB);
      await bash("touch go");
      const { stdout } = await running;
      expect(stdout.toString()).toBe(`z${TOTAL_MB * MB - 1}\n`);
    }, 120_000);
  }

  it("does not keep an interrupted CLI from ending", async () => {
    serveMuch();
    const child = start("ls", "--json");
    child.stdout?.pause();
    await bench.requested("GET /v1/sandboxes");
    await sleep(500);
    child.kill("SIGINT");
    await once(child, "exit");
    expect(child.exitCode).toBe(130);
    child.stdout?.resume();
    await child.ended;
  }, 30_000);
});

it("no other folder writes to stdout or stderr itself", async () => {
  const src = join(import.meta.dirname, "..");
  const writing: string[] = [];
  for await (const file of glob("**/*.ts", { cwd: src })) {
    if (/^(?:output|testing)\/|\.test\.ts$/.test(file)) continue;
    const text = await readFile(join(src, file), "utf8");
    if (/\bstd(?:out|err)\??\.(?:write|end)\(|\bconsole\./.test(text)) writing.push(file);
  }
  expect(writing).toEqual([]);
});
