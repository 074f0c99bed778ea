import type { ErrorCode } from "@holdfast/contract";
import type { Dialect, WireError } from "@holdfast/server/adapter";

/**
 * Error codes that the client knows, by Holdfast's code. Every other error is sent with Holdfast's code in capitals.
 */
const CODES: Readonly<Partial<Record<ErrorCode, string>>> = {
  sandbox_not_found: "SANDBOX_NOT_FOUND",
  sandbox_gone: "SANDBOX_TERMINATED",
  sandbox_failed: "SANDBOX_TERMINATED",
  too_many_execs: "SANDBOX_BUSY",
  sandbox_busy: "SANDBOX_BUSY",
  exec_not_found: "EXECUTION_NOT_FOUND",
};

/** Statuses after which the client repeats a request by itself, whatever its method, for up to half a minute. */
const REPEATED: readonly number[] = [502, 503];
const NOT_REPEATED = 504;

/**
 * Returns the HTTP status of an error. A status after which the client would repeat the request is replaced by another
 * one, unless the operation certainly did not start.
 */
function errorStatus({ status, body }: WireError): number {
  return REPEATED.includes(status) && body.error.dispatched !== "no" ? NOT_REPEATED : status;
}

/**
 * Converts errors to the format of the Agentuity client. The client shows its user mostly the status and `message`, so
 * `message` includes Holdfast's code and the request id.
 */
export const AGENTUITY: Dialect = {
  keyHeader: "authorization",
  errorStatus,
  errorBody: ({ body }) => {
    const { code, message, requestId, ...rest } = body.error;
    return {
      success: false,
      code: CODES[code] ?? code.toUpperCase(),
      message: `${message} (${code}, ${requestId})`,
      errorCode: code,
      requestId,
      ...rest,
    };
  },
};

/**
 * Error format for the routes that start commands. The client shows every error with status 409 as "busy with another
 * command". A conflict on these routes has other causes, so it is sent with another status, and the client shows its
 * message.
 */
export const AGENTUITY_EXECUTE: Dialect = {
  ...AGENTUITY,
  errorStatus: (error) => (error.status === 409 ? 422 : errorStatus(error)),
};
