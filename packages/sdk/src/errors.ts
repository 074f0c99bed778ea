import type { Cause, Dispatched, ErrorBody, ErrorCode, Exec, Process } from "./types.generated.ts";

/**
 * Codes that only the client produces: no response, a response that is not Holdfast's, an option that the method does
 * not have, or waiting was given up.
 */
export type ClientErrorCode =
  | "connection"
  | "timeout"
  | "unexpected_response"
  | "unknown_option"
  | "exec_refused"
  | "exec_unfinished"
  | "process_not_ready";

/** All facts about a failed call. */
interface ErrorFacts {
  code: ErrorCode | ClientErrorCode;
  message: string;
  hint: string;
  /** Whether the same call may succeed later. */
  retryable: boolean;
  /** Whether the request reached the sandbox. If a call must not happen twice, repeat it only if this is `no`. */
  dispatched: Dispatched;
  /** HTTP status; 0 if there was no response. */
  status: number;
  method: string;
  url: string;
  /** The raw body of the response, at most 64 KiB. */
  body: string;
  requestId?: string | undefined;
  sandboxId?: string | undefined;
  execId?: string | undefined;
  /** Id of the operation in the server's API document. */
  operation?: string | undefined;
  cause?: unknown;
}

/** Base of every error that the SDK throws, except the reason of your own AbortSignal, which is thrown unchanged. */
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

/** The server is unreachable, or the connection broke or went silent before the response was complete. */
export class ConnectionError extends HoldfastError {
  /** How long the server showed no sign of life, in milliseconds; 0 if the connection failed for another reason. */
  readonly silentMs: number;

  constructor(facts: ErrorFacts & { silentMs?: number }) {
    super(facts);
    this.silentMs = facts.silentMs ?? 0;
  }
}
/** 400, 405, 413, 415, 416, 422, 431, or an unknown option: the request must be changed. */
export class InvalidRequestError extends HoldfastError {}
/** 401. */
export class AuthenticationError extends HoldfastError {}
/** 403. */
export class PermissionError extends HoldfastError {}
/** 404. */
export class NotFoundError extends HoldfastError {}
/** 409. */
export class ConflictError extends HoldfastError {}
/** 410: the sandbox was deleted or has failed, or the requested data is no longer kept. */
export class GoneError extends HoldfastError {}
/**
 * The journal no longer contains the requested output: the command wrote more than the journal holds before the output
 * was read.
 */
export class OutputDroppedError extends GoneError {
  /** The oldest cursor still available; null if no output is kept. */
  readonly floor: string | null;

  constructor(facts: ErrorFacts & { floor: string | null }) {
    super(facts);
    this.floor = facts.floor;
  }
}
/** The requested events are no longer kept: they were deleted before they were read. */
export class EventsDroppedError extends GoneError {
  /** The oldest cursor from which events can be read without a gap. */
  readonly floor: string | null;

  constructor(facts: ErrorFacts & { floor: string | null }) {
    super(facts);
    this.floor = facts.floor;
  }
}
/**
 * 429, 503, 507: a limit is reached, or a resource is unavailable. `retryable` says whether the same call may succeed
 * later.
 */
export class UnavailableError extends HoldfastError {}
/** A response with an error status that no other class covers. It means a fault of Holdfast or of a proxy. */
export class ServerError extends HoldfastError {}

/** What is known of an exec when a call stops waiting for it. */
export interface KnownOfExec {
  id: string;
  /** The exec as of the last response; null if there was none. */
  exec: Exec | null;
  /** The position after the last output read; null if none was read. */
  cursor: string | null;
}

/**
 * Waiting for an exec was given up, because `giveUpAfterMs` passed or the server was unreachable for longer than
 * `outageMs`. The command is not affected: `holdfast.execs.get(error.execId)` finds the exec again, and `output({
 * cursor })` resumes its output. `dispatched` says whether the command was run. If it is `unknown`, start the command
 * again with the same id: if it was already run, it is not run a second time.
 */
export class ExecUnfinishedError extends HoldfastError {
  override readonly execId: string;
  /** The exec as of the last response; null if there was none. */
  readonly exec: Exec | null;
  /** The position after the last output read; null if none was read. */
  readonly cursor: string | null;

  constructor(facts: ErrorFacts, known: KnownOfExec) {
    super(facts);
    this.execId = known.id;
    this.exec = known.exec;
    this.cursor = known.cursor;
  }
}

/** A process ended, was not ready in time, or waiting for it was given up. `process` is its last known state. */
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

