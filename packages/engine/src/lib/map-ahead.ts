/**
 * Yields the result of `work` for each item, in order. Starts work on up to `count` items before their results are
 * requested.
 */
export async function* mapAhead<Item, Result>(
  items: AsyncIterable<Item> | Iterable<Item>,
  count: number,
  work: (item: Item) => Promise<Result>,
): AsyncGenerator<Result, void, undefined> {
  const underWay: Promise<Result>[] = [];
  for await (const item of items) {
    const begun = work(item);
    // A failure is thrown when the result is requested; without this handler Node would report it as unhandled.
    begun.catch(() => {});
    underWay.push(begun);
    const next = underWay.length > count ? underWay.shift() : undefined;
    if (next !== undefined) yield await next;
  }
  for (const next of underWay) yield await next;
}
