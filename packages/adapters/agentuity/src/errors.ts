import type { ErrorCode } from "@holdfast/contract";
import type { WireError } from "../../errors.ts";
import type { Dialect } from "../dialect.ts";

/** The client's own words; of everything else it is told ours, in capitals. */
const CODES: Readonly<Partial<Record<ErrorCode, string>>> = {
  sandbox_not_found: "SANDBOX_NOT_FOUND",
  sandbox_gone: "SANDBOX_TERMINATED",
  sandbox_failed: "SANDBOX_TERMINATED",
  too_many_execs: "SANDBOX_BUSY",
  exec_not_found: "EXECUTION_NOT_FOUND",
};

/** What the client repeats by itself for half a minute, whatever it was asked for. */
const REPEATED: readonly number[] = [502, 503];
const NOT_REPEATED = 504;

/** Nothing that may have begun is told in a way that has the client begin it again. */
function errorStatus({ status, body }: WireError): number {
  return REPEATED.includes(status) && body.error.dispatched !== "no" ? NOT_REPEATED : status;
}

/**
 * How the Agentuity client is told of errors. Of most it shows its user the status and `message` and nothing else: our code
 * and the request's id stand in that text too.
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
 * For commands. The client says of every conflict that the sandbox is busy with another command, which is not so here: it is
 * told of one by another status, and shows the reason.
 */
export const AGENTUITY_EXECUTE: Dialect = {
  ...AGENTUITY,
  errorStatus: (error) => (error.status === 409 ? 422 : errorStatus(error)),
};
