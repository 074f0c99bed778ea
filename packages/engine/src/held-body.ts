/** Keeps something for as long as a body is read, and lets it go when the body ends, is given up, or nobody wants it. */
export function heldBody(
  body: AsyncIterable<Uint8Array>,
  release: () => void,
  signal: AbortSignal,
): AsyncIterable<Uint8Array> {
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
