/**
 * Returns the results of `map` for all items, in the order of the items. Works on up to `width` items at a time; as
 * soon as one is done, the next begins, so a slow item does not delay the others.
 */
export async function mapAtOnce<Item, Result>(
  items: readonly Item[],
  width: number,
  map: (item: Item) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = [];
  const rest = items.entries();
  const worker = async () => {
    for (const [index, item] of rest) results[index] = await map(item);
  };
  await Promise.all(Array.from({ length: Math.min(width, items.length) }, worker));
  return results;
}
