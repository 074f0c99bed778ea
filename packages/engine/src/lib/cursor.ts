import { HoldfastError } from "@holdfast/contract";

/** Returns the error for a list request whose cursor was not created by the server. */
export const invalidCursor = (): HoldfastError =>
  new HoldfastError("invalid_request", { message: "The cursor is not valid." });
