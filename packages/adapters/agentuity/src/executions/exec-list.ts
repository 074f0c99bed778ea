import type { Exec } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";

const PAGE = 1_000;

/** Newest first, as far back as there are records or as many as are wanted. */
export async function execsOf(
  execs: ExecApi,
  ref: string,
  { limit, isWanted }: { limit: number; isWanted: (id: string) => boolean },
): Promise<Exec[]> {
  const found: Exec[] = [];
  for (let cursor: string | undefined; ; ) {
    const { items, nextCursor } = await execs.list(ref, { cursor, limit: PAGE });
    found.push(...items.filter(({ id }) => isWanted(id)));
    if (nextCursor === null || found.length >= limit) return found.slice(0, limit);
    cursor = nextCursor;
  }
}
