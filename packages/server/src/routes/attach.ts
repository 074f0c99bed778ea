import { Type } from "@fastify/type-provider-typebox";
import websocket, { type WebSocket } from "@fastify/websocket";
import { HoldfastError } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import { AttachedSocket } from "../attached-socket.ts";
import { type Attach, Attachment } from "../attachment.ts";
import { SUBPROTOCOL } from "../auth.ts";
import type { App, RouteContext } from "../context.ts";
import { ExecRef, OutputQuery } from "../schemas.ts";

/** Attached callers. Who may attach is decided by the key, before the upgrade: see `socketAuthorization`. */
export async function attachRoutes(app: App, context: RouteContext): Promise<void> {
  const { callers, log, metrics, numbers } = context;
  await app.register(websocket, {
    options: {
      // Only those come here that are not a port's.
      server: context.upgrades as never,
      maxPayload: numbers.bodyLimitBytes,
      // Never one that carries a key: the answer's headers are nobody's secret.
      handleProtocols: (offered) => (offered.has(SUBPROTOCOL) ? SUBPROTOCOL : false),
    },
    // What breaks the protocol is answered by a close with its code.
    errorHandler: (error, _socket, { id }) => log.debug({ requestId: id, err: error }, "socket failed"),
    // Attached callers are dismissed like all others.
    preClose: (done) => {
      app.websocketServer.close();
      done();
    },
  });
  // Once an upgrade was asked for nobody reads the connection as HTTP: an answer other than the upgrade is its last.
  app.addHook("onResponse", (request, _reply, done) => {
    request.raw.socket.destroySoon();
    done();
  });

  app.route({
    method: "GET",
    url: "/v1/execs/:id/attach",
    schema: {
      operationId: "attachExec",
      summary: "A WebSocket to an exec: its output from a cursor on, its stdin, its terminal.",
      description:
        "The key comes as Authorization header or, from a browser, as subprotocol `holdfast.key.` + base64url of the key, beside `holdfast.v1`. Messages and close codes are described in docs/api.md.",
      tags: ["execs"],
      params: ExecRef,
      querystring: Type.Object(OutputQuery),
      response: { 101: Type.Null({ description: "The socket is open." }) },
    },
    config: { socket: true },
    handler: () => {
      throw new HoldfastError("invalid_request", {
        message: "This is a WebSocket; it needs the headers of an upgrade.",
      });
    },
    wsHandler: (socket, request) => attach(socket, request),
  });

  async function attach(socket: WebSocket, request: FastifyRequest): Promise<void> {
    const { id } = request.params as ExecRef;
    const wanted = { ...(request.query as Pick<Attach, "cursor" | "stream">), id, request };
    const watched = new AttachedSocket(socket, {
      keepaliveMs: numbers.streamKeepaliveMs,
      stallMs: numbers.httpStallMs,
      onWedged: () => context.engine.execs.readerWedged(id),
    });
    const detached = metrics.attach();
    log.debug({ requestId: request.id, execId: id }, "attached");
    socket.once("close", (code) => {
      detached();
      log.debug({ requestId: request.id, execId: id, code }, "detached");
    });
    await new Attachment(watched, context, { ...wanted, signal: callers.attached(socket) }).run();
  }
}
