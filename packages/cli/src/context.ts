import type { Holdfast, Page } from "@holdfast/sdk";
import type { Interruption } from "./interrupt.ts";

/** The dependencies and shared state of every command. */
export interface Context {
  /** Creates the client on first use, so that `--help` does not read the API key. */
  client(): Holdfast;
  interruption: Interruption;
  /** The process's exit code; commands set it if they do not throw. */
  exitCode: number;
}

const PAGES_MAX = 1_000;

/** Fetches all pages of a listing. */
export async function everything<Item>(
  list: (page: { limit: number; cursor: string | undefined }) => Promise<Page<Item>>,
): Promise<Item[]> {
  const items: Item[] = [];
  let cursor: string | undefined;
  for (let pages = 0; pages < PAGES_MAX; pages++) {
    const page = await list({ limit: 1000, cursor });
    items.push(...page.items);
    if (page.nextCursor === null) break;
    cursor = page.nextCursor;
  }
  return items;
}
