import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FIRST_BASE, type IdClaim, parseClaims, settleIds } from "./id-range.ts";

let dir: string;
let file: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-ids-"));
  file = join(dir, "ids.json");
});
afterEach(() => rmSync(dir, { recursive: true }));

const claim = (base: number, count = 65_536): IdClaim => ({ file: "/etc/subuid", user: "ann", base, count });
const chosen = (base: number) => ({ base, count: 65_536 });

test("only valid lines are parsed as claims", () => {
  const text = "# a comment\nann:100000:65536\n\nbroken:x:1\n1001:165536:65536\n";
  expect(parseClaims(text, "/etc/subuid")).toEqual([claim(100_000), { ...claim(165_536), user: "1001" }]);
});

test("the range is above those of ordinary users, and stays the same", () => {
  expect(settleIds(file, {}, [claim(100_000)])).toEqual(chosen(FIRST_BASE));
  expect(JSON.parse(readFileSync(file, "utf8"))).toEqual(chosen(FIRST_BASE));
  expect(settleIds(file, {}, [])).toEqual(chosen(FIRST_BASE));
});

test("a range that overlaps with a claim is skipped", () => {
  const claims = [claim(FIRST_BASE - 1, 2), claim(FIRST_BASE + 70_000, 10)];
  expect(settleIds(file, {}, claims)).toEqual(chosen(FIRST_BASE + 2 * 65_536));
  expect(settleIds(file, {}, [])).toEqual(chosen(FIRST_BASE + 2 * 65_536));
});

test("a range that another user claimed later is refused, with the user and the file", () => {
  settleIds(file, {}, []);
  expect(() => settleIds(file, {}, [claim(FIRST_BASE + 65_535)])).toThrow(/'ann' in \/etc\/subuid/);
});

test("a configured range is used, unless it overlaps with a claim or the files belong to another range", () => {
  expect(() => settleIds(file, { base: 100_000 }, [claim(165_535)])).toThrow(/overlap/);
  expect(settleIds(file, { base: 200_000 }, [])).toEqual(chosen(200_000));
  expect(() => settleIds(file, { base: 300_000 }, [])).toThrow(/belong to ids from 200000/);
});

test("fails if every range is claimed", () => {
  expect(() => settleIds(file, {}, [claim(FIRST_BASE, 0x1000_0000)])).toThrow(/every range/);
});
