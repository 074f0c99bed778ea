import { Type } from "@fastify/type-provider-typebox";
import { Exec, ExecList, HoldfastError, isHoldfastError, isTerminal, StartExec } from "@holdfast/contract";
import type { FastifyReply } from "fastify";
import type { App, RouteContext } from "../http/context.ts";
import { ExecRef, IdempotencyHeaders, Page, pageOf, SandboxRef } from "../http/schemas.ts";
import {
  acceptedFormat,
  OUTPUT_CONTENT,
  OUTPUT_FORMATS,
  type OutputFormat,
} from "../streams/output-format.ts";
import { sendOutput } from "../streams/output-sender.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["execs"];
/**
 * Shortest `waitMs` with which the start of an exec counts as awaited: the caller then gets the response when the exec
 * has ended or the wait has timed out.
 */
const AWAITED_MS = 1_000;

export function execRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;

  app.post(
    "/v1/sandboxes/:ref/execs",
    {
      schema: {
        operationId: "startExec",
        summary: "Run a command: wait for its end, stream its output, or (with detach) return at once.",
        description:
          "Returns 200 with the exec when it has ended, whatever its outcome; 202 with the running exec if `waitMs` elapsed or `detach` is set. With an Accept header that names a stream type, the output is streamed; if the stream cannot start, the response is 202 with the exec.",
        tags,
        params: SandboxRef,
        headers: IdempotencyHeaders,
        body: StartExec,
        response: { 200: Exec, 202: Exec },
      },
      config: {
        content: { 200: OUTPUT_CONTENT },
        errors: [
          ...SERVING_ERRORS,
          "exec_conflict",
          "exec_limit",
          "idempotency_conflict",
          "too_many_execs",
          "disk_full",
        ],
      },
    },
    async ({ params, headers, body }, reply) => {
      checkCommand(body);
      const signal = callers.signal(reply.raw);
      const idempotencyKey = headers["idempotency-key"];
      const format = acceptedFormat(headers.accept, OUTPUT_FORMATS);
      const waitMs = Math.min(body.waitMs ?? numbers.execWaitDefaultMs, numbers.execWaitMaxMs);
      const awaited = !body.detach && format === null && waitMs >= AWAITED_MS;
      const expectsReader = body.awaitReader ?? format !== null;
      const options = { idempotencyKey, awaited, expectsReader, signal };
      const { exec } = await engine.execs.start(params.ref, body, options);
      if (body.detach) return reply.code(202).send(exec);
      if (format) return streamOrKeep(reply, exec, format, signal);
      const known = await waitOrKeep(exec, waitMs, signal);
      return reply.code(isTerminal(known.status) ? 200 : 202).send(known);
    },
  );

  /**
   * Waits for the exec's end. If the server's shutdown interrupts the wait, returns the exec as after a timeout: it was
   * started and keeps running.
   */
  async function waitOrKeep(exec: Exec, waitMs: number, signal: AbortSignal): Promise<Exec> {
    try {
      return await engine.execs.wait(exec.id, { waitMs, signal });
    } catch (error) {
      if (isHoldfastError(error) && error.code === "shutting_down") return exec;
      throw error;
    }
  }

  /**
   * Streams the output. If the stream can't start (too many readers, a shutdown), responds 202 with the exec instead of
   * an error: the exec was started, and a caller that repeats the request after an error would run the command twice.
   */
  async function streamOrKeep(reply: FastifyReply, exec: Exec, format: OutputFormat, signal: AbortSignal) {
    try {
      return await sendOutput(reply, context, { id: exec.id, format, follow: true, signal });
    } catch (error) {
      context.log.debug(
        { requestId: reply.request.id, execId: exec.id, err: error },
        "failed to start an output stream",
      );
      return reply.code(202).send(exec);
    }
  }

  app.get(
    "/v1/sandboxes/:ref/execs",
    {
      schema: {
        operationId: "listExecs",
        summary: "List the execs of a sandbox, newest first.",
        tags,
        params: SandboxRef,
        querystring: Type.Object(Page),
        response: { 200: ExecList },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] },
    },
    ({ params, query }) => engine.execs.list(params.ref, pageOf(query)),
  );

  app.get(
    "/v1/execs/:id",
    {
      schema: {
        operationId: "getExec",
        summary: "Get an exec, optionally after waiting for its end.",
        tags,
        params: ExecRef,
        querystring: Type.Object({
          waitMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: 240_000,
              description: "how long to wait for the end; the response then includes stdout and stderr",
            }),
          ),
        }),
        response: { 200: Exec },
      },
      config: { errors: ["exec_not_found"] },
    },
    ({ params, query }, reply) => {
      if (query.waitMs === undefined) return engine.execs.get(params.id);
      const waitMs = Math.min(query.waitMs, numbers.execWaitMaxMs);
      return engine.execs.wait(params.id, { waitMs, signal: callers.signal(reply.raw) });
    },
  );
}

function checkCommand(body: StartExec): void {
  if ((body.command === undefined) === (body.argv === undefined)) {
    throw new HoldfastError("invalid_request", { message: "body must have either command or argv." });
  }
}
