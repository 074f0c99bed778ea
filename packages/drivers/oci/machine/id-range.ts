import { existsSync, readFileSync } from "node:fs";
import { HoldfastError } from "@holdfast/contract";
import { readRecord, writeRecord } from "./sandbox-notes.ts";

/** Range of host user and group ids that the ids inside sandboxes are mapped to. */
interface IdRange {
  base: number;
  count: number;
}

/** A range of ids that the host assigns to another user, and the file with that assignment. */
export interface IdClaim extends IdRange {
  file: string;
  user: string;
}

/**
 * Start of the first candidate range. It is above the ids that distributions assign to users and containers, and all
 * candidates are below the limit of signed 32-bit numbers.
 */
export const FIRST_BASE = 0x7000_0000;
const LAST_BASE = 0x7fff_0000;
const COUNT = 65_536;

const CLAIM_FILES = ["/etc/subuid", "/etc/subgid"];

/** Parses the lines `user:first:count` of subuid(5). Other lines are ignored. */
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

/** Returns the first range that does not overlap with the claim of another user. */
export function freeRange(claims: readonly IdClaim[]): IdRange {
  for (let base = FIRST_BASE; base <= LAST_BASE; base += COUNT) {
    const range = { base, count: COUNT };
    if (overlapping(range, claims) === undefined) return range;
  }
  throw refusal("every range of ids that sandboxes could use is claimed in /etc/subuid or /etc/subgid");
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
 * Determines the id range of this installation. The range is chosen once, because the files of images and sandboxes
 * belong to its ids from then on. A range is never shared with another user of the host: if that user could map the
 * ids, it would own those files.
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
  new HoldfastError("launch_failed", {
    message: `No user ids of this host can be assigned to sandboxes: ${why}.`,
  });
