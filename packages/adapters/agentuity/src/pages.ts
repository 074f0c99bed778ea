import { type Static, Type } from "@fastify/type-provider-typebox";
import { notSupported } from "@holdfast/adapter-shared";

export const SortQuery = {
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
  offset: Type.Optional(Type.Integer({ minimum: 0 })),
  sort: Type.Optional(Type.String()),
  direction: Type.Optional(Type.Union([Type.Literal("asc"), Type.Literal("desc")])),
};
const Sort = Type.Object(SortQuery);

/** The platform's default page size. */
const LIMIT = 50;
const LIMIT_MAX = 100;

/** Sort keys of items; the default is newest first. */
export type Orders<Item> = Readonly<Record<string, (item: Item) => string | number>>;

export function pageOf<Item>(
  items: readonly Item[],
  { limit = LIMIT, offset = 0, sort = "created", direction = "desc" }: Static<typeof Sort>,
  orders: Orders<Item>,
): { page: Item[]; total: number } {
  const by = Object.hasOwn(orders, sort) ? orders[sort] : undefined;
  if (by === undefined) throw notSupported(`listing with sort=${sort.slice(0, 40)}`);
  const sorted = items.toSorted((a, b) => compare(by(a), by(b)) * (direction === "asc" ? 1 : -1));
  return { page: sorted.slice(offset, offset + Math.min(limit, LIMIT_MAX)), total: items.length };
}

const compare = (a: string | number, b: string | number): number => (a < b ? -1 : a > b ? 1 : 0);
