import { setTimeout as sleep } from "node:timers/promises";
import { type Static, Type } from "@fastify/type-provider-typebox";
import { checker, fieldsOf, notSupported, refuseFields, sendLines } from "@holdfast/adapter-shared";
import {
  type Exec,
  HoldfastError,
  isHoldfastError,
  isProcessOver,
  isTerminal,
  type Process,
  type Sandbox,
  StartExec,
} from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { orMaybeDispatched, readWhole } from "@holdfast/server/adapter";
import type { FastifyReply } from "fastify";
import { resolveHome } from "../paths.ts";
import { processShape, supervisedShape } from "../shapes.ts";
import { NO_OUTPUT, outputOf, outputWith } from "./collected-output.ts";
import { namedArgv, nameTaken, ProcessNames, pidIn } from "./process-names.ts";
import { execLines, logLines } from "./process-streams.ts";
import { Restarts, supervisedIdOf } from "./restarts.ts";
import { untilListening } from "./wait-for-ports.ts";

const ProcessRequest = Type.Object({
  command: Type.String({ minLength: 1 }),
  name: Type.Optional(Type.String({ maxLength: 200 })),
  workingDir: Type.Optional(Type.String()),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  timeout: Type.Optional(Type.Integer({ minimum: 0 })),
  waitForCompletion: Type.Optional(Type.Boolean()),
  waitForPorts: Type.Optional(Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), { maxItems: 64 })),
  keepAlive: Type.Optional(Type.Boolean()),
  restartOnFailure: Type.Optional(Type.Boolean()),
  maxRestarts: Type.Optional(Type.Integer()),
  stdin: Type.Optional(Type.Boolean()),
});
type ProcessRequest = Static<typeof ProcessRequest>;

export const InSandbox = Type.Object({ name: Type.String({ minLength: 1, maxLength: 64 }) });
const InProcess = Type.Object({ ...InSandbox.properties, identifier: Type.String({ minLength: 1 }) });

const WaitQuery = Type.Object({ timeout: Type.Integer({ minimum: 1, default: 60 }) });

const LISTED = 1_000;
/** The platform's default timeout for a process that keeps its sandbox awake and has no timeout of its own. */
const KEPT_ALIVE_MS = 600_000;
/** Interval at which the adapter reports activity of a sandbox to the engine, so that the sandbox is not suspended. */
const TOUCH_EVERY_MS = 5_000;
/** Interval between two reads of a process that waits for its next run. */
const BETWEEN_RUNS_MS = 200;
const checkOrder = checker(StartExec);

