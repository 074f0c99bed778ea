import { Type } from "@fastify/type-provider-typebox";
import { ErrorBody } from "@holdfast/contract";
import type { Dialect } from "../dialect.ts";

const { code, message, hint, retryable, dispatched, requestId, sandboxId, operation, cause } =
  ErrorBody.properties.error.properties;

export const RunbookError = Type.Object(
  {
    ...{ code, message, hint, retryable, dispatched },
    request_id: requestId,
    sandbox_id: Type.Optional(sandboxId),
    operation: Type.Optional(operation),
    cause: Type.Optional(cause),
  },
  { $id: "RunbookError", title: "RunbookError" },
);

/** The registry's errors without an envelope, under names that a runbook's scripts pick out. */
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
