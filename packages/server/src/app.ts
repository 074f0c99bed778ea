import { EventEmitter } from "node:events";
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  STATUS_CODES,
} from "node:http";
import type { Socket } from "node:net";
import { type ErrorCode, HoldfastError, isHoldfastError, type Numbers, randomText } from "@holdfast/contract";
import type { FastifyReply, FastifyRequest } from "fastify";
import Fastify from "fastify";
import { agentuityRoutes } from "./adapters/agentuity/routes.ts";
import { blaxelRoutes } from "./adapters/blaxel/routes.ts";
import { runbookRoutes } from "./adapters/runbook/routes.ts";
import { authorizationOf, Gate } from "./auth.ts";
import { CallerLeft, Callers } from "./callers.ts";
import type { App, HttpParts, RouteContext } from "./context.ts";
import { registerDocs } from "./docs.ts";
import { createScrub, type Scrub, toWireError } from "./errors.ts";
import { takeJson } from "./json-body.ts";
import { PeerWatch } from "./peer-watch.ts";
import { FrontDoor } from "./ports/door.ts";
import { ERROR_HEADER } from "./ports/headers.ts";
import { DEFAULT_DOMAIN } from "./ports/preview-urls.ts";
import { retryAfterSeconds } from "./retry-after.ts";
import { RouteTable } from "./route-table.ts";
import { alertRoutes } from "./routes/alerts.ts";
import { attachRoutes } from "./routes/attach.ts";
import { checkpointRoutes } from "./routes/checkpoints.ts";
import { cleaningRoutes } from "./routes/cleaning.ts";
import { driveRoutes } from "./routes/drives.ts";
import { eventRoutes } from "./routes/events.ts";
import { execInputRoutes } from "./routes/exec-input.ts";
import { execOutputRoutes } from "./routes/exec-output.ts";
import { execRoutes } from "./routes/execs.ts";
import { fileRoutes } from "./routes/files.ts";
import { imageRoutes } from "./routes/images.ts";
import { logRoutes } from "./routes/logs.ts";
import { mountRoutes } from "./routes/mounts.ts";
import { operatorRoutes } from "./routes/operator.ts";
import { portRoutes } from "./routes/ports.ts";
import { previewRoutes } from "./routes/previews.ts";
import { processRoutes } from "./routes/processes.ts";
import { resourceRoutes } from "./routes/resources.ts";
import { sandboxRoutes } from "./routes/sandboxes.ts";
import { standbyRoutes } from "./routes/standby.ts";
import { StartGate } from "./start-gate.ts";
import { validatorCompiler } from "./validation.ts";

/** The longest part of a URL's path that can mean something: ids and names are shorter. */
const MAX_PARAM_LENGTH = 256;
/** How long a connection is kept for its caller to read what was wrong with its request. */
const LINGER_MS = 2_000;

const ROUTES = [
  sandboxRoutes,
  standbyRoutes,
  checkpointRoutes,
  execRoutes,
  execOutputRoutes,
  execInputRoutes,
  attachRoutes,
  processRoutes,
  fileRoutes,
  driveRoutes,
  mountRoutes,
  portRoutes,
  previewRoutes,
  imageRoutes,
  resourceRoutes,
  eventRoutes,
  logRoutes,
  operatorRoutes,
  cleaningRoutes,
  alertRoutes,
  blaxelRoutes,
  agentuityRoutes,
  runbookRoutes,
] as const;

