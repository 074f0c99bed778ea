/**
 * Converts every thrown error to the contract's error body. A `HoldfastError` is converted as it is. Errors of Fastify
 * and of Node's HTTP parser are mapped by a table. Any other error is a bug, and callers see it only as `internal`.
 */
import {
  type Cause,
  causeOf,
  ERRORS,
  type ErrorCode,
  HoldfastError,
  isHoldfastError,
} from "@holdfast/contract";
import type { WireError } from "../ports/wire-error.ts";
import type { Scrub } from "./scrub.ts";

function scrubCause(cause: Cause, scrub: Scrub): Cause {
  const clean: Cause = { code: cause.code, message: scrub(cause.message) };
  if (cause.cause) clean.cause = scrubCause(cause.cause, scrub);
  return clean;
}

interface ErrorContext {
  requestId: string;
  /** Operation id of the route; absent if the request matched no route. */
  operation?: string | undefined;
  scrub: Scrub;
}

export function toWireError(thrown: unknown, context: ErrorContext): WireError {
  const known = fromHttpLibrary(thrown);
  const error = known ?? new HoldfastError("internal", { dispatched: "unknown" });
  const { requestId, scrub } = context;
  const spec = ERRORS[error.code];
  const body: WireError["body"]["error"] = {
    code: error.code,
    message: scrub(error.message),
    hint: spec.hint,
    retryable: spec.retryable,
    dispatched: error.dispatched,
    requestId,
  };
  if (error.sandboxId !== undefined) body.sandboxId = error.sandboxId;
  if (error.execId !== undefined) body.execId = error.execId;
  const operation = error.operation ?? context.operation;
  if (operation !== undefined) body.operation = operation;
  if (error.floor !== undefined) body.floor = error.floor;
  if (error.cause !== undefined && error.cause !== null) body.cause = scrubCause(causeOf(error.cause), scrub);
  return { status: spec.status, unexpected: !known || error.code === "internal", body: { error: body } };
}

/** Error codes of Fastify and Node's HTTP parser, mapped to Holdfast's. */
const FOREIGN: Readonly<Record<string, { code: ErrorCode; message?: string }>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: { code: "too_large" },
  FST_ERR_CTP_INVALID_MEDIA_TYPE: { code: "unsupported_media_type" },
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: {
    code: "invalid_request",
    message: "The body length does not match Content-Length.",
  },
  FST_ERR_CTP_INVALID_JSON_BODY: { code: "invalid_request", message: "The body is not valid JSON." },
  FST_ERR_BAD_URL: { code: "invalid_request", message: "The URL is not valid." },
  FST_ERR_MAX_PARAM_LENGTH: { code: "invalid_request", message: "A part of the URL is too long." },
  HPE_HEADER_OVERFLOW: { code: "headers_too_large" },
  HPE_CHUNK_EXTENSIONS_OVERFLOW: { code: "too_large" },
  ERR_HTTP_REQUEST_TIMEOUT: { code: "request_timeout" },
};

/**
 * Codes for errors that other components throw, by the name of the error's class. When such an error is thrown, it is
 * unknown whether the operation took effect.
 */
const NAMED: Readonly<Record<string, ErrorCode>> = {
  DeadlinePassed: "deadline",
  TimeoutError: "deadline",
  LinkLost: "link_lost",
};

interface ForeignError extends Error {
  code?: unknown;
  statusCode?: unknown;
}

function fromHttpLibrary(thrown: unknown): HoldfastError | null {
  if (isHoldfastError(thrown)) return thrown;
  if (!(thrown instanceof Error)) return null;
  const error: ForeignError = thrown;
  const named = NAMED[error.name];
  if (named) return new HoldfastError(named, { dispatched: "unknown", cause: error });
  const foreign = typeof error.code === "string" ? FOREIGN[error.code] : undefined;
  if (foreign) return new HoldfastError(foreign.code, foreign.message ? { message: foreign.message } : {});
  const isCallers = typeof error.statusCode === "number" && error.statusCode >= 400 && error.statusCode < 500;
  return isCallers ? new HoldfastError("invalid_request", { message: error.message }) : null;
}
