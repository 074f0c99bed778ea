import type { EventEmitter } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { Numbers } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from "fastify";
import type { ImageAliases } from "./adapters/image-aliases.ts";
import type { Keys } from "./auth.ts";
import type { Callers } from "./callers.ts";
import type { Scrub, WireError } from "./errors.ts";
import type { LogBook } from "./log-book.ts";
import type { Metrics } from "./metrics.ts";
import type { PeerWatch } from "./peer-watch.ts";

/** Fastify, with the types of a route's schema as the types of its handler. */
export type App = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

declare module "fastify" {
  interface FastifyRequest {
    /** The id of the key that asks; null where none is needed. */
    owner: string | null;
  }
}

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
  /** The server's own log; undefined where none is kept. */
  logs?: LogBook | undefined;
  /** What names of images on other platforms mean here. */
  imageAliases?: ImageAliases | undefined;
  /** Below which name every port of every sandbox has a host; default `localhost`. */
  previewDomain?: string | undefined;
  /** What links that need no key are signed with, and stay valid with; a new one for this server where absent. */
  linkSecret?: string | undefined;
}

/** What a report says of a request. */
export interface Asked {
  id: string;
  method: string;
  url: string;
  owner: string | null;
  routeOptions?: { schema?: { operationId?: string } | undefined };
}

/** What routes are given. */
export interface RouteContext extends HttpParts {
  callers: Callers;
  peers: PeerWatch;
  /** What a caller is told of an error; counts it, and logs what is ours. `left`: nobody is there to be told. */
  report(thrown: unknown, request: Asked, left: boolean): WireError;
  /** Takes the host's paths out of a text. */
  scrub: Scrub;
  /** Where requests for another protocol arrive that are the API's. */
  upgrades: EventEmitter;
  domain: string;
}
