import type { IncomingMessage, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { Numbers } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from "fastify";
import type { Keys } from "./auth.ts";
import type { Callers } from "./callers.ts";
import type { Metrics } from "./metrics.ts";

/** Fastify, with the types of a route's schema as the types of its handler. */
export type App = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

/** What the HTTP layer is given. */
export interface HttpParts {
  engine: EngineApi;
  keys: Keys;
  log: Log;
  numbers: Numbers;
  version: string;
  installation: string;
  metrics: Metrics;
  /** Resolves when recovery is done; calls are held until then. Default: it is. */
  started?: Promise<void>;
  /** Directories of the host that no message may name. */
  hostPaths?: readonly string[];
}

/** What routes are given. */
export interface RouteContext extends HttpParts {
  callers: Callers;
}
