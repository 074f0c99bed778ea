/** How many are looked at in one turn of the event loop: looking at one takes a fraction of a millisecond. */
const AT_ONCE = 32;

/** Goes through many things that are looked at synchronously without keeping everyone else waiting. */
export async function* inTurns<Item>(items: Iterable<Item>, signal: AbortSignal): AsyncGenerator<Item> {
  let count = 0;
  for (const item of items) {
    if (count++ % AT_ONCE === AT_ONCE - 1) await new Promise(setImmediate);
    signal.throwIfAborted();
    yield item;
  }
}