export function processRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;
  const names = new ProcessNames(engine);
  const restarts = new Restarts(engine);

  app.post(
    "/process",
    { schema: { params: InSandbox, body: ProcessRequest } },
    async ({ params, body, headers }, reply) => {
      const signal = callers.signal(reply.raw);
      refuseUnknown(body);
      const sandbox = await engine.sandboxes.get(params.name);
      if (body.restartOnFailure) return startRow(sandbox, body, signal);
      const isFollowed = !body.waitForCompletion || wantsStream(headers.accept);
      const exec = await start(sandbox, body, isFollowed, signal);
      const workingDir = body.workingDir ? resolveHome(body.workingDir) : "";
      if (!body.waitForCompletion) {
        if (body.waitForPorts?.length) await listening(exec, body.waitForPorts, signal);
        return processShape(await engine.execs.get(exec.id), NO_OUTPUT, workingDir);
      }
      if (wantsStream(headers.accept)) return follow(reply, exec, workingDir, signal);
      return afterStart(exec, ended(exec, workingDir, signal));
    },
  );

  /**
   * Waits for a started process. If the server's shutdown interrupts the wait, the command keeps running, so the client
   * must not start it again.
   */
  async function afterStart<Result>({ id, sandboxId }: Exec, wait: Promise<Result>): Promise<Result> {
    try {
      return await wait;
    } catch (error) {
      if (error !== callers.closing) throw error;
      throw new HoldfastError("shutting_down", { sandboxId, execId: id, dispatched: "yes" });
    }
  }

  const listening = (exec: Exec, ports: readonly number[], signal: AbortSignal) =>
    afterStart(exec, untilListening(engine, exec, ports, signal));

  async function startRow(sandbox: Sandbox, body: ProcessRequest, signal: AbortSignal) {
    const { name, maxRestarts, workingDir = "", waitForPorts = [] } = body;
    if (name) await names.requireFree(sandbox, name);
    const wanted = { name, maxRestarts, order: orderOf(body, sandbox) };
    const order = restarts.start(sandbox, wanted, signal).catch((error: unknown) => {
      const isTaken = name && isHoldfastError(error) && error.code === "process_conflict";
      throw isTaken ? nameTaken(sandbox.id, name) : error;
    });
    const { process, followed } = await orMaybeDispatched(callers, order);
    if (followed && name) throw nameTaken(sandbox.id, name);
    const exec = restarts.lastRun(process);
    if (waitForPorts.length > 0) await listening(exec, waitForPorts, signal);
    const now = await engine.processes.get(sandbox.id, process.id);
    return supervisedShape(now, restarts.lastRun(now), NO_OUTPUT, workingDir && resolveHome(workingDir));
  }

  /**
   * Starts a process. If `expectsReader` is true, a client is about to read the output, and the process waits for that
   * reader for a while before output is dropped.
   */
  async function start(
    sandbox: Sandbox,
    body: ProcessRequest,
    expectsReader: boolean,
    signal: AbortSignal,
  ): Promise<Exec> {
    const { name } = body;
    const order = checkOrder(orderOf(body, sandbox), "The process request is not valid");
    const awaited = body.waitForCompletion ?? false;
    if (name) order.id = await names.nextId(sandbox, name);
    const { exec, followed } = await engine.execs
      .start(sandbox.id, order, { awaited, expectsReader, signal })
      .catch((error: unknown) => {
        const isTaken = name && isHoldfastError(error) && error.code === "exec_conflict";
        throw isTaken ? nameTaken(sandbox.id, name) : error;
      });
    if (followed && name) throw nameTaken(sandbox.id, name);
    refuseUnstarted(exec);
    return exec;
  }

  /**
   * Waits until the process ends, up to the maximum wait, which is shorter than the client's own timeout. If the
   * process is still running then, it is returned as running.
   */
  async function ended(exec: Exec, workingDir: string, signal: AbortSignal) {
    const known = await engine.execs.wait(exec.id, { waitMs: numbers.execWaitMaxMs, signal });
    if (!isTerminal(known.status)) signal.throwIfAborted();
    refuseUnstarted(known);
    return processShape(known, await outputWith(engine.execs, known, signal), workingDir);
  }

  const follow = (reply: FastifyReply, exec: Exec, workingDir: string, signal: AbortSignal) =>
    sendLines(reply, context, {
      type: "application/x-ndjson",
      lines: execLines(engine.execs, exec, workingDir, signal),
      signal,
    });

  app.get("/process", { schema: { params: InSandbox } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { items } = await engine.execs.list(params.name, { limit: LISTED });
    const running = items.find(({ status }) => !isTerminal(status));
    if (running) await engine.sandboxes.wake(running.sandboxId, signal);
    const { items: processes } = await engine.processes.list(params.name);
    const shown = processes.flatMap((supervised) =>
      supervised.exec === null ? [] : [supervisedShape(supervised, supervised.exec, NO_OUTPUT)],
    );
    const single = items.filter((exec) => supervisedIdOf(exec) === null);
    return [...shown, ...single.map((exec) => processShape(exec, NO_OUTPUT))];
  });

  /**
   * Finds a process. If the process is still running, wakes its sandbox, because the caller waits for the process,
   * which makes no progress in standby.
   */
  async function found(params: Static<typeof InProcess>, signal: AbortSignal): Promise<Found> {
    const sandbox = await engine.sandboxes.get(params.name);
    const byPid = await restarts.find(sandbox, pidIn(params.identifier));
    const exec = byPid ? restarts.lastRun(byPid) : await names.find(sandbox, params.identifier);
    const supervised = byPid ?? (await restarts.supervisedProcess(exec));
    if (isTerminal(exec.status)) return { exec, supervised };
    await engine.sandboxes.wake(exec.sandboxId, signal);
    return { exec: await engine.execs.get(exec.id), supervised };
  }

  const outputFound = ({ exec, supervised }: Found, signal: AbortSignal) =>
    supervised === null ? outputOf(engine.execs, exec.id, signal) : restarts.output(supervised, signal);

  async function shown(process: Found, signal: AbortSignal) {
    const { exec, supervised } = process;
    const output = await outputFound(process, signal);
    return supervised === null ? processShape(exec, output) : supervisedShape(supervised, exec, output);
  }

  app.get("/process/:identifier", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    return shown(await found(params, signal), signal);
  });

  /**
   * Responds when the process has ended. If the wait times out first, responds with the current state, and the client
   * sends the request again.
   */
  app.get(
    "/process/:identifier/wait",
    { schema: { params: InProcess, querystring: WaitQuery } },
    async ({ params, query }, reply) => {
      const signal = callers.signal(reply.raw);
      const deadline = Date.now() + Math.min(query.timeout * 1_000, numbers.execWaitMaxMs);
      for (;;) {
        // Finding a running process wakes its sandbox, which also counts as use and so keeps the sandbox awake.
        const process = await found(params, signal);
        const left = deadline - Date.now();
        if (left <= 0 || isOver(process)) return shown(process, signal);
        await endedWithin(process, Math.min(left, TOUCH_EVERY_MS), signal);
      }
    },
  );

  /** Waits until the process ends, for `waitMs` at most. */
  async function endedWithin({ exec }: Found, waitMs: number, signal: AbortSignal): Promise<void> {
    // If the last run has ended and the process will be restarted, there is no exec to wait for until the next run
    // starts.
    if (isTerminal(exec.status)) await sleep(Math.min(waitMs, BETWEEN_RUNS_MS), undefined, { signal });
    else if (!isTerminal((await engine.execs.wait(exec.id, { waitMs, signal })).status))
      signal.throwIfAborted();
  }

  app.get("/process/:identifier/logs", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    return outputFound(await found(params, signal), signal);
  });

  app.get(
    "/process/:identifier/logs/stream",
    { schema: { params: InProcess } },
    async ({ params }, reply) => {
      const signal = callers.signal(reply.raw);
      const { exec, supervised } = await found(params, signal);
      const touch = touching(exec, signal);
      const lines =
        supervised === null
          ? logLines(engine.execs, exec, touch, signal)
          : linesOfRuns(restarts.following(supervised, signal), (run) =>
              logLines(engine.execs, run, touch, signal),
            );
      return sendLines(reply, context, { type: "text/plain", lines, signal });
    },
  );

  /**
   * Returns a function that keeps the sandbox awake while the output of its process is read. If the function fails to
   * wake the sandbox, the output is still read.
   */
  function touching({ sandboxId }: Exec, signal: AbortSignal): () => Promise<void> {
    let touchedAt = Date.now();
    return async () => {
      if (Date.now() - touchedAt < TOUCH_EVERY_MS) return;
      touchedAt = Date.now();
      await engine.sandboxes.wake(sandboxId, signal).catch((error: unknown) => {
        context.log.debug(
          { sandbox: sandboxId, err: error },
          "failed to keep a sandbox awake for its reader",
        );
      });
    };
  }

  /** Stops the current run of a supervised process and prevents further runs. */
  async function stopSupervised({ sandboxId, id }: Process, signal: AbortSignal) {
    await orMaybeDispatched(callers, engine.processes.stop(sandboxId, id, signal));
    return { message: "The process was stopped and will not be restarted.", pid: id };
  }

  app.delete("/process/:identifier", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { exec, supervised } = await found(params, signal);
    if (supervised !== null) return stopSupervised(supervised, signal);
    await engine.execs.signal(exec.id, "SIGTERM", signal);
    return { message: "SIGTERM was sent to the process.", pid: exec.id };
  });

  app.delete("/process/:identifier/kill", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { exec, supervised } = await found(params, signal);
    if (supervised !== null) return stopSupervised(supervised, signal);
    await engine.execs.cancel(exec.id, signal);
    return { message: "The process was killed.", pid: exec.id };
  });

  app.delete("/process/:identifier/stdin", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { exec } = await found(params, signal);
    const end = { offset: null, data: new Uint8Array(0), end: true };
    if (!isTerminal(exec.status)) await engine.execs.writeStdin(exec.id, end, signal);
    return { message: "The process's stdin is closed.", pid: exec.id };
  });

  app.register(async (scope) => stdinRoute(scope as App));

  function stdinRoute(scope: App): void {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser("*", (_request, payload, done) => {
      const limits = { limitBytes: numbers.bodyLimitBytes, withinMs: numbers.httpReceiveMs };
      readWhole(payload, limits).then((data) => done(null, data), done);
    });
    scope.post(
      "/process/:identifier/stdin",
      { schema: { params: InProcess } },
      async ({ params, body }, reply) => {
        const signal = callers.signal(reply.raw);
        const { exec } = await found(params, signal);
        const data = body instanceof Uint8Array ? body : new Uint8Array(0);
        await engine.execs.writeStdin(exec.id, { offset: null, data, end: false }, signal);
        return { message: `${data.length} bytes were written.`, pid: exec.id };
      },
    );
  }
}

