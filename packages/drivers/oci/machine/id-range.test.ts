import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FIRST_BASE, type IdClaim, parseClaims, settleIds } from "./ids.ts";

let dir: string;
let file: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-ids-"));
  file = join(dir, "ids.json");
});
afterEach(() => rmSync(dir, { recursive: true }));

const claim = (base: number, count = 65_536): IdClaim => ({ file: "/etc/subuid", user: "ann", base, count });
const chosen = (base: number) => ({ base, count: 65_536 });

test("claims are the lines that are claims", () => {
  const text = "# a comment\nann:100000:65536\n\nbroken:x:1\n1001:165536:65536\n";
  expect(parseClaims(text, "/etc/subuid")).toEqual([claim(100_000), { ...claim(165_536), user: "1001" }]);
});

test("the range is behind those of ordinary users, and stays the same", () => {
  expect(settleIds(file, {}, [claim(100_000)])).toEqual(chosen(FIRST_BASE));
  expect(JSON.parse(readFileSync(file, "utf8"))).toEqual(chosen(FIRST_BASE));
  expect(settleIds(file, {}, [])).toEqual(chosen(FIRST_BASE));
});

test("a range that overlaps with another's is stepped over", () => {
  const claims = [claim(FIRST_BASE - 1, 2), claim(FIRST_BASE + 70_000, 10)];
  expect(settleIds(file, {}, claims)).toEqual(chosen(FIRST_BASE + 2 * 65_536));
  expect(settleIds(file, {}, [])).toEqual(chosen(FIRST_BASE + 2 * 65_536));
});

test("a range that someone else was given since is refused, by name and file", () => {
  settleIds(file, {}, []);
  expect(() => settleIds(file, {}, [claim(FIRST_BASE + 65_535)])).toThrow(/'ann' in \/etc\/subuid/);
});

test("a configured range is taken, unless it overlaps or the files belong to another", () => {
  expect(() => settleIds(file, { base: 100_000 }, [claim(165_535)])).toThrow(/overlap/);
  expect(settleIds(file, { base: 200_000 }, [])).toEqual(chosen(200_000));
  expect(() => settleIds(file, { base: 300_000 }, [])).toThrow(/belong to ids from 200000/);
});

test("with no range left it says so", () => {
  expect(() => settleIds(file, {}, [claim(FIRST_BASE, 0x1000_0000)])).toThrow(/every range/);
});
