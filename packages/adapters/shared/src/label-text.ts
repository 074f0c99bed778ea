import type { Labels } from "@holdfast/contract";

/** Of the contract's labels. */
export const LABEL_VALUE_MAX = 256;
export const LABELS_MAX = 64;

/** A text of any length in as many labels as it takes, under keys that begin with `prefix`. */
export function textToLabels(prefix: string, given: string): [string, string][] {
  const text = ascii(given);
  return Array.from({ length: Math.ceil(text.length / LABEL_VALUE_MAX) }, (_, index) => [
    `${prefix}${String(index).padStart(2, "0")}`,
    text.slice(index * LABEL_VALUE_MAX, (index + 1) * LABEL_VALUE_MAX),
  ]);
}

/** The text again, empty where there is none, and the keys that it was found under. */
export function textFromLabels(prefix: string, labels: Labels): { keys: string[]; text: string } {
  const keys = Object.keys(labels)
    .filter((key) => key.startsWith(prefix))
    .sort();
  return { keys, text: keys.map((key) => labels[key]).join("") };
}

/** Cut anywhere, it is still text. What is JSON stays the same JSON. */
const ascii = (text: string): string =>
  text.replaceAll(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
