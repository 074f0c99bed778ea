import { join } from "node:path";
import { onTestFinished } from "vitest";
import { type OpenedStore, openStore, type StoreOptions } from "../store.ts";
import { temporaryDirectory } from "./directory.ts";

/** Opens a store on a real file and closes it when the test ends. */
export async function temporaryStore(
  options: Partial<StoreOptions> = {},
): Promise<{ store: OpenedStore; path: string }> {
  const path = options.path ?? join(temporaryDirectory(), "holdfast.db");
  const store = await openStore({ ...options, path });
  onTestFinished(() => store.close());
  return { store, path };
}
