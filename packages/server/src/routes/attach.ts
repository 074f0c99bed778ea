import { Type } from "@fastify/type-provider-typebox";
import websocket, { type WebSocket } from "@fastify/websocket";
import { HoldfastError } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import { SUBPROTOCOL } from "../http/api-keys.ts";
import type { App, RouteContext } from "../http/context.ts";
import { ExecRef, OutputQuery } from "../http/schemas.ts";
import { AttachedSocket } from "../streams/attached-socket.ts";
import { type Attach, Attachment } from "../streams/attachment.ts";

/** Routes that connect a WebSocket to an exec. The key check happens before the upgrade: see `socketAuthorization`. */
export async function attachRoutes(app: App, context: RouteContext): Promise<void> {
  const { callers, log, metrics, numbers } = context;
  await app.register(websocket, {
    options: {
      // The port router receives all upgrades. It handles those for ports, and passes only those for the API to this
      // server.
      server: context.upgrades as never,
      maxPayload: numbers.bodyLimitBytes,
      // The subprotocol that carries the key is never selected, because the response would repeat the key in a header.
      handleProtocols: (offered) => (offered.has(SUBPROTOCOL) ? SUBPROTOCOL : false),
    },
    // The WebSocket library closes the socket with the code of the protocol error, so the error is only logged here.
    errorHandler: (error, _socket, { id }) =>
      log.debug({ requestId: id, err: error }, "attached socket failed"),
    // Closing the WebSocket server only makes it refuse new sockets. During shutdown, `callers` ends the open sockets,
    // as it ends all other waits.
    preClose: (done) => {
      app.websocketServer.close();
      done();
    },
  });
  // After an upgrade request, the connection is no longer parsed as HTTP. If the request gets an ordinary response
  // instead of the upgrade, the connection is closed after that response.
  app.addHook("onResponse", (request, _reply, done) => {
    request.raw.socket.destroySoon();
    done();
  });

  app.route({
    method: "GET",
    url: "/v1/execs/:id/attach",
    schema: {
      operationId: "attachExec",
      summary: "Open a WebSocket to an exec: its output from a cursor, its stdin and its terminal.",
      description:
        "Send the key in the Authorization header or, from a browser, as the subprotocol `holdfast.key.` + base64url of the key, together with `holdfast.v1`. Messages and close codes are described in docs/api.md.",
      tags: ["execs"],
      params: ExecRef,
      querystring: Type.Object(OutputQuery),
      response: { 101: Type.Null({ description: "The socket is open." }) },
    },
    config: { socket: true },
    handler: () => {
      throw new HoldfastError("invalid_request", {
        message: "This path is a WebSocket; send the request with upgrade headers.",
      });
    },
    wsHandler: (socket, request) => attach(socket, request),
  });

  async function attach(socket: WebSocket, request: FastifyRequest): Promise<void> {
    const { id } = request.params as ExecRef;
    const wanted = { ...(request.query as Pick<Attach, "cursor" | "stream" | "hold">), id, request };
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
