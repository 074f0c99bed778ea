import type { Cause, Dispatched, ErrorBody, ErrorCode, Exec, Process } from "./types.generated.ts";

/** Codes that only a client can give: the server never answered, or not in its own words, or was not waited for. */
export type ClientErrorCode =
  | "connection"
  | "timeout"
  | "unexpected_response"
  | "exec_refused"
  | "exec_unfinished"
  | "process_not_ready";

/** Everything known about a call that failed. */
export interface ErrorFacts {
  code: ErrorCode | ClientErrorCode;
  message: string;
  hint: string;
  /** The same call may succeed later. */
  retryable: boolean;
  /** Whether the request had reached the sandbox: only `no` makes it safe to repeat what must not happen twice. */
  dispatched: Dispatched;
  /** HTTP status; 0 where there was no answer. */
  status: number;
  method: string;
  url: string;
  /** The body of the answer as it came, at most 64 KiB. */
  body: string;
  requestId?: string | undefined;
  sandboxId?: string | undefined;
  execId?: string | undefined;
  /** The route's name in the server's API document. */
  operation?: string | undefined;
  cause?: unknown;
}

/** Base of every error that the SDK throws, but for the reason of your own AbortSignal, which is thrown as it is. */
export class HoldfastError extends Error {
  readonly code: ErrorCode | ClientErrorCode;
  readonly hint: string;
  readonly retryable: boolean;
  readonly dispatched: Dispatched;
  readonly status: number;
  readonly method: string;
  readonly url: string;
  readonly body: string;
  readonly requestId: string | undefined;
  readonly sandboxId: string | undefined;
  readonly execId: string | undefined;
  readonly operation: string | undefined;

  constructor(facts: ErrorFacts) {
    super(facts.message, facts.cause === undefined ? {} : { cause: facts.cause });
    this.name = new.target.name;
    this.code = facts.code;
    this.hint = facts.hint;
    this.retryable = facts.retryable;
    this.dispatched = facts.dispatched;
    this.status = facts.status;
    this.method = facts.method;
    this.url = facts.url;
    this.body = facts.body;
    this.requestId = facts.requestId;
    this.sandboxId = facts.sandboxId;
    this.execId = facts.execId;
    this.operation = facts.operation;
  }
}

/** The server can't be reached, or the connection broke or went silent before the answer was complete. */
export class ConnectionError extends HoldfastError {}
/** 400, 405, 413, 415, 416, 422, 431: the request has to change. */
export class InvalidRequestError extends HoldfastError {}
/** 401. */
export class AuthenticationError extends HoldfastError {}
/** 403. */
export class PermissionError extends HoldfastError {}
/** 404. */
export class NotFoundError extends HoldfastError {}
/** 409. */
export class ConflictError extends HoldfastError {}
/** 410: the sandbox was deleted or failed, or what was asked for is no longer kept. */
export class GoneError extends HoldfastError {}
/** Output was asked for that the journal no longer has: the reader was slower than the command, or came too late. */
export class OutputDroppedError extends GoneError {
  /** The first cursor that can be read; null where nothing is kept any more. */
  readonly floor: string | null;

  constructor(facts: ErrorFacts & { floor: string | null }) {
    super(facts);
    this.floor = facts.floor;
  }
}
/** Events were asked for that are no longer kept: the reader came back too late. */
export class EventsDroppedError extends GoneError {
  /** The first cursor behind which nothing is missing. */
  readonly floor: string | null;

  constructor(facts: ErrorFacts & { floor: string | null }) {
    super(facts);
    this.floor = facts.floor;
  }
}
/** 429, 503, 507: not now. */
export class UnavailableError extends HoldfastError {}
/** All else: Holdfast's own fault, or a proxy's. */
export class ServerError extends HoldfastError {}

/** What a client knows of an exec that it has stopped waiting for. */
export interface KnownOfExec {
  id: string;
  /** As of the last answer; null where none came. */
  exec: Exec | null;
  /** Behind the last output that was read; null where none was. */
  cursor: string | null;
}

/**
 * Waiting was given up, because `giveUpAfterMs` had passed or the server was away for longer than `outageMs`. The command
 * is not affected: `holdfast.execs.get(error.execId)` finds it again, and `output({ cursor })` reads on. `dispatched` says
 * whether it was run; where that is `unknown`, starting it again under the same id follows it and never runs it twice.
 */
export class ExecUnfinishedError extends HoldfastError {
  override readonly execId: string;
  /** As of the last answer; null where none came. */
  readonly exec: Exec | null;
  /** Behind the last output that was read; null where none was. */
  readonly cursor: string | null;

  constructor(facts: ErrorFacts, known: KnownOfExec) {
    super(facts);
    this.execId = known.id;
    this.exec = known.exec;
    this.cursor = known.cursor;
  }
}

