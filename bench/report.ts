import { mkdirSync, writeFileSync } from "node:fs";
import { cpus, release, totalmem } from "node:os";
import { fileURLToPath } from "node:url";

export interface Row {
  what: string;
  who: string;
  value: number;
  p95?: number | undefined;
  p99?: number | undefined;
  unit: string;
  /** True for rates and sizes, where a larger value is better. */
  higherIsBetter?: boolean;
}

const US = "holdfast";
const digits = (value: number) =>
  value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

/** Returns how many times better Holdfast is than this row; null if there is nothing to compare. */
function ratio(row: Row, rows: readonly Row[]): number | null {
  const ours = rows.find((other) => other.what === row.what && other.who === US);
  if (ours === undefined || row.who === US) return null;
  return row.higherIsBetter ? ours.value / row.value : row.value / ours.value;
}

export function table(rows: readonly Row[]): string {
  const lines = [["what", "who", "value", "p95", "p99", "unit", "Holdfast is"]];
  for (const row of rows) {
    const times = ratio(row, rows);
    lines.push([
      row.what,
      row.who,
      digits(row.value),
      row.p95 === undefined ? "" : digits(row.p95),
      row.p99 === undefined ? "" : digits(row.p99),
      row.unit,
      times === null ? "" : `${digits(times)}× better`,
    ]);
  }
  const widths = (lines[0] ?? []).map((_, column) =>
    Math.max(...lines.map((line) => line[column]?.length ?? 0)),
  );
  return lines
    .map((line) =>
      line
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

/** Writes the rows and a description of the machine to a file in `results`, and returns its path. */
export function save(rows: readonly Row[], facts: Record<string, unknown>): string {
  const directory = fileURLToPath(new URL("results", import.meta.url));
  mkdirSync(directory, { recursive: true });
  const path = `${directory}/${new Date().toISOString().replaceAll(":", "-")}.json`;
  const machine = {
    kernel: release(),
    cpus: cpus().length,
    model: cpus()[0]?.model,
    memoryMb: Math.round(totalmem() / 1_048_576),
  };
  const withRatios = rows.map((row) => ({ ...row, ratio: ratio(row, rows) }));
  writeFileSync(
    path,
    `${JSON.stringify({ at: new Date().toISOString(), machine, ...facts, rows: withRatios }, null, 2)}\n`,
  );
  return path;
}
