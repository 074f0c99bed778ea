/** Named, long-lived processes. Each run is an exec with its own outcome and output. */
import { Type } from "@fastify/type-provider-typebox";
import { ExecList, HoldfastError, Process, ProcessList, StartProcess } from "@holdfast/contract";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { Page, pageOf, SandboxRef } from "../http/schemas.ts";
import { OUTPUT_CONTENT } from "../streams/output-format.ts";
import { forwardOutput, OUTPUT_ERRORS, ReadQuery } from "./exec-output.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["processes"];
const FINDING_ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "process_not_found"] as const;
const START_ERRORS = [...SERVING_ERRORS, "process_unsupported", "too_many_execs", "disk_full"] as const;

const ProcessRef = Type.Object({
  ...SandboxRef.properties,
  process: Type.String({ minLength: 1, maxLength: 64, description: "name or id of a process" }),
});

const waitMs = Type.Integer({ minimum: 0, maximum: 240_000 });
const UNTIL_READY =
  "how long this call waits for the process to become ready or end; default: the timeout of readyWhen";
const StartQuery = Type.Object({ waitMs: Type.Optional({ ...waitMs, description: UNTIL_READY }) });

export function processRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.post(
    "/v1/sandboxes/:ref/processes",
    {
      schema: {
        operationId: "startProcess",
        summary:
          "Start a named process. Returns when the process is ready or has ended, or when the wait times out.",
        description:
          "Returns 201 with the process. Returns 200 if a process of that name was started with the same request and has not ended; the call then waits for that process. The name of an ended process is free: the new process replaces it, and the runs of the old process stay readable as execs while those are retained. A started process keeps running if the caller disconnects.",
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
        summary: "List the named processes of a sandbox, oldest first. Does not wake the sandbox.",
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
        summary:
          "Get a named process, optionally after waiting for it to become ready or end. Does not wake the sandbox.",
        tags,
        params: ProcessRef,
        querystring: Type.Object({
          waitMs: Type.Optional({
            ...waitMs,
            description: "how long this call waits for the process to become ready or end; default 0",
          }),
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
        summary: "Stop a process and its restarts. Returns when its process tree is gone. Idempotent.",
        description:
          "Wakes a sandbox in standby. The request is stored: if the process cannot be stopped now, it is stopped as soon as possible.",
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
        summary:
          "Stop the current run, if any, and start the next one immediately. Returns under the same conditions as a start.",
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
        summary: "List the runs of a process, newest first, while their execs are retained.",
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
        summary: "Read the output of the last run, in the format of GET /v1/execs/:id/output.",
        description: "The stream ends with that run. Read the output of other runs by their exec ids.",
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
