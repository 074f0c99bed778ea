import { Type } from "@fastify/type-provider-typebox";
import { Exec, TerminalSize } from "@holdfast/contract";
import type { App, RouteContext } from "../http/context.ts";
import { readWhole } from "../http/request-body.ts";
import { ExecRef, SignalExec, StdinAccepted } from "../http/schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["execs"];

/** Input to running execs: signals, terminal size, kill and stdin. */
export function execInputRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

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

  app.post(
    "/v1/execs/:id/resize",
    {
      schema: {
        operationId: "resizeExec",
        summary: "Resize the exec's terminal.",
        tags,
        params: ExecRef,
        body: TerminalSize,
        response: { 200: Exec },
      },
      config: { errors: ["exec_not_found", ...SERVING_ERRORS] },
    },
    ({ params, body }, reply) => engine.execs.resize(params.id, body, callers.signal(reply.raw)),
  );

  app.delete(
    "/v1/execs/:id",
    {
      schema: {
        operationId: "cancelExec",
        summary: "Kill the exec's process tree. Returns when the exec has ended.",
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
        summary: "Write to the exec's stdin, exactly once at an offset, or appended.",
        description:
          "With `offset`, a repeated request never writes bytes twice. Without `offset`, every request appends: repeat it only if its error says `dispatched: no`.",
        tags,
        params: ExecRef,
        querystring: Type.Object({
          offset: Type.Optional(
            Type.Integer({
              minimum: 0,
              description: "position of these bytes in stdin; default: append",
            }),
          ),
          end: Type.Optional(Type.Boolean({ default: false, description: "close stdin after these bytes" })),
        }),
        response: { 200: StdinAccepted },
      },
      config: {
        bytesIn: "the bytes, at most 1 MiB per request",
        errors: ["exec_not_found", "too_large", ...SERVING_ERRORS],
      },
    },
    ({ params, query, body }, reply) => {
      const data = body instanceof Uint8Array ? body : new Uint8Array(0);
      const chunk = { offset: query.offset ?? null, data, end: query.end ?? false };
      return engine.execs.writeStdin(params.id, chunk, callers.signal(reply.raw));
    },
  );
}
