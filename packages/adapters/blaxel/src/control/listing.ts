import { type Static, Type } from "@fastify/type-provider-typebox";
import { HoldfastError } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";

const SORTS = ["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] as const;
type Sort = (typeof SORTS)[number];

export const ListQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
  cursor: Type.Optional(Type.String({ minLength: 1, maxLength: 1_024 })),
  sort: Type.Optional(Type.Unsafe<Sort>({ type: "string", enum: [...SORTS] })),
  q: Type.Optional(Type.String({ maxLength: 256 })),
  anchor: Type.Optional(Type.Literal("end")),
  externalId: Type.Optional(Type.String({ minLength: 1, maxLength: 64 })),
  status: Type.Optional(Type.String()),
  showTerminated: Type.Optional(Type.Boolean()),
});
export type ListQuery = Static<typeof ListQuery>;

/** The platform's default page size. */
const PAGE = 50;
const PAGE_MAX = 200;
const Q_MIN = 2;

/** The fields by which items are sorted and searched. */
export interface Facts {
  id: string;
  name: string;
  createdAt: string;
  texts: readonly (string | undefined)[];
}

/**
 * Returns the fields of a sandbox or drive that are sorted and searched. As on the platform, a search covers names and
 * labels.
 */
export const factsOf = (
  {
    name,
    displayName,
    labels,
    createdAt,
  }: { name: string; displayName?: string | undefined; labels: object; createdAt: string },
  { id }: { id: string },
): Facts => ({ id, name, createdAt, texts: [name, displayName, ...Object.entries(labels).flat()] });

const ALL_AT_ONCE = 1_000;

/** Reads all pages. */
export async function everything<Item>(
  read: (page: {
    cursor: string | undefined;
    limit: number;
  }) => Promise<{ items: Item[]; nextCursor: string | null }>,
): Promise<Item[]> {
  const all: Item[] = [];
  for (let cursor: string | undefined; ; ) {
    const { items, nextCursor } = await read({ cursor, limit: ALL_AT_ONCE });
    all.push(...items);
    if (nextCursor === null) return all;
    cursor = nextCursor;
  }
}

/**
 * Returns one page. If the client sends no API version, returns an array of all items, because such a client expects no
 * pages. A page's cursor is the position of its last item in the sort order. So if items are created or deleted between
 * two pages, no other item is repeated or skipped.
 */
export function listed<Item>(
  request: FastifyRequest,
  items: readonly Item[],
  factsOf: (item: Item) => Facts,
): Item[] | { data: Item[]; meta: object } {
  if (request.headers["blaxel-version"] === undefined) return [...items];
  return pageOf(request.query as ListQuery, items, factsOf);
}

export function pageOf<Item>(query: ListQuery, items: readonly Item[], factsOf: (item: Item) => Facts) {
  const limit = Math.min(query.limit ?? PAGE, PAGE_MAX);
  const order = orderOf(query.sort ?? "createdAt:desc");
  const wanted = items
    .map((item) => ({ item, facts: factsOf(item) }))
    .filter(({ facts }) => matches(facts, query.q))
    .sort((a, b) => order(a.facts, b.facts));
  const after = query.cursor === undefined ? null : placeIn(query.cursor, query);
  const rest = after === null ? wanted : wanted.filter(({ facts }) => order(facts, after) > 0);
  const page = query.anchor === "end" && after === null ? tailOf(rest, limit) : rest.slice(0, limit);
  const last = page.at(-1);
  const hasMore = last !== undefined && last !== rest.at(-1);
  return {
    data: page.map(({ item }) => item),
    meta: {
      hasMore,
      total: wanted.length,
      ...(hasMore ? { nextCursor: cursorAt(last.facts, query) } : {}),
    },
  };
}

/**
 * Returns the last page of the items. Pages are counted from the first item, and every page except the last one is
 * full.
 */
const tailOf = <Item>(items: readonly Item[], limit: number): Item[] =>
  items.slice(items.length - (items.length % limit || Math.min(limit, items.length)));

/**
 * Position of an item in the sort order. The id distinguishes items with equal values, so that every position is
 * unique.
 */
type Place = Pick<Facts, "id" | "name" | "createdAt">;
function orderOf(sort: Sort): (a: Place, b: Place) => number {
  const [key, direction] = sort.split(":") as ["name" | "createdAt", "asc" | "desc"];
  const sign = direction === "asc" ? 1 : -1;
  return (a, b) => sign * (compare(a[key], b[key]) || compare(a.id, b.id));
}
const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

function matches({ texts }: Facts, q = ""): boolean {
  const wanted = q.trim().toLowerCase();
  return wanted.length < Q_MIN || texts.some((text) => text?.toLowerCase().includes(wanted));
}

/**
 * Returns the query without its paging fields, as text. A cursor contains this text, because a cursor is valid only for
 * the query for which it was created, although the page size may change.
 */
const questionOf = ({ limit: _limit, cursor: _cursor, anchor: _anchor, ...question }: ListQuery): string =>
  JSON.stringify(Object.entries(question).sort(([a], [b]) => compare(a, b)));

const cursorAt = ({ id, name, createdAt }: Place, query: ListQuery): string =>
  Buffer.from(JSON.stringify([id, name, createdAt, questionOf(query)])).toString("base64url");

function placeIn(cursor: string, query: ListQuery): Place {
  try {
    const fields: unknown = JSON.parse(Buffer.from(cursor, "base64url").toString("utf8"));
    if (Array.isArray(fields) && fields.every((part) => typeof part === "string")) {
      const [id = "", name = "", createdAt = "", question] = fields as string[];
      if (question === questionOf(query)) return { id, name, createdAt };
    }
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new HoldfastError("invalid_request", {
    message: "query/cursor does not belong to this listing.",
  });
}
