import { existsSync, readFileSync } from "node:fs";
import { HoldfastError } from "@holdfast/contract";
import { readRecord, writeRecord } from "./record.ts";

/** The host's ids that sandboxes are mapped to. */
export interface IdRange {
  base: number;
  count: number;
}

/** Another's claim on ids, and where it was read. */
export interface IdClaim extends IdRange {
  file: string;
  user: string;
}

/** Behind what distributions give to users and containers on their own, and below where signed ids end. */
export const FIRST_BASE = 0x7000_0000;
const LAST_BASE = 0x7fff_0000;
const COUNT = 65_536;

const CLAIM_FILES = ["/etc/subuid", "/etc/subgid"];

/** Lines of subuid(5): `user:first:count`. Others are no claims. */
export function parseClaims(text: string, file: string): IdClaim[] {
  return text.split("\n").flatMap((line) => {
    const [, user = "", base, count] = /^([^:#]+):(\d+):(\d+)\s*$/.exec(line.trim()) ?? [];
    return base === undefined ? [] : [{ file, user, base: Number(base), count: Number(count) }];
  });
}

export const readClaims = (): IdClaim[] =>
  CLAIM_FILES.flatMap((file) => (existsSync(file) ? parseClaims(readFileSync(file, "utf8"), file) : []));

export const overlapping = (range: IdRange, claims: readonly IdClaim[]): IdClaim | undefined =>
  claims.find(({ base, count }) => base < range.base + range.count && range.base < base + count);

/** The first range that nobody claims. */
export function freeRange(claims: readonly IdClaim[]): IdRange {
  for (let base = FIRST_BASE; base <= LAST_BASE; base += COUNT) {
    const range = { base, count: COUNT };
    if (overlapping(range, claims) === undefined) return range;
  }
  throw refusal("every range of ids that sandboxes could have is taken by /etc/subuid or /etc/subgid");
}

export const describeClaim = ({ base, count }: IdRange, claim: IdClaim): string =>
  `ids ${base} to ${base + count - 1} of the sandboxes overlap with those of '${claim.user}' in ${claim.file} (${claim.base} to ${claim.base + claim.count - 1})`;

export function rememberedRange(file: string): IdRange | null {
  const known = readRecord(file) as Partial<IdRange> | null | "unreadable";
  if (known === null) return null;
  if (known !== "unreadable" && isId(known.base) && isId(known.count)) return known as IdRange;
  throw refusal("ids.json in the state directory can't be read");
}

const isId = (value: unknown): boolean => Number.isInteger(value) && (value as number) > 0;

/**
 * The range of this installation: chosen once, because files of images and sandboxes belong to it from then on. A range
 * that another user of the host may map would make that user the owner of those files, so none is ever shared.
 */
export function settleIds(
  file: string,
  wanted: Partial<IdRange>,
  claims: readonly IdClaim[] = readClaims(),
): IdRange {
  const known = rememberedRange(file);
  const range =
    known ?? (wanted.base === undefined ? freeRange(claims) : { count: COUNT, ...wanted, base: wanted.base });
  const differs = (wanted.base ?? range.base) !== range.base || (wanted.count ?? range.count) !== range.count;
  if (differs) throw refusal(`the files of this state directory belong to ids from ${range.base} on`);
  const claim = overlapping(range, claims);
  if (claim !== undefined) throw refusal(describeClaim(range, claim));
  if (known === null) writeRecord(file, range);
  return range;
}

const refusal = (why: string): HoldfastError =>
  new HoldfastError("launch_failed", { message: `No sandbox can be given ids of this host: ${why}.` });
