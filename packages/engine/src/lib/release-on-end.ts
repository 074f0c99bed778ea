/** Keeps something for as long as a body is read, and lets it go when the body ends, is given up, or nobody wants it. */
export function heldBody<Part>(
  body: AsyncIterable<Part>,
  release: () => void,
  signal: AbortSignal,
): AsyncIterable<Part> {
  let isHeld = true;
  const letGo = () => {
    if (!isHeld) return;
    isHeld = false;
    signal.removeEventListener("abort", letGo);
    release();
  };
  if (signal.aborted) letGo();
  else signal.addEventListener("abort", letGo, { once: true });
  return {
    [Symbol.asyncIterator]() {
      const parts = body[Symbol.asyncIterator]();
      return {
        async next() {
          try {
            const part = await parts.next();
            if (part.done) letGo();
            return part;
          } catch (error) {
            letGo();
            throw error;
          }
        },
        async return() {
          letGo();
          await parts.return?.();
          return { done: true, value: undefined };
        },
      };
    },
  };
}
