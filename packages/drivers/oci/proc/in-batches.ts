/** Number of items per turn of the event loop. One item takes a fraction of a millisecond. */
const BATCH_SIZE = 32;

/**
 * Iterates over many items that are each examined synchronously. Yields to the event loop between batches, so that
 * other work is not delayed.
 */
export async function* inBatches<Item>(items: Iterable<Item>, signal: AbortSignal): AsyncGenerator<Item> {
  let count = 0;
  for (const item of items) {
    if (count++ % BATCH_SIZE === BATCH_SIZE - 1) await new Promise(setImmediate);
    signal.throwIfAborted();
    yield item;
  }
}