/** The HTTP layer, ready to listen. Closing it ends waits and streams first; execs and sandboxes go on. */
export function buildHttp(parts: HttpParts): App {
  const scrub = createScrub(parts.hostPaths ?? []);
  const upgrades = new EventEmitter();
  const context: RouteContext = {
    ...parts,
    upgrades,
    domain: parts.previewDomain ?? DEFAULT_DOMAIN,
    callers: new Callers(),
    peers: new PeerWatch({ everyMs: parts.numbers.streamKeepaliveMs, stallMs: parts.numbers.httpStallMs }),
    report: createReport(parts, scrub),
    scrub,
  };
  const nextId = requestIds();
  const fail = createFailure(context);
  const table = new RouteTable();
  const gate = new Gate(context.keys);
  const start = new StartGate(context.started ?? Promise.resolve(), context.numbers.startHoldMs);
  const door = new FrontDoor(context, { gate, start, nextId, domain: context.domain });
  const app: App = Fastify({
    logger: false,
    genReqId: nextId,
    exposeHeadRoutes: false,
    return503OnClosing: false,
    bodyLimit: parts.numbers.bodyLimitBytes,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    serverFactory: (handler) => listenerFor({ handler, door, table, upgrades, numbers: parts.numbers }),
    frameworkErrors: fail,
    clientErrorHandler: (error, socket) => refuseConnection(error, socket, nextId(), scrub),
  });
  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(() => JSON.stringify);
  app.setErrorHandler(fail);
  takeJson(app, { limitBytes: parts.numbers.bodyLimitBytes, withinMs: parts.numbers.httpReceiveMs });
  registerHooks(app, context, { gate, start });

  app.addHook("onRoute", (route) => table.add(route));
  app.setNotFoundHandler((request, reply) => refuseRoute(table, request, reply));
  for (const routes of ROUTES) app.register(async (scope) => routes(scope as App, context));
  registerDocs(app, table, parts.version);
  return app;
}

/** Cheap, and different from those of an earlier server. */
function requestIds(): () => string {
  const prefix = `req_${randomText(6)}`;
  let count = 0;
  return () => `${prefix}${(count++).toString(36).padStart(6, "0")}`;
}

interface ListenerParts {
  handler: RequestListener;
  door: FrontDoor;
  table: RouteTable;
  upgrades: EventEmitter;
  numbers: Numbers;
}

/** What listens: requests for ports go by the door, and never come to the API's router; all others do. */
function listenerFor({ handler, door, table, upgrades, numbers }: ListenerParts): Server {
  const server = createServer(
    {
      maxHeaderSize: numbers.headerLimitBytes,
      headersTimeout: numbers.httpReceiveMs,
      keepAliveTimeout: numbers.httpKeepAliveMs,
      /** Files may take as long as they move; every body has a timer of its own. */
      requestTimeout: 0,
      shouldUpgradeCallback: (request) => door.takesUpgrade(request) || isForSocket(request, table),
    },
    (request, response) => {
      if (door.takes(request)) door.serve(request, response);
      else handler(request, response);
    },
  );
  server.maxConnections = numbers.httpConnections;
  server.on("upgrade", (request, socket, head) => {
    if (door.takesUpgrade(request)) door.upgrade(request, socket as Socket, head);
    else upgrades.emit("upgrade", request, socket, head);
  });
  return server;
}

/** Asks to upgrade that are not for a socket of ours (curl offers HTTP/2 this way) are answered as if they had not. */
const isForSocket = ({ headers, url = "" }: IncomingMessage, table: RouteTable): boolean =>
  headers.upgrade?.toLowerCase() === "websocket" && table.isSocket(url);

function registerHooks(
  app: App,
  context: RouteContext,
  { gate, start }: { gate: Gate; start: StartGate },
): void {
  app.decorateRequest("owner", null);
  app.addHook("onRequest", async (request, reply) => {
    reply.header("x-request-id", request.id);
    const facts = request.routeOptions.config;
    const { headers } = request;
    if (!facts.public) request.owner = await gate.admit(authorizationOf(headers, facts));
    if (facts.early) return;
    if (context.callers.closing) {
      reply.header("connection", "close");
      throw context.callers.closing;
    }
    if (!start.open) await start.pass();
  });
  app.addHook("preValidation", (request, _reply, done) => {
    if (request.routeOptions.config.optionalBody) request.body ??= {};
    done();
  });
  app.addHook("onResponse", (request, reply, done) => {
    const route = request.routeOptions.url ?? "none";
    context.metrics.request(request.method, route, reply.statusCode, reply.elapsedTime);
    context.log.debug(
      {
        requestId: request.id,
        method: request.method,
        route,
        status: reply.raw.statusCode,
        ms: reply.elapsedTime,
      },
      "request answered",
    );
    done();
  });
  app.addHook("preClose", async () => context.callers.dismiss(new HoldfastError("shutting_down")));
}