/**
 * A found process. If it is restarted on failure, `supervised` is the supervised process, and `exec` is one of its
 * runs.
 */
interface Found {
  exec: Exec;
  supervised: Process | null;
}

const isOver = ({ exec, supervised }: Found): boolean =>
  supervised === null ? isTerminal(exec.status) : isProcessOver(supervised.status);

async function* linesOfRuns(
  runs: AsyncIterable<Exec>,
  linesOf: (run: Exec) => AsyncIterable<string>,
): AsyncGenerator<string, void, undefined> {
  for await (const run of runs) yield* linesOf(run);
}

const wantsStream = (accept = ""): boolean => /text\/event-stream|application\/x-ndjson/i.test(accept);

function orderOf(body: ProcessRequest, { standbyKind }: Sandbox): StartExec {
  const { command, name, workingDir, env, timeout, keepAlive = false, waitForCompletion = false } = body;
  const timeoutMs = timeout === undefined ? (keepAlive ? KEPT_ALIVE_MS : 0) : timeout * 1_000;
  return {
    ...(name ? { argv: namedArgv(command, name) } : { command }),
    ...(workingDir ? { cwd: resolveHome(workingDir) } : {}),
    ...(env ? { env } : {}),
    ...(timeoutMs > 0 ? { timeoutMs } : {}),
    ...(body.stdin ? { openStdin: true } : {}),
    user: "root",
    // If the standby of this sandbox keeps only files and no memory, it would end the command, so the command prevents
    // standby.
    keepAwake: waitForCompletion || keepAlive || standbyKind === "files",
  };
}

