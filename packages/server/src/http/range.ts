/**
 * A parsed Range header with a single range. A header with several ranges or another unit is ignored, as HTTP allows.
 */
export type Range =
  | { kind: "whole" }
  | { kind: "from"; first: number; last: number | null }
  | { kind: "suffix"; length: number }
  | { kind: "unsatisfiable" };

export function parseRange(header: string | undefined): Range {
  const match = header === undefined ? null : /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header.trim());
  if (!match) return { kind: "whole" };
  const [first, last] = [match[1] ?? "", match[2] ?? ""];
  if (first === "" && last === "") return { kind: "whole" };
  if (first === "")
    return last === "0" ? { kind: "unsatisfiable" } : { kind: "suffix", length: Number(last) };
  if (last !== "" && Number(last) < Number(first)) return { kind: "whole" };
  return { kind: "from", first: Number(first), last: last === "" ? null : Number(last) };
}
