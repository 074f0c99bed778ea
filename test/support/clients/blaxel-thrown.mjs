/** What a caller can learn from whatever the client throws. */
export function thrownShape(thrown) {
  const isError = thrown instanceof Error;
  const told = isError ? (thrown.error ?? jsonIn(thrown.message)) : thrown;
  const { code, message, errorCode, requestId, hint, retryable, dispatched } = told ?? {};
  return {
    kind: isError ? thrown.constructor.name : "body",
    text: isError ? thrown.message : told?.error,
    ...{ code, message, errorCode, requestId, hint, retryable, dispatched },
  };
}

function jsonIn(text) {
  try {
    // Some messages have other braces, of headers, on a line before.
    return JSON.parse(text.slice(Math.max(text.indexOf("{"), text.lastIndexOf("\n{"))));
  } catch {
    return null;
  }
}