/** Creates the error for a response with a status of 400 or more. */
export function errorOf(where: Where, status: number, body: string): HoldfastError {
  const Class = CLASSES[status] ?? ServerError;
  const parsed = parse(body);
  if (parsed === null) return new Class(unexpected(where, status, body));
  const facts: ErrorFacts = {
    ...where,
    code: parsed.code,
    message: parsed.message,
    hint: parsed.hint,
    retryable: parsed.retryable,
    dispatched: parsed.dispatched,
    status,
    body,
    requestId: parsed.requestId,
    sandboxId: parsed.sandboxId,
    execId: parsed.execId,
    operation: parsed.operation,
    cause: parsed.cause ?? undefined,
  };
  const floor = parsed.floor ?? null;
  if (parsed.code === "output_dropped") return new OutputDroppedError({ ...facts, floor });
  if (parsed.code === "events_dropped") return new EventsDroppedError({ ...facts, floor });
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

/**
 * Creates the error for a response that Holdfast did not write. A proxy may have forwarded the request before it gave
 * up, so the request may have reached Holdfast.
 */
export const unexpected = (where: Where, status: number, body: string): ErrorFacts => ({
  ...where,
  code: "unexpected_response",
  message: `The response to ${where.method} ${where.url} (status ${status}) did not come from Holdfast.`,
  hint: "Check that the URL is that of a Holdfast server, and check proxies in between.",
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
        ? `The server at ${new URL(where.url).origin} cannot be reached: ${reasonOf(cause)}.`
        : `The connection to ${new URL(where.url).origin} was lost: ${reasonOf(cause)}.`,
    hint:
      dispatched === "no"
        ? "Check that the server is running ('npm start') and that HOLDFAST_URL is correct."
        : "The request may have taken effect.",
    retryable: true,
    dispatched,
    status: 0,
    body: "",
    cause,
  });

/** Creates the error for a request that was not sent, because no server of the state directory is running. */
export const noServer = (where: Where, why: string): ConnectionError =>
  new ConnectionError({
    ...where,
    code: "connection",
    message: `${why}.`,
    hint: "Start one with 'npm start', or set HOLDFAST_URL and HOLDFAST_API_KEY.",
    retryable: true,
    dispatched: "no",
    status: 0,
    body: "",
  });

export const silent = (
  where: Where,
  afterMs: number,
  dispatched: Dispatched,
  silentMs = 0,
): ConnectionError =>
  new ConnectionError({
    ...where,
    code: "timeout",
    message:
      silentMs === 0
        ? `No response to ${where.method} ${where.url} for ${afterMs} ms.`
        : `The server at ${new URL(where.url).origin} has not responded to any request for ${afterMs} ms.`,
    hint:
      silentMs === 0
        ? "The request may have taken effect; check before repeating it."
        : "Check whether the server is stopped or overloaded. The request may have taken effect; check before repeating it.",
    retryable: true,
    dispatched,
    status: 0,
    body: "",
    silentMs,
  });

/**
 * Throws if an option in `given` is set. Callers pass only options that their method does not know. If misspelt options
 * were ignored, users would believe that they apply.
 */
export function refuseUnknown(given: object, where: Where): void {
  const names = Object.entries(given).flatMap(([name, value]) => (value === undefined ? [] : [name]));
  if (names.length === 0) return;
  throw new InvalidRequestError({
    ...where,
    code: "unknown_option",
    message: `Unknown ${names.length === 1 ? "option" : "options"}: ${names.map((name) => JSON.stringify(name)).join(", ")}.`,
    hint: "Check the spelling of the option; api.d.ts lists the options of each method.",
    retryable: false,
    dispatched: "no",
    status: 0,
    body: "",
  });
}

/**
 * Refuses unknown options, for a method that hands all its options to another function. `known` names every option of
 * the interface, which the compiler checks.
 */
export function checkOptions<Options extends object>(
  given: Options,
  known: Readonly<Record<keyof Required<Options>, true>>,
  where: Where,
): void {
  refuseUnknown(
    Object.fromEntries(Object.entries(given).filter(([name]) => !Object.hasOwn(known, name))),
    where,
  );
}

/** Creates the error for an exec with the status `refused`: its command was never run. */
export const refused = (
  where: Where,
  exec: { id: string; sandboxId: string; cause: Cause | null },
): HoldfastError =>
  new HoldfastError({
    ...where,
    code: "exec_refused",
    message: exec.cause?.message ?? "The command was not run.",
    hint: "The cause explains why; the command was not run.",
    retryable: true,
    dispatched: "no",
    status: 200,
    body: JSON.stringify(exec),
    sandboxId: exec.sandboxId,
    execId: exec.id,
    cause: exec.cause ?? undefined,
  });

/**
 * Marks the failure of a retried request as possibly dispatched, because an earlier attempt may have reached the
 * sandbox.
 */
export function maybeDispatched(error: HoldfastError): HoldfastError {
  const { message, cause } = error;
  const Class = error.constructor as typeof HoldfastError;
  const hint = `${error.hint} An earlier attempt of the same request may have taken effect.`;
  return new Class({ ...error, message, cause, hint, dispatched: "unknown" });
}

/**
 * Returns whether an error shows that an earlier attempt of the same request had succeeded and only its response was
 * lost.
 */
export const wasDoneBefore = (error: unknown, code: ErrorCode): boolean =>
  error instanceof HoldfastError && error.code === code && error.dispatched !== "no";

function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const code = "code" in cause ? String(cause.code) : "";
  return cause.message || code || cause.name;
}
