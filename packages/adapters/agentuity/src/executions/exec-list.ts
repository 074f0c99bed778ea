import type { Exec } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";

const PAGE = 1_000;

/** Lists execs, newest first, until `limit` execs match or no records are left. */
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
