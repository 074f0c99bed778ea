import { Type } from "@fastify/type-provider-typebox";
import { ErrorBody } from "@holdfast/contract";
import type { Dialect } from "@holdfast/server/adapter";

const { code, message, hint, retryable, dispatched, requestId, sandboxId, operation, cause } =
  ErrorBody.properties.error.properties;

const RunbookError = Type.Object(
  {
    ...{ code, message, hint, retryable, dispatched },
    request_id: requestId,
    sandbox_id: Type.Optional(sandboxId),
    operation: Type.Optional(operation),
    cause: Type.Optional(cause),
  },
  { $id: "RunbookError", title: "RunbookError" },
);

/** Error format without an envelope, with the field names that a runbook's scripts select. */
export const RUNBOOK: Dialect = {
  keyHeader: "authorization",
  errorSchema: RunbookError,
  errorBody: ({ body }) => {
    const {
      requestId: request_id,
      sandboxId: sandbox_id,
      execId: _exec,
      floor: _floor,
      ...rest
    } = body.error;
    return { ...rest, request_id, ...(sandbox_id === undefined ? {} : { sandbox_id }) };
  },
};
