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
import { authorizationOf, KeyCheck } from "./http/api-keys.ts";
import { CallerLeft, Callers } from "./http/callers.ts";
import type { App, HttpParts, RouteContext } from "./http/context.ts";
import { DeadPeerWatch } from "./http/dead-peer-watch.ts";
import { acceptJson } from "./http/json-body.ts";
import { retryAfterSeconds } from "./http/retry-after.ts";
import { createScrub, type Scrub } from "./http/scrub.ts";
import { StartupHold } from "./http/startup-hold.ts";
import { checkBody, checkQuery, validatorCompiler } from "./http/validation.ts";
import { toWireError } from "./http/wire-errors.ts";
import { registerDocs } from "./openapi/docs-page.ts";
import { RouteTable } from "./openapi/route-table.ts";
import { tokenPlaces } from "./port-proxy/credentials.ts";
import { ERROR_HEADER } from "./port-proxy/headers.ts";
import { PortRouter } from "./port-proxy/port-router.ts";
import { DEFAULT_DOMAIN } from "./port-proxy/preview-urls.ts";
import { attachRoutes } from "./routes/attach.ts";
import { checkpointRoutes } from "./routes/checkpoints.ts";
import { driveRoutes } from "./routes/drives.ts";
import { eventRoutes } from "./routes/events.ts";
import { execInputRoutes } from "./routes/exec-input.ts";
import { execOutputRoutes } from "./routes/exec-output.ts";
import { execRoutes } from "./routes/execs.ts";
import { fileRoutes } from "./routes/files.ts";
import { imageRoutes } from "./routes/images.ts";
import { mountRoutes } from "./routes/mounts.ts";
import { alertRoutes } from "./routes/operator/alerts.ts";
import { backupRoutes } from "./routes/operator/backup.ts";
import { cleaningRoutes } from "./routes/operator/cleaning.ts";
import { healthRoutes } from "./routes/operator/health.ts";
import { logRoutes } from "./routes/operator/logs.ts";
import { portRoutes } from "./routes/ports.ts";
import { previewRoutes } from "./routes/previews.ts";
import { processRoutes } from "./routes/processes.ts";
import { resourceRoutes } from "./routes/resources.ts";
import { sandboxRoutes } from "./routes/sandboxes.ts";
import { standbyRoutes } from "./routes/standby.ts";

/** Maximum length of a path parameter, such as an id or a name. Valid ids and names are shorter. */
const MAX_PARAM_LENGTH = 256;
/** How long a connection stays open after its request was refused, so that the client can read the error. */
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
  healthRoutes,
  backupRoutes,
  cleaningRoutes,
  alertRoutes,
] as const;

/**
 * Builds the HTTP layer, ready to listen. Closing it ends all waits and streams first; execs and sandboxes keep
 * running.
 */
export function buildHttp(parts: HttpParts): App {
  const { adapters = [] } = parts;
  const scrub = createScrub(parts.hostPaths ?? []);
  const upgrades = new EventEmitter();
  const context: RouteContext = {
    ...parts,
    keyCheck: new KeyCheck(
      parts.keys,
      adapters.flatMap(({ keyHeaders }) => keyHeaders ?? []),
    ),
    tokenPlaces: tokenPlaces(adapters),
    upgrades,
    domain: parts.previewDomain ?? DEFAULT_DOMAIN,
    callers: new Callers(),
    peers: new DeadPeerWatch({
      everyMs: parts.numbers.streamKeepaliveMs,
      stallMs: parts.numbers.httpStallMs,
    }),
    report: createReport(parts, scrub),
    scrub,
  };
  const nextId = createRequestIds();
  const fail = createErrorHandler(context);
  const table = new RouteTable();
  const start = new StartupHold(context.started ?? Promise.resolve(), context.numbers.startHoldMs);
  const router = new PortRouter(context, { start, nextId, domain: context.domain });
  const app: App = Fastify({
    logger: false,
    genReqId: nextId,
    exposeHeadRoutes: false,
    return503OnClosing: false,
    bodyLimit: parts.numbers.bodyLimitBytes,
    routerOptions: { maxParamLength: MAX_PARAM_LENGTH },
    serverFactory: (handler) => createListener({ handler, router, table, upgrades, numbers: parts.numbers }),
    frameworkErrors: fail,
    clientErrorHandler: (error, socket) => refuseConnection(error, socket, nextId(), scrub),
  });
  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(() => JSON.stringify);
  app.setErrorHandler(fail);
  acceptJson(app, { limitBytes: parts.numbers.bodyLimitBytes, withinMs: parts.numbers.httpReceiveMs });
  registerHooks(app, context, start);

  app.addHook("onRoute", (route) => table.add(route));
  app.setNotFoundHandler((request, reply) => refuseRoute(table, request, reply));
  for (const routes of ROUTES) app.register(async (scope) => routes(scope as App, context));
  for (const { routes } of adapters) app.register(async (scope) => routes(scope as App, context));
  registerDocs(app, table, parts.version);
  return app;
}

