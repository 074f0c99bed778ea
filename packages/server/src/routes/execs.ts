import { Type } from "@fastify/type-provider-typebox";
import {
  Exec,
  ExecList,
  HoldfastError,
  isHoldfastError,
  isTerminal,
  StartExec,
  StreamRecord,
} from "@holdfast/contract";
import type { FastifyReply } from "fastify";
import { readWhole } from "../body.ts";
import type { App, RouteContext } from "../context.ts";
import {
  ExecRef,
  IdempotencyHeaders,
  Page,
  pageOf,
  SandboxRef,
  SignalExec,
  StdinAccepted,
} from "../schemas.ts";
import { acceptedStream, STREAM_TYPES, type StreamFormat, sendRecords } from "../stream.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["execs"];
const STREAMED = {
  200: { [STREAM_TYPES.ndjson]: StreamRecord, [STREAM_TYPES.sse]: StreamRecord },
} as const;

export function execRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;

  app.post(
    "/v1/sandboxes/:ref/execs",
    {
      schema: {
        operationId: "startExec",
        summary: "Run a command. Waits for its end, streams it, or (detach) answers at once.",
        description:
          "200 with the exec when it ended, whatever its outcome; 202 with the exec as it is when `waitMs` ran out or with `detach`. An Accept header that names a stream type streams its records.",
        tags,
        params: SandboxRef,
        headers: IdempotencyHeaders,
        body: StartExec,
        response: { 200: Exec, 202: Exec },
      },
      config: {
        content: STREAMED,
        errors: [...SERVING_ERRORS, "exec_conflict", "idempotency_conflict", "too_many_execs", "disk_full"],
      },
    },
    async ({ params, headers, body }, reply) => {
      checkCommand(body);
      const signal = callers.signal(reply.raw);
      const idempotencyKey = headers["idempotency-key"];
      const { exec } = await engine.execs.start(params.ref, body, { idempotencyKey, signal });
      if (body.detach) return reply.code(202).send(exec);
      const format = acceptedStream(headers.accept);
      if (format) return sendOutput(reply, format, { id: exec.id, follow: true, signal });
      const waitMs = Math.min(body.waitMs ?? numbers.execWaitDefaultMs, numbers.execWaitMaxMs);
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

  async function sendOutput(
    reply: FastifyReply,
    format: StreamFormat,
    { id, ...options }: { id: string; cursor?: string | undefined; follow: boolean; signal: AbortSignal },
  ): Promise<FastifyReply> {
    const stream = {
      format,
      stallMs: numbers.httpStallMs,
      headers: { "x-request-id": reply.request.id },
      onOpen: () => reply.hijack(),
    };
    try {
      await sendRecords(reply.raw, engine.execs.output(id, options), stream);
    } catch (error) {
      if (!reply.raw.headersSent) throw error;
      context.log.debug({ requestId: reply.request.id, execId: id, err: error }, "stream ended early");
    }
    return reply;
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
      config: { errors: ["sandbox_not_found"] },
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

  app.get(
    "/v1/execs/:id/output",
    {
      schema: {
        operationId: "readExecOutput",
        summary: "An exec's output from a cursor on, as a stream of records.",
        description:
          "A stream that ends without an `end` record was cut: come back with the last cursor. A Last-Event-ID header is taken as cursor.",
        tags,
        params: ExecRef,
        querystring: Type.Object({
          cursor: Type.Optional(Type.String({ minLength: 1, maxLength: 64 })),
          follow: Type.Optional(Type.Boolean({ default: false, description: "go on until the exec ends" })),
        }),
      },
      config: {
        content: STREAMED,
        errors: ["exec_not_found", "output_dropped", "sandbox_gone", "link_lost"],
      },
    },
    ({ params, query, headers }, reply) => {
      const lastSeen = headers["last-event-id"];
      return sendOutput(reply, acceptedStream(headers.accept) ?? "ndjson", {
        id: params.id,
        cursor: query.cursor ?? (typeof lastSeen === "string" ? lastSeen : undefined),
        follow: query.follow ?? false,
        signal: callers.signal(reply.raw),
      });
    },
  );

  app.post(
    "/v1/execs/:id/signal",
    {
      schema: {
        operationId: "signalExec",
        summary: "Send a signal to the exec's process group.",
        tags,
        params: ExecRef,
        body: SignalExec,
        response: { 200: Exec },
      },
      config: { errors: ["exec_not_found", ...SERVING_ERRORS] },
    },
    ({ params, body }, reply) => engine.execs.signal(params.id, body.signal, callers.signal(reply.raw)),
  );

  app.delete(
    "/v1/execs/:id",
    {
      schema: {
        operationId: "cancelExec",
        summary: "Kill the exec's whole tree and wait for its end.",
        tags,
        params: ExecRef,
        response: { 200: Exec },
      },
      config: { errors: ["exec_not_found", ...SERVING_ERRORS] },
    },
    ({ params }, reply) => engine.execs.cancel(params.id, callers.signal(reply.raw)),
  );

  app.register(async (scope) => stdinRoute(scope as App, context));
}

function stdinRoute(app: App, { engine, callers, numbers }: RouteContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, payload, done) => {
    const limits = { limitBytes: numbers.bodyLimitBytes, withinMs: numbers.httpReceiveMs };
    readWhole(payload, limits).then((data) => done(null, data), done);
  });
  app.post(
    "/v1/execs/:id/stdin",
    {
      schema: {
        operationId: "writeExecStdin",
        summary: "Write to the exec's stdin, exactly once by offset.",
        tags,
        params: ExecRef,
        querystring: Type.Object({
          offset: Type.Integer({ minimum: 0, description: "position of these bytes in all of stdin" }),
          end: Type.Optional(Type.Boolean({ default: false, description: "close stdin behind them" })),
        }),
        response: { 200: StdinAccepted },
      },
      config: {
        bytesIn: "the bytes, at most 1 MiB at once",
        errors: ["exec_not_found", "too_large", ...SERVING_ERRORS],
      },
    },
    ({ params, query, body }, reply) => {
      const data = body instanceof Uint8Array ? body : new Uint8Array(0);
      const chunk = { offset: query.offset, data, end: query.end ?? false };
      return engine.execs.writeStdin(params.id, chunk, callers.signal(reply.raw));
    },
  );
}

function checkCommand(body: StartExec): void {
  if ((body.command === undefined) === (body.argv === undefined)) {
    throw new HoldfastError("invalid_request", { message: "body must have either command or argv." });
  }
}
