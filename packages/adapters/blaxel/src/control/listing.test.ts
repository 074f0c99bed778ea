import fc from "fast-check";
import { expect, test } from "vitest";
import { type Facts, type ListQuery, pageOf } from "./listing.ts";

const item = (id: string, name: string, second: number, ...texts: string[]): Facts => ({
  id,
  name,
  createdAt: `2025-01-01T00:00:${String(second).padStart(2, "0")}.000Z`,
  texts: [name, ...texts],
});
const items = [item("1", "b", 1, "team", "Red"), item("2", "a", 2), item("3", "d", 2), item("4", "c", 3)];
const page = (query: ListQuery, all = items) => pageOf(query, all, (each) => each);
const ids = (query: ListQuery) => page(query).data.map(({ id }) => id);

test.each<[ListQuery, string[]]>([
  [{}, ["4", "3", "2", "1"]],
  [{ sort: "createdAt:asc" }, ["1", "2", "3", "4"]],
  [{ sort: "name:asc" }, ["2", "1", "4", "3"]],
  [{ sort: "name:desc" }, ["3", "4", "1", "2"]],
  [{ q: " RED " }, ["1"]],
  [{ q: "x" }, ["4", "3", "2", "1"]],
  [{ q: "nobody" }, []],
  [{ anchor: "end", limit: 3 }, ["1"]],
  [{ anchor: "end", limit: 2 }, ["2", "1"]],
])("%j lists %j", (query, wanted) => expect(ids(query)).toEqual(wanted));

test("pages contain every item once, in order, while items are created and deleted between them", () => {
  const query = fc.record({
    sort: fc.constantFrom("createdAt:desc", "createdAt:asc", "name:asc", "name:desc"),
    limit: fc.integer({ min: 1, max: 5 }),
  });
  const many = fc.uniqueArray(
    fc.record({ id: fc.uuid(), name: fc.string(), second: fc.integer({ min: 0, max: 9 }) }),
    {
      selector: ({ id }) => id,
      maxLength: 20,
    },
  );
  fc.assert(
    fc.property(query, many, many, (asked, there, passing) => {
      const staying = there.map(({ id, name, second }) => item(id, name, second));
      const others = passing.map(({ id, name, second }) => item(`x${id}`, name, second));
      const wanted = page({ ...asked, limit: 200 } as ListQuery, staying).data.map(({ id }) => id);
      const seen: string[] = [];
      let cursor: string | undefined;
      for (let round = 0; ; round += 1) {
        const now = round % 2 === 0 ? staying : [...others, ...staying];
        const { data, meta } = page({ ...asked, ...(cursor && { cursor }) } as ListQuery, now);
        seen.push(...data.map(({ id }) => id).filter((id) => !id.startsWith("x")));
        if (!meta.hasMore) break;
        cursor = (meta as { nextCursor: string }).nextCursor;
      }
      expect(seen).toEqual(wanted);
    }),
  );
});

test("a cursor of another query is refused", () => {
  const { meta } = page({ limit: 1 });
  const { nextCursor: cursor } = meta as { nextCursor: string };
  expect(page({ limit: 2, cursor }).data.map(({ id }) => id)).toEqual(["3", "2"]);
  for (const query of [
    { cursor, q: "red" },
    { cursor, sort: "name:asc" },
    { cursor: "nonsense" },
  ] as ListQuery[])
    expect(() => page(query)).toThrow(expect.objectContaining({ code: "invalid_request" }));
});
