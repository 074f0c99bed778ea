import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import type { ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach } from "vitest";
import {
  anExec,
  aSandbox,
  FaultyServer,
  json,
  refuse,
  type Seen,
} from "../../../sdk/src/testing/faulty-server.ts";
import { Typist } from "./typist.ts";

const BIN = fileURLToPath(new URL("../../bin/holdfast.mjs", import.meta.url));
/** The launcher is meant for the system's Node, where there is one. */
const NODE = existsSync("/usr/bin/node") ? "/usr/bin/node" : process.execPath;

export interface Ended {
  code: number | null;
  stdout: Buffer;
  stderr: string;
}

export type Route = (request: Seen, response: ServerResponse) => void | Promise<void>;

/** The command line as a process of its own, and the server that it talks to, fresh for every test. */
export interface Bench {
  server: FaultyServer;
  /** Where it runs; empty at first. */
  directory: string;
  start(...args: string[]): ChildProcess & { ended: Promise<Ended> };
  holdfast(...args: string[]): Promise<Ended>;
  /** Someone who runs it by hand, and sees its exit code behind it. */
  atTerminal(line: string): Typist;
  /** A server that knows one sandbox, with answers for what matters to the test. */
  serve(routes: Record<string, Route>): void;
  /** What the server was asked. */
  requests(): string[];
}

export function useBench(): Bench {
  const holdfast = (...args: string[]): Promise<Ended> => start(...args).ended;
  const bench = { start, holdfast, atTerminal, serve, requests } as Bench;
  beforeEach(async () => {
    bench.server = await FaultyServer.start();
    bench.directory = await mkdtemp(join(tmpdir(), "holdfast-cli-"));
  });
  afterEach(async () => {
    await bench.server.stop();
    await rm(bench.directory, { recursive: true, force: true });
  });

  const place = () => ({
    cwd: bench.directory,
    env: {
      ...process.env,
      HOLDFAST_URL: bench.server.url,
      HOLDFAST_API_KEY: "hf_test",
      HOLDFAST_DIR: bench.directory,
    },
  });

  function start(...args: string[]): ChildProcess & { ended: Promise<Ended> } {
    const child = spawn(NODE, [BIN, ...args], place());
    const out: Buffer[] = [];
    const err: Buffer[] = [];
    child.stdout.on("data", (piece: Buffer) => out.push(piece));
    child.stderr.on("data", (piece: Buffer) => err.push(piece));
    const ended = once(child, "close").then(([code]) => ({
      code: code as number | null,
      stdout: Buffer.concat(out),
      stderr: Buffer.concat(err).toString(),
    }));
    return Object.assign(child, { ended });
  }

  function atTerminal(line: string): Typist {
    return new Typist(`${NODE} ${BIN} ${line}; echo exit code $?`, place());
  }

  function serve(routes: Record<string, Route>): void {
    const known: Record<string, Route> = {
      "POST /v1/sandboxes": json(201, aSandbox()),
      "GET /v1/sandboxes/box": json(200, aSandbox()),
      "DELETE /v1/sandboxes/sbx_0000000000000000": json(200, aSandbox({ status: "terminated" })),
      "POST /v1/sandboxes/sbx_0000000000000000/execs": json(
        202,
        anExec({ status: "running", exitCode: null }),
      ),
      ...routes,
    };
    bench.server.answer((request, response) =>
      (known[`${request.method} ${request.url.pathname}`] ?? refuse(404, "not_found"))(request, response),
    );
  }

  function requests(): string[] {
    return bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`);
  }
  return bench;
}
