/** Returns the first problem that `wrong` finds among the items, or null. */
export function first<Item>(items: Iterable<Item>, wrong: (item: Item) => string | null): string | null {
  for (const item of items) {
    const found = wrong(item);
    if (found !== null) return found;
  }
  return null;
}

/** Returns the end of an id, which is unique within a run. */
export const short = (id: string): string => id.slice(-3);

export const text = (value: unknown): string => JSON.stringify(value);
