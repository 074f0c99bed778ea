import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  type Exec,
  HoldfastError,
  isHoldfastError,
  isTerminal,
  type Process,
  type Sandbox,
  StartExec,
} from "@holdfast/contract";
import type { FastifyReply } from "fastify";
import { readWhole } from "../../body.ts";
import { orMaybeDispatched } from "../../callers.ts";
import type { App, RouteContext } from "../../context.ts";
import { checker } from "../checked.ts";
import { sendLines } from "../line-sender.ts";
import { fieldsOf, notSupported, refuseFields } from "../refusals.ts";
import { NO_OUTPUT, outputOf, outputWith } from "./collected-output.ts";
import { untilListening } from "./listening.ts";
import { homed } from "./paths.ts";
import { namedArgv, nameTaken, ProcessNames } from "./process-names.ts";
import { execLines, logLines } from "./process-streams.ts";
import { Restarts, rowOf } from "./restarts.ts";
import { processShape, rowShape } from "./shapes.ts";

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

const LISTED = 1_000;
/** The platform's own: of a process that keeps its sandbox awake and says nothing of its end. */
const KEPT_ALIVE_MS = 600_000;
/** A sandbox that is used so often does not sleep meanwhile. */
const TOUCH_EVERY_MS = 5_000;
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
      const exec = await start(sandbox, body, signal);
      const workingDir = body.workingDir ? homed(body.workingDir) : "";
      if (!body.waitForCompletion) {
        if (body.waitForPorts?.length) await listening(exec, body.waitForPorts, signal);
        return processShape(await engine.execs.get(exec.id), NO_OUTPUT, workingDir);
      }
      if (wantsStream(headers.accept)) return follow(reply, exec, workingDir, signal);
      return afterStart(exec, ended(exec, workingDir, signal));
    },
  );

  /** The wait for what was started may be cut short by the server's shutdown; the command goes on, and nobody should repeat it. */
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
    return rowShape(now, restarts.lastRun(now), NO_OUTPUT, workingDir && homed(workingDir));
  }

  async function start(sandbox: Sandbox, body: ProcessRequest, signal: AbortSignal): Promise<Exec> {
    const { name } = body;
    const order = checkOrder(orderOf(body, sandbox), "The process that was asked for can't be had");
    const awaited = body.waitForCompletion ?? false;
    if (name) order.id = await names.nextId(sandbox, name);
    const { exec, followed } = await engine.execs
      .start(sandbox.id, order, { awaited, signal })
      .catch((error: unknown) => {
        const isTaken = name && isHoldfastError(error) && error.code === "exec_conflict";
        throw isTaken ? nameTaken(sandbox.id, name) : error;
      });
    if (followed && name) throw nameTaken(sandbox.id, name);
    refuseUnstarted(exec);
    return exec;
  }

  /** Past the longest wait it is answered as it is, running: a client's own patience ends soon after. */
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
    const { items: rows } = await engine.processes.list(params.name);
    const shown = rows.flatMap((row) => (row.exec === null ? [] : [rowShape(row, row.exec, NO_OUTPUT)]));
    const single = items.filter((exec) => rowOf(exec) === null);
    return [...shown, ...single.map((exec) => processShape(exec, NO_OUTPUT))];
  });

  /** The process, in a sandbox that is awake if it still runs: who asks after it waits for it, and it does nothing asleep. */
  async function found(params: Static<typeof InProcess>, signal: AbortSignal): Promise<Found> {
    const sandbox = await engine.sandboxes.get(params.name);
    const byPid = await restarts.find(sandbox, params.identifier);
    const exec = byPid ? restarts.lastRun(byPid) : await names.find(sandbox, params.identifier);
    const row = byPid ?? (await restarts.rowFor(exec));
    if (isTerminal(exec.status)) return { exec, row };
    await engine.sandboxes.wake(exec.sandboxId, signal);
    return { exec: await engine.execs.get(exec.id), row };
  }

  const outputFound = ({ exec, row }: Found, signal: AbortSignal) =>
    row === null ? outputOf(engine.execs, exec.id, signal) : restarts.output(row, signal);

  app.get("/process/:identifier", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const process = await found(params, signal);
    const { exec, row } = process;
    const output = await outputFound(process, signal);
    return row === null ? processShape(exec, output) : rowShape(row, exec, output);
  });

  app.get("/process/:identifier/logs", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    return outputFound(await found(params, signal), signal);
  });

  app.get(
    "/process/:identifier/logs/stream",
    { schema: { params: InProcess } },
    async ({ params }, reply) => {
      const signal = callers.signal(reply.raw);
      const { exec, row } = await found(params, signal);
      const touch = touching(exec, signal);
      const lines =
        row === null
          ? logLines(engine.execs, exec, touch, signal)
          : linesOfRuns(restarts.following(row, signal), (run) => logLines(engine.execs, run, touch, signal));
      return sendLines(reply, context, { type: "text/plain", lines, signal });
    },
  );

  /** Keeps the sandbox awake for as long as somebody reads; one that can't be woken is no reason to stop reading. */
  function touching({ sandboxId }: Exec, signal: AbortSignal): () => Promise<void> {
    let touchedAt = Date.now();
    return async () => {
      if (Date.now() - touchedAt < TOUCH_EVERY_MS) return;
      touchedAt = Date.now();
      await engine.sandboxes.wake(sandboxId, signal).catch((error: unknown) => {
        context.log.debug({ sandbox: sandboxId, err: error }, "a sandbox was not kept awake for its reader");
      });
    };
  }

  /** The run that there is, and all that would follow. */
  async function endRow({ sandboxId, id }: Process, signal: AbortSignal) {
    await orMaybeDispatched(callers, engine.processes.stop(sandboxId, id, signal));
    return { message: "The process was ended, and is not started again.", pid: id };
  }

  app.delete("/process/:identifier", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { exec, row } = await found(params, signal);
    if (row !== null) return endRow(row, signal);
    await engine.execs.signal(exec.id, "SIGTERM", signal);
    return { message: "The process was sent SIGTERM.", pid: exec.id };
  });

  app.delete("/process/:identifier/kill", { schema: { params: InProcess } }, async ({ params }, reply) => {
    const signal = callers.signal(reply.raw);
    const { exec, row } = await found(params, signal);
    if (row !== null) return endRow(row, signal);
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

/** A process, and the row that its last run is of. */
interface Found {
  exec: Exec;
  row: Process | null;
}

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
    ...(workingDir ? { cwd: homed(workingDir) } : {}),
    ...(env ? { env } : {}),
    ...(timeoutMs > 0 ? { timeoutMs } : {}),
    ...(body.stdin ? { openStdin: true } : {}),
    user: "root",
    // Where sleep keeps files only, it is the end of whatever does not keep the sandbox from it.
    keepAwake: waitForCompletion || keepAlive || standbyKind === "files",
  };
}

const KNOWN = fieldsOf(ProcessRequest);

/** What is started again has no one end that a call could wait for, and nobody could type to the next run. */
function refuseUnknown(body: ProcessRequest): void {
  refuseFields("process", body, KNOWN);
  if (!body.restartOnFailure) return;
  if (body.waitForCompletion)
    throw notSupported("restartOnFailure with waitForCompletion", "Start it without, and wait for it.");
  if (body.stdin) throw notSupported("restartOnFailure with stdin", "The next run would not have heard it.");
}

/** Why a command that was sent into the sandbox did not run there. */
const UNSTARTED: readonly string[] = ["not_found", "not_executable", "cwd", "user"];

/** No command ran: the client is told so by an error, as it would be there. */
function refuseUnstarted({ id, sandboxId, status, cause, dispatched }: Exec): void {
  if (status !== "refused" && !UNSTARTED.includes(cause?.code ?? "")) return;
  const code = cause?.code === "queue_timeout" ? "too_many_execs" : "invalid_request";
  const message = `The process could not be started: ${cause?.message ?? "it was refused."}`;
  throw new HoldfastError(code, { sandboxId, execId: id, dispatched, message });
}
