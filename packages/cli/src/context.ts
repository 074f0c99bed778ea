import type { Holdfast, Page } from "@holdfast/sdk";
import type { Interruption } from "./interrupt.ts";

/** What every command gets. */
export interface Context {
  /** Made when first needed: `--help` reads no key. */
  client(): Holdfast;
  interruption: Interruption;
  /** Set by commands whose exit code is more than "it worked". */
  exitCode: number;
}

const PAGES_AT_MOST = 1_000;

/** All items of a listing, page by page. */
export async function everything<Item>(
  list: (page: { limit: number; cursor: string | undefined }) => Promise<Page<Item>>,
): Promise<Item[]> {
  const items: Item[] = [];
  let cursor: string | undefined;
  for (let pages = 0; pages < PAGES_AT_MOST; pages++) {
    const page = await list({ limit: 1000, cursor });
    items.push(...page.items);
    if (page.nextCursor === null) break;
    cursor = page.nextCursor;
  }
  return items;
}
