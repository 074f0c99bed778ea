/**
 * Whatever goes wrong becomes the one error body of the contract here. Only a `HoldfastError` speaks for itself; the
 * HTTP machinery's own errors are translated by table; anything else is a bug, told to the caller as `internal` and
 * nothing more.
 */
import {
  type Cause,
  causeOf,
  type Dispatched,
  ERRORS,
  type ErrorCode,
  HoldfastError,
  isHoldfastError,
} from "@holdfast/contract";

export interface WireError {
  status: number;
  /** Ours: worth a line with its stack. */
  unexpected: boolean;
  body: {
    error: {
      code: ErrorCode;
      message: string;
      hint: string;
      retryable: boolean;
      dispatched: Dispatched;
      requestId: string;
      sandboxId?: string;
      execId?: string;
      operation?: string;
      floor?: string;
      cause?: Cause;
    };
  };
}

export type Scrub = (text: string) => string;

/** Takes paths of the host out of texts; everything below one of the given directories counts. */
export function createScrub(directories: readonly string[]): Scrub {
  const known = directories.filter((directory) => directory.length > 1);
  if (known.length === 0) return (text) => text;
  const escaped = known.map((directory) => directory.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pattern = new RegExp(`(?:${escaped.join("|")})(?:/[^\\s'"\`,;:)]*)?(?![\\w.-])`, "g");
  return (text) => text.replace(pattern, "<host path>");
}

function scrubCause(cause: Cause, scrub: Scrub): Cause {
  const clean: Cause = { code: cause.code, message: scrub(cause.message) };
  if (cause.cause) clean.cause = scrubCause(cause.cause, scrub);
  return clean;
}

interface ErrorContext {
  requestId: string;
  /** The operation that failed, by its name in the API document; absent where the request never got to one. */
  operation?: string | undefined;
  scrub: Scrub;
}

export function toWireError(thrown: unknown, context: ErrorContext): WireError {
  const known = translate(thrown);
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

/** Codes of Fastify and of Node's HTTP parser, as ours. */
const FOREIGN: Readonly<Record<string, { code: ErrorCode; message?: string }>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: { code: "too_large" },
  FST_ERR_CTP_INVALID_MEDIA_TYPE: { code: "unsupported_media_type" },
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: {
    code: "invalid_request",
    message: "The body is not as long as Content-Length says.",
  },
  FST_ERR_BAD_URL: { code: "invalid_request", message: "The URL is not valid." },
  FST_ERR_MAX_PARAM_LENGTH: { code: "invalid_request", message: "A part of the URL is too long." },
  HPE_HEADER_OVERFLOW: { code: "headers_too_large" },
  HPE_CHUNK_EXTENSIONS_OVERFLOW: { code: "too_large" },
  ERR_HTTP_REQUEST_TIMEOUT: { code: "request_timeout" },
};

/** Errors of other parts that reach the wire as they are, by name. What they interrupted may have taken effect. */
const NAMED: Readonly<Record<string, ErrorCode>> = {
  DeadlinePassed: "deadline",
  TimeoutError: "deadline",
  LinkLost: "link_lost",
};

interface ForeignError extends Error {
  code?: unknown;
  statusCode?: unknown;
  validation?: { instancePath: string; message?: string }[];
  validationContext?: string;
}

function translate(thrown: unknown): HoldfastError | null {
  if (isHoldfastError(thrown)) return thrown;
  if (!(thrown instanceof Error)) return null;
  const error: ForeignError = thrown;
  if (error.validation) {
    return new HoldfastError("invalid_request", {
      message: describeValidation(error.validation, error.validationContext ?? "request"),
    });
  }
  const named = NAMED[error.name];
  if (named) return new HoldfastError(named, { dispatched: "unknown", cause: error });
  const foreign = typeof error.code === "string" ? FOREIGN[error.code] : undefined;
  if (foreign) return new HoldfastError(foreign.code, foreign.message ? { message: foreign.message } : {});
  const isCallers = typeof error.statusCode === "number" && error.statusCode >= 400 && error.statusCode < 500;
  return isCallers ? new HoldfastError("invalid_request", { message: error.message }) : null;
}

const MAX_FINDINGS = 3;
const PLACES: Readonly<Record<string, string>> = { querystring: "query", params: "path", headers: "header" };

function describeValidation(
  findings: readonly { instancePath: string; message?: string }[],
  context: string,
): string {
  const place = PLACES[context] ?? context;
  const sentences = findings
    .filter((finding) => finding.message !== "schema is false")
    .slice(0, MAX_FINDINGS)
    .map((finding) => `${place}${finding.instancePath} ${finding.message ?? "is not valid"}`);
  return `${sentences.join("; ")}.`;
}
