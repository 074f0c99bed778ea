/** What `work` makes of each item, in their order, with a few of them under way ahead of whoever wants them. */
export async function* ahead<Item, Result>(
  items: AsyncIterable<Item> | Iterable<Item>,
  count: number,
  work: (item: Item) => Promise<Result>,
): AsyncGenerator<Result, void, undefined> {
  const underWay: Promise<Result>[] = [];
  for await (const item of items) {
    const begun = work(item);
    // That it failed is told when its turn comes, if it ever does.
    begun.catch(() => {});
    underWay.push(begun);
    const next = underWay.length > count ? underWay.shift() : undefined;
    if (next !== undefined) yield await next;
  }
  for (const next of underWay) yield await next;
}
