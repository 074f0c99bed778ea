import { Type } from "@fastify/type-provider-typebox";
import { Exec, ExecList, HoldfastError, isHoldfastError, isTerminal, StartExec } from "@holdfast/contract";
import type { FastifyReply } from "fastify";
import type { App, RouteContext } from "../context.ts";
import { acceptedFormat, OUTPUT_CONTENT, OUTPUT_FORMATS, type OutputFormat } from "../output-format.ts";
import { sendOutput } from "../output-sender.ts";
import { ExecRef, IdempotencyHeaders, Page, pageOf, SandboxRef } from "../schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["execs"];
/** A caller that waits this long is told nothing of its exec before then, unless by its end. */
const AWAITED_MS = 1_000;

export function execRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;

  app.post(
    "/v1/sandboxes/:ref/execs",
    {
      schema: {
        operationId: "startExec",
        summary: "Run a command. Waits for its end, streams it, or (detach) answers at once.",
        description:
          "200 with the exec when it ended, whatever its outcome; 202 with the exec as it is when `waitMs` ran out or with `detach`. An Accept header that names a stream type streams its output; where that can't begin, the answer is 202 with the exec.",
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
      const { exec } = await engine.execs.start(params.ref, body, { idempotencyKey, awaited, signal });
      if (body.detach) return reply.code(202).send(exec);
      if (format) return streamOrKeep(reply, exec, format, signal);
      const known = await waitOrKeep(exec, waitMs, signal);
      return reply.code(isTerminal(known.status) ? 200 : 202).send(known);
    },
  );

  /** A wait that the server's own shutdown cuts short is a wait that ran out: the exec was started and goes on. */
  async function waitOrKeep(exec: Exec, waitMs: number, signal: AbortSignal): Promise<Exec> {
    try {
      return await engine.execs.wait(exec.id, { waitMs, signal });
    } catch (error) {
      if (isHoldfastError(error) && error.code === "shutting_down") return exec;
      throw error;
    }
  }

  /**
   * A stream that can't begin (too many readers, a shutdown) is no reason to refuse: the exec was started, and a caller that
   * repeats its request would run it twice. It is told which exec to follow instead.
   */
  async function streamOrKeep(reply: FastifyReply, exec: Exec, format: OutputFormat, signal: AbortSignal) {
    try {
      return await sendOutput(reply, context, { id: exec.id, format, follow: true, signal });
    } catch (error) {
      context.log.debug({ requestId: reply.request.id, execId: exec.id, err: error }, "stream did not begin");
      return reply.code(202).send(exec);
    }
  }

  app.get(
    "/v1/sandboxes/:ref/execs",
    {
      schema: {
        operationId: "listExecs",
        summary: "The sandbox's execs, newest first.",
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
        summary: "An exec, at once or when it ended.",
        tags,
        params: ExecRef,
        querystring: Type.Object({
          waitMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: 240_000,
              description: "wait so long for the end; the answer then has stdout and stderr",
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
