/**
 * Wraps a body and calls `release` exactly once: when the body ends or fails, when the reader stops early, or when the
 * signal aborts. If the reader stops early, the body's iterator is ended before the release, because the iterator may
 * still use the resource. If the signal aborts, `release` is called at once, even while the reader waits for the body;
 * `release` then ends that wait.
 */
export function releaseOnEnd<Part>(
  body: AsyncIterable<Part>,
  release: () => void,
  signal: AbortSignal,
): AsyncIterable<Part> {
  let isHeld = true;
  const releaseOnce = () => {
    if (!isHeld) return;
    isHeld = false;
    signal.removeEventListener("abort", releaseOnce);
    release();
  };
  if (signal.aborted) releaseOnce();
  else signal.addEventListener("abort", releaseOnce, { once: true });
  return {
    [Symbol.asyncIterator]() {
      const parts = body[Symbol.asyncIterator]();
      return {
        async next() {
          try {
            const part = await parts.next();
            if (part.done) releaseOnce();
            return part;
          } catch (error) {
            releaseOnce();
            throw error;
          }
        },
        async return() {
          try {
            await parts.return?.();
          } finally {
            releaseOnce();
          }
          return { done: true, value: undefined };
        },
      };
    },
  };
}
