/** Returns the fields of an error that the client throws. */
export function thrownShape(thrown) {
  const isError = thrown instanceof Error;
  const fields = isError ? (thrown.error ?? jsonIn(thrown.message)) : thrown;
  const { code, message, errorCode, requestId, hint, retryable, dispatched } = fields ?? {};
  return {
    kind: isError ? thrown.constructor.name : "body",
    text: isError ? thrown.message : fields?.error,
    ...{ code, message, errorCode, requestId, hint, retryable, dispatched },
  };
}

function jsonIn(text) {
  try {
    // Some messages contain other braces, of headers, on an earlier line.
    return JSON.parse(text.slice(Math.max(text.indexOf("{"), text.lastIndexOf("\n{"))));
  } catch {
    return null;
  }
}
