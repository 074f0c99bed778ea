/** Named, long-lived processes. Each of their runs is an exec, with an outcome and output of its own. */
import { Type } from "@fastify/type-provider-typebox";
import { ExecList, HoldfastError, Process, ProcessList, StartProcess } from "@holdfast/contract";
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { OUTPUT_CONTENT } from "../output-format.ts";
import { Page, pageOf, SandboxRef } from "../schemas.ts";
import { forwardOutput, OUTPUT_ERRORS, ReadQuery } from "./exec-output.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["processes"];
const FINDING_ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "process_not_found"] as const;
const START_ERRORS = [...SERVING_ERRORS, "process_unsupported", "too_many_execs", "disk_full"] as const;

const ProcessRef = Type.Object({
  ...SandboxRef.properties,
  process: Type.String({ minLength: 1, maxLength: 64, description: "its name or id" }),
});

const waitMs = Type.Integer({ minimum: 0, maximum: 240_000 });
const UNTIL_READY =
  "how long this call waits until it is ready, or over; default: as long as readyWhen gives it";
const StartQuery = Type.Object({ waitMs: Type.Optional({ ...waitMs, description: UNTIL_READY }) });

export function processRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.post(
    "/v1/sandboxes/:ref/processes",
    {
      schema: {
        operationId: "startProcess",
        summary: "Start a named process. Answers when it is ready, is not in time, or is over.",
        description:
          "201 with the process as it then is; 200 where one of that name was started in the same way and is not over, which is followed. A name whose process is over is free: the new process takes its place, and the runs of the old one stay readable as execs for as long as those are kept. What is started goes on when its caller leaves.",
        tags,
        params: SandboxRef,
        querystring: StartQuery,
        body: StartProcess,
        response: { 200: Process, 201: Process },
      },
      config: {
        errors: [...START_ERRORS, "process_conflict", "too_many_processes", "exec_limit"],
      },
    },
    async ({ params, query, body }, reply) => {
      if ((body.command === undefined) === (body.argv === undefined))
        throw new HoldfastError("invalid_request", { message: "body must have either command or argv." });
      const options = { waitMs: query.waitMs, signal: callers.signal(reply.raw) };
      const order = engine.processes.start(params.ref, body, options);
      const { process, followed } = await orMaybeDispatched(callers, order);
      return reply.code(followed ? 200 : 201).send(process);
    },
  );

  app.get(
    "/v1/sandboxes/:ref/processes",
    {
      schema: {
        operationId: "listProcesses",
        summary: "The named processes of a sandbox, oldest first. Wakes nobody.",
        tags,
        params: SandboxRef,
        response: { 200: ProcessList },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] },
    },
    ({ params }) => engine.processes.list(params.ref),
  );

  app.get(
    "/v1/sandboxes/:ref/processes/:process",
    {
      schema: {
        operationId: "getProcess",
        summary: "A named process, at once or when it is ready, is not in time, or is over. Wakes nobody.",
        tags,
        params: ProcessRef,
        querystring: Type.Object({
          waitMs: Type.Optional({ ...waitMs, description: "how long this call waits for that; default 0" }),
        }),
        response: { 200: Process },
      },
      config: { errors: FINDING_ERRORS },
    },
    ({ params: { ref, process }, query }, reply) =>
      engine.processes.wait(ref, process, { waitMs: query.waitMs ?? 0, signal: callers.signal(reply.raw) }),
  );

  app.delete(
    "/v1/sandboxes/:ref/processes/:process",
    {
      schema: {
        operationId: "stopProcess",
        summary: "End a process and what would follow it; answers when its tree is gone. Idempotent.",
        description:
          "A sandbox that sleeps is woken for it. The order is stored: what can't be done now is done when it can.",
        tags,
        params: ProcessRef,
        response: { 200: Process },
      },
      config: { errors: [...new Set([...SERVING_ERRORS, ...FINDING_ERRORS])] },
    },
    ({ params: { ref, process } }, reply) =>
      orMaybeDispatched(callers, engine.processes.stop(ref, process, callers.signal(reply.raw))),
  );

  app.post(
    "/v1/sandboxes/:ref/processes/:process/restart",
    {
      schema: {
        operationId: "restartProcess",
        summary: "End its run, if there is one, and begin the next at once. Answers as a start does.",
        tags,
        params: ProcessRef,
        querystring: StartQuery,
        response: { 200: Process },
      },
      config: { errors: [...new Set([...START_ERRORS, ...FINDING_ERRORS])] },
    },
    ({ params: { ref, process }, query }, reply) => {
      const options = { waitMs: query.waitMs, signal: callers.signal(reply.raw) };
      return orMaybeDispatched(callers, engine.processes.restart(ref, process, options));
    },
  );

  app.get(
    "/v1/sandboxes/:ref/processes/:process/runs",
    {
      schema: {
        operationId: "listProcessRuns",
        summary: "The runs of a process, newest first, for as long as execs are kept.",
        tags,
        params: ProcessRef,
        querystring: Type.Object(Page),
        response: { 200: ExecList },
      },
      config: { errors: FINDING_ERRORS },
    },
    ({ params: { ref, process }, query }) => engine.processes.runs(ref, process, pageOf(query)),
  );

  app.get(
    "/v1/sandboxes/:ref/processes/:process/output",
    {
      schema: {
        operationId: "readProcessOutput",
        summary: "The output of the last run, as GET /v1/execs/:id/output gives it.",
        description:
          "It ends with that run. The runs before it, and those behind it, are read by their own ids.",
        tags,
        params: ProcessRef,
        querystring: ReadQuery,
      },
      config: { content: { 200: OUTPUT_CONTENT }, errors: [...FINDING_ERRORS, ...OUTPUT_ERRORS] },
    },
    async ({ params: { ref, process }, query, headers }, reply) => {
      const { execId } = await engine.processes.get(ref, process);
      return forwardOutput(context, reply, execId, { query, headers });
    },
  );
}