const KNOWN = fieldsOf(ProcessRequest);

/**
 * Refuses unsupported fields and combinations. For a process that is restarted on failure, `waitForCompletion` and
 * stdin are refused, because the process may end several times, and stdin would reach only its first run.
 */
function refuseUnknown(body: ProcessRequest): void {
  refuseFields("process", body, KNOWN);
  if (!body.restartOnFailure) return;
  if (body.waitForCompletion)
    throw notSupported(
      "restartOnFailure with waitForCompletion",
      "Start the process without waitForCompletion, then wait for it.",
    );
  if (body.stdin)
    throw notSupported("restartOnFailure with stdin", "Input to one run would not reach the next run.");
}

/** Causes of the end of an exec that mean that its command was sent to the sandbox but did not run. */
const UNSTARTED: readonly string[] = ["not_found", "not_executable", "cwd", "user"];

/** Throws if the command did not run, because the client expects an error in this case, as on the platform. */
function refuseUnstarted({ id, sandboxId, status, cause, dispatched }: Exec): void {
  if (status !== "refused" && !UNSTARTED.includes(cause?.code ?? "")) return;
  const code = cause?.code === "queue_timeout" ? "too_many_execs" : "invalid_request";
  const message = `The process could not be started: ${cause?.message ?? "the exec was refused."}`;
  throw new HoldfastError(code, { sandboxId, execId: id, dispatched, message });
}