/** Creates request ids: cheap to make, with a random prefix that differs between server processes. */
function createRequestIds(): () => string {
  const prefix = `req_${randomText(6)}`;
  let count = 0;
  return () => `${prefix}${(count++).toString(36).padStart(6, "0")}`;
}

interface ListenerParts {
  handler: RequestListener;
  router: PortRouter;
  table: RouteTable;
  upgrades: EventEmitter;
  numbers: Numbers;
}

/**
 * Creates the listening server: the port router serves requests for sandbox ports, the API's router serves all others.
 */
function createListener({ handler, router, table, upgrades, numbers }: ListenerParts): Server {
  const server = createServer(
    {
      maxHeaderSize: numbers.headerLimitBytes,
      headersTimeout: numbers.httpReceiveMs,
      keepAliveTimeout: numbers.httpKeepAliveMs,
      /**
       * Node's timeout for a whole request is disabled, because a file transfer may take any time as long as data
       * moves. Each body has a timer of its own.
       */
      requestTimeout: 0,
      shouldUpgradeCallback: (request) => router.takesUpgrade(request) || isForSocket(request, table),
    },
    (request, response) => {
      if (router.takes(request)) router.serve(request, response);
      else handler(request, response);
    },
  );
  server.maxConnections = numbers.httpConnections;
  server.on("upgrade", (request, socket, head) => {
    if (router.takesUpgrade(request)) router.upgrade(request, socket as Socket, head);
    else upgrades.emit("upgrade", request, socket, head);
  });
  return server;
}

/**
 * Returns whether an upgrade request is for a WebSocket of the API. Other upgrade requests are served as plain
 * requests; curl, for example, offers an upgrade to HTTP/2 with an ordinary request.
 */
const isForSocket = ({ headers, url = "" }: IncomingMessage, table: RouteTable): boolean =>
  headers.upgrade?.toLowerCase() === "websocket" && table.isSocket(url);

function registerHooks(app: App, context: RouteContext, start: StartupHold): void {
  app.decorateRequest("owner", null);
  app.addHook("onRequest", async (request, reply) => {
    reply.header("x-request-id", request.id);
    const facts = request.routeOptions.config;
    const { headers } = request;
    if (!facts.public) request.owner = await context.keyCheck.admit(authorizationOf(headers, facts));
    if (facts.early) return;
    if (context.callers.closing) {
      reply.header("connection", "close");
      throw context.callers.closing;
    }
    if (!start.open) await start.pass();
  });
  app.addHook("preValidation", (request, _reply, done) => {
    if (request.routeOptions.config.optionalBody) request.body ??= {};
    checkQuery(request);
    checkBody(request);
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
      "request completed",
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
      // The query is not logged, because it contains a credential in the URLs of execs' output streams and of sessions.
      const [path] = url.split("?", 1);
      log.error({ requestId: id, method, url: path, err: thrown }, "request failed");
    } else if (owner && !left) {
      // A failed request is logged only if its key is valid. Callers without a key could flood the log and push out
      // useful lines.
      log.info({ requestId: id, method, operation, code, message, sandbox, exec }, "request rejected");
    }
    metrics.failure(left ? "caller_left" : wire.body.error.code);
    return wire;
  };
}

function createErrorHandler({ report, numbers }: RouteContext) {
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
    const text = JSON.stringify(dialect?.errorBody(wire) ?? body);
    reply.code(status).header("content-type", "application/json; charset=utf-8").send(text);
  };
}

function refuseRoute(table: RouteTable, request: FastifyRequest, reply: FastifyReply): never {
  const allowed = table.methodsOf(request.url);
  if (allowed.length === 0) throw new HoldfastError("not_found");
  reply.header("allow", allowed.join(", "));
  throw new HoldfastError("method_not_allowed", {
    message: `${request.method} is not supported here; supported methods: ${allowed.join(", ")}.`,
  });
}

const answered = new WeakSet<Socket>();

/**
 * Answers a request that the HTTP parser refused. The client may still be sending, for example a header of many
 * megabytes. If the server closed the connection at once, TCP would reset it and the client would not get the answer.
 * So the server first reads and discards the rest of the request for a short time.
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
      : toWireError(new HoldfastError(code, { message: "The request is not valid HTTP." }), {
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