/** A process is over, was not ready in time, or was not waited for any longer. `process` says what it was when last heard of. */
export class ProcessNotReadyError extends HoldfastError {
  readonly process: Process;

  constructor(facts: ErrorFacts, process: Process) {
    super(facts);
    this.process = process;
  }
}

const CLASSES: Record<number, typeof HoldfastError> = {
  400: InvalidRequestError,
  401: AuthenticationError,
  403: PermissionError,
  404: NotFoundError,
  405: InvalidRequestError,
  409: ConflictError,
  410: GoneError,
  413: InvalidRequestError,
  415: InvalidRequestError,
  416: InvalidRequestError,
  422: InvalidRequestError,
  429: UnavailableError,
  431: InvalidRequestError,
  503: UnavailableError,
  507: UnavailableError,
};

export interface Where {
  method: string;
  url: string;
}

export const whereOf = ({ method, base, path }: { method: string; base: string; path: string }): Where => ({
  method,
  url: base + path,
});

/** The error in an answer with a status of 400 or more. */
export function errorOf(where: Where, status: number, body: string): HoldfastError {
  const Class = CLASSES[status] ?? ServerError;
  const said = parse(body);
  if (said === null) return new Class(unexpected(where, status, body));
  const facts: ErrorFacts = {
    ...where,
    code: said.code,
    message: said.message,
    hint: said.hint,
    retryable: said.retryable,
    dispatched: said.dispatched,
    status,
    body,
    requestId: said.requestId,
    sandboxId: said.sandboxId,
    execId: said.execId,
    operation: said.operation,
    cause: said.cause ?? undefined,
  };
  const floor = said.floor ?? null;
  if (said.code === "output_dropped") return new OutputDroppedError({ ...facts, floor });
  if (said.code === "events_dropped") return new EventsDroppedError({ ...facts, floor });
  return new Class(facts);
}

function parse(body: string): ErrorBody["error"] | null {
  try {
    const { error } = JSON.parse(body) as Partial<ErrorBody>;
    return typeof error?.code === "string" && typeof error.message === "string" ? error : null;
  } catch {
    return null;
  }
}

/** An answer that Holdfast did not write. A proxy may have passed the request on before it gave up. */
export const unexpected = (where: Where, status: number, body: string): ErrorFacts => ({
  ...where,
  code: "unexpected_response",
  message: `The answer to ${where.method} ${where.url} (status ${status}) is not Holdfast's.`,
  hint: "Check that the URL is that of a Holdfast server, and what lies between.",
  retryable: status >= 502 && status <= 504,
  dispatched: "unknown",
  status,
  body,
});

export const unreachable = (where: Where, dispatched: Dispatched, cause: unknown): ConnectionError =>
  new ConnectionError({
    ...where,
    code: "connection",
    message:
      dispatched === "no"
        ? `The server at ${new URL(where.url).origin} can't be reached: ${reasonOf(cause)}.`
        : `The connection to ${new URL(where.url).origin} was lost: ${reasonOf(cause)}.`,
    hint:
      dispatched === "no"
        ? "Is the server running ('npm start')? HOLDFAST_URL says where to look for it."
        : "The request may have taken effect.",
    retryable: true,
    dispatched,
    status: 0,
    body: "",
    cause,
  });

export const silent = (where: Where, afterMs: number, dispatched: Dispatched): ConnectionError =>
  new ConnectionError({
    ...where,
    code: "timeout",
    message: `Nothing came in answer to ${where.method} ${where.url} for ${afterMs} ms.`,
    hint: "The request may have taken effect; look before repeating it.",
    retryable: true,
    dispatched,
    status: 0,
    body: "",
  });

/** The ledger says that the command was never run. */
export const refused = (
  where: Where,
  exec: { id: string; sandboxId: string; cause: Cause | null },
): HoldfastError =>
  new HoldfastError({
    ...where,
    code: "exec_refused",
    message: exec.cause?.message ?? "The command was not run.",
    hint: "The cause says why; nothing was executed.",
    retryable: true,
    dispatched: "no",
    status: 200,
    body: JSON.stringify(exec),
    sandboxId: exec.sandboxId,
    execId: exec.id,
    cause: exec.cause ?? undefined,
  });

/** The same failure, of a request that was sent before: an earlier one may have arrived. */
export function maybeDispatched(error: HoldfastError): HoldfastError {
  const { message, cause } = error;
  const Class = error.constructor as typeof HoldfastError;
  const hint = `${error.hint} An earlier try of the same request may have taken effect.`;
  return new Class({ ...error, message, cause, hint, dispatched: "unknown" });
}

/** What is said of a request that an earlier try of has done already: that one arrived, and only its answer was lost. */
export const wasDoneBefore = (error: unknown, code: ErrorCode): boolean =>
  error instanceof HoldfastError && error.code === code && error.dispatched !== "no";

function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const code = "code" in cause ? String(cause.code) : "";
  return cause.message || code || cause.name;
}
