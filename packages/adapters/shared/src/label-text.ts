import type { Labels } from "@holdfast/contract";

/** Maximum length of a label's value in the contract. */
export const LABEL_VALUE_MAX = 256;
export const LABELS_MAX = 64;

/** Splits a text over as many labels as needed, under keys that begin with `prefix`. */
export function textToLabels(prefix: string, given: string): [string, string][] {
  const text = ascii(given);
  return Array.from({ length: Math.ceil(text.length / LABEL_VALUE_MAX) }, (_, index) => [
    `${prefix}${String(index).padStart(2, "0")}`,
    text.slice(index * LABEL_VALUE_MAX, (index + 1) * LABEL_VALUE_MAX),
  ]);
}

/**
 * Joins the text that `textToLabels` split, and returns it with the keys of the labels that held it. The text is empty
 * if there are no such labels.
 */
export function textFromLabels(prefix: string, labels: Labels): { keys: string[]; text: string } {
  const keys = Object.keys(labels)
    .filter((key) => key.startsWith(prefix))
    .sort();
  return { keys, text: keys.map((key) => labels[key]).join("") };
}

/** Escapes non-ASCII characters, so that the text can be split at any position. The result is the same JSON value. */
const ascii = (text: string): string =>
  text.replaceAll(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
