import type { EventEmitter } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { Numbers } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault } from "fastify";
import type { BackupService } from "../ports/backup-service.ts";
import type { RequestMetrics, ServerLogReader } from "../ports/telemetry.ts";
import type { TransferService } from "../ports/transfer-service.ts";
import type { WireError } from "../ports/wire-error.ts";
import type { Adapter, TokenPlaces } from "./adapter.ts";
import type { KeyCheck, Keys } from "./api-keys.ts";
import type { Callers } from "./callers.ts";
import type { DeadPeerWatch } from "./dead-peer-watch.ts";
import type { Scrub } from "./scrub.ts";

/** Image names of other platforms, each with the local image it stands for. */
export type ImageAliases = Readonly<Record<string, string>>;

/** Fastify, with handler types derived from the route's schema. */
export type App = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

declare module "fastify" {
  interface FastifyRequest {
    /** Id of the key that made the request; null if the route needs no key. */
    owner: string | null;
  }
}

/** The dependencies of the HTTP layer. */
export interface HttpParts {
  /** The adapters to serve. */
  adapters?: readonly Adapter[];
  engine: EngineApi;
  keys: Keys;
  log: Log;
  numbers: Numbers;
  version: string;
  installation: string;
  metrics: RequestMetrics;
  /** Resolves when recovery is done; calls are held until then. Default: recovery is already done. */
  started?: Promise<void>;
  /** Host directories whose paths must not appear in messages to callers. */
  hostPaths?: readonly string[];
  /** Takes backups; undefined if this server can't take backups. */
  backups?: BackupService | undefined;
  /** Exports and imports single sandboxes and drives; undefined if this server can't do that. */
  transfers?: TransferService | undefined;
  /** The server's log; undefined if none is stored. */
  logs?: ServerLogReader | undefined;
  /** Image names of other platforms, each with the local image it stands for. */
  imageAliases?: ImageAliases | undefined;
  /** Domain below which every port of every sandbox has a host name; default `localhost`. */
  previewDomain?: string | undefined;
  /**
   * Secret with which the server signs URLs that grant access without a key. Default: a random secret, so that these
   * URLs become invalid when the server restarts.
   */
  linkSecret?: string | undefined;
}

/** The parts of a request that an error report uses. */
export interface RequestSummary {
  id: string;
  method: string;
  url: string;
  owner: string | null;
  routeOptions?: { schema?: { operationId?: string } | undefined };
}

/** The dependencies of route handlers. */
export interface RouteContext extends HttpParts {
  keyCheck: KeyCheck;
  tokenPlaces: TokenPlaces;
  callers: Callers;
  peers: DeadPeerWatch;
  /**
   * Converts an error to the response body, counts it, and logs it if it is unexpected. `left` means that the caller
   * has disconnected.
   */
  report(thrown: unknown, request: RequestSummary, left: boolean): WireError;
  /** Removes host paths from a text. */
  scrub: Scrub;
  /** Emits the upgrade requests that are meant for the API, not for a sandbox's port. */
  upgrades: EventEmitter;
  domain: string;
}