function createReport({ log, metrics }: HttpParts, scrub: Scrub): RouteContext["report"] {
  return (thrown, { id, method, url, routeOptions, owner }, left) => {
    const operation = routeOptions?.schema?.operationId;
    const wire = toWireError(thrown, { requestId: id, operation, scrub });
    const { code, message, sandboxId: sandbox, execId: exec } = wire.body.error;
    if (wire.unexpected && !left) {
      // Without its query: links to output and sessions carry there what opens them.
      const [path] = url.split("?", 1);
      log.error({ requestId: id, method, url: path, err: thrown }, "request failed");
    } else if (owner && !left) {
      // By someone with a key: whoever has none could otherwise push out of the log what others look for.
      log.info({ requestId: id, method, operation, code, message, sandbox, exec }, "request refused");
    }
    metrics.failure(left ? "caller_left" : wire.body.error.code);
    return wire;
  };
}

function createFailure({ report, numbers }: RouteContext) {
  return (thrown: unknown, request: FastifyRequest, reply: FastifyReply): void => {
    const left = thrown instanceof CallerLeft || reply.raw.destroyed;
    const wire = report(thrown, request, left);
    const { socket, dialect } = request.routeOptions?.config ?? {};
    const { body } = wire;
    const status = dialect?.errorStatus?.(wire) ?? wire.status;
    const known = isHoldfastError(thrown) ? thrown.retryAfterMs : undefined;
    const seconds = retryAfterSeconds(body.error.code, numbers, known);
    if (seconds !== null) reply.header("retry-after", String(seconds));
    reply.header(ERROR_HEADER, body.error.code);
    if (status === 401) reply.header("www-authenticate", 'Bearer realm="holdfast"');
    if (socket) reply.header("connection", "close");
    const told = JSON.stringify(dialect?.errorBody(wire) ?? body);
    reply.code(status).header("content-type", "application/json; charset=utf-8").send(told);
  };
}

function refuseRoute(table: RouteTable, request: FastifyRequest, reply: FastifyReply): never {
  const allowed = table.methodsOf(request.url);
  if (allowed.length === 0) throw new HoldfastError("not_found");
  reply.header("allow", allowed.join(", "));
  throw new HoldfastError("method_not_allowed", {
    message: `${request.method} is not supported here; ${allowed.join(", ")} is.`,
  });
}

const answered = new WeakSet<Socket>();

/**
 * Answers what the HTTP parser refused. The caller may still be sending (a header of many megabytes): closing at once
 * would reset the connection and lose the answer, so the rest is read and dropped for a moment first.
 */
function refuseConnection(
  error: Error & { code: string },
  socket: Socket,
  requestId: string,
  scrub: Scrub,
): void {
  if (answered.has(socket)) return;
  answered.add(socket);
  if (error.code === "ECONNRESET" || !socket.writable) {
    socket.destroy();
    return;
  }
  const isKnown = error.code.startsWith("HPE_") || error.code.startsWith("ERR_HTTP_");
  const refused = isKnown && toWireError(error, { requestId, scrub });
  const code: ErrorCode = "invalid_request";
  const wire =
    refused && !refused.unexpected
      ? refused
      : toWireError(new HoldfastError(code, { message: "This is not a valid HTTP request." }), {
          requestId,
          scrub,
        });
  const text = JSON.stringify(wire.body);
  socket.end(
    `HTTP/1.1 ${wire.status} ${STATUS_CODES[wire.status]}\r\nconnection: close\r\ncontent-type: application/json; charset=utf-8\r\n${ERROR_HEADER}: ${wire.body.error.code}\r\nx-request-id: ${requestId}\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once("close", () => clearTimeout(timer));
}
