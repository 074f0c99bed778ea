import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
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
/** The Node that runs the launcher: the system's Node if there is one, because users run the launcher with it. */
const NODE = existsSync("/usr/bin/node") ? "/usr/bin/node" : process.execPath;

interface Ended {
  code: number | null;
  stdout: Buffer;
  stderr: string;
}

export type Route = (request: Seen, response: ServerResponse) => void | Promise<void>;

/** Runs the CLI as a separate process against a fake server; both are new for every test. */
interface Bench {
  server: FaultyServer;
  /** The CLI's working directory; empty at first. */
  directory: string;
  start(...args: string[]): ChildProcess & { ended: Promise<Ended> };
  holdfast(...args: string[]): Promise<Ended>;
  /** Runs a line of bash in which `holdfast` is the CLI, so that its output goes to real pipes and files. */
  bash(line: string): Promise<Ended>;
  /** Runs the CLI on a real terminal and prints its exit code afterwards. */
  atTerminal(line: string): Typist;
  /** Makes the server return one sandbox, and answer requests to these routes. */
  serve(routes: Record<string, Route>): void;
  /** The requests that the server received. */
  requests(): string[];
  /** Waits until the server has received this request. */
  requested(request: string): Promise<void>;
}

export function useBench(): Bench {
  const holdfast = (...args: string[]): Promise<Ended> => start(...args).ended;
  const bash = (line: string): Promise<Ended> =>
    run("bash", ["-c", `holdfast() { ${NODE} ${BIN} "$@"; }; ${line}`]);
  const bench = { start, holdfast, bash, atTerminal, serve, requests, requested } as Bench;
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
    return Object.assign(child, { ended: endOf(child) });
  }

  const run = (command: string, args: string[]): Promise<Ended> => endOf(spawn(command, args, place()));

  function endOf(child: ChildProcessWithoutNullStreams): Promise<Ended> {
    const out: Buffer[] = [];
    const err: Buffer[] = [];
    child.stdout.on("data", (piece: Buffer) => out.push(piece));
    child.stderr.on("data", (piece: Buffer) => err.push(piece));
    return once(child, "close").then(([code]) => ({
      code: code as number | null,
      stdout: Buffer.concat(out),
      stderr: Buffer.concat(err).toString(),
    }));
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

  async function requested(request: string): Promise<void> {
    while (!requests().includes(request)) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return bench;
}
