/**
 * Labels there may be any text, labels here may not, and there are fields beside them that have no other place here. All of
 * it is kept in labels: what fits as it is, so that both APIs filter by it, and the rest as one text in as many labels as it
 * takes. Nothing is dropped; what is too much altogether is refused.
 */
import { HoldfastError, type Labels } from "@holdfast/contract";
import { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "../label-text.ts";

/** What a sandbox or a drive is called there, besides its name. */
export interface Tags {
  labels: Readonly<Record<string, string>>;
  externalId?: string | undefined;
  displayName?: string | undefined;
  /** The image's name as it was asked for. */
  image?: string | undefined;
}

const OURS = "blaxel/";
const FIELDS = {
  externalId: `${OURS}external-id`,
  displayName: `${OURS}display-name`,
  image: `${OURS}image`,
} as const;
const REST = `${OURS}rest-`;
/** Of the contract's labels. */
const KEY = /^[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?$/;

export const externalIdLabel = (externalId: string): Labels => ({ [FIELDS.externalId]: externalId });

export function toLabels({ labels, ...fields }: Tags): Labels {
  const given = Object.entries(labels);
  const rest = given.filter((label) => !fits(label));
  const pieces = rest.length === 0 ? [] : textToLabels(REST, JSON.stringify(Object.fromEntries(rest)));
  const named = Object.entries(fields).flatMap(([name, value]): [string, string][] =>
    value === undefined ? [] : [[FIELDS[name as keyof typeof FIELDS], value]],
  );
  const made = [...given.filter(fits), ...named, ...pieces];
  if (made.length <= LABELS_MAX) return Object.fromEntries(made);
  throw new HoldfastError("invalid_request", {
    message: `body/metadata/labels are more than can be kept: ${LABELS_MAX} labels of ${LABEL_VALUE_MAX} characters.`,
  });
}

/** As a label of ours, and not as one that this file makes. */
const fits = ([key, value]: [string, string]): boolean =>
  KEY.test(key) && !key.startsWith(OURS) && value.length <= LABEL_VALUE_MAX;

export function fromLabels(labels: Labels): Tags {
  const own = Object.entries(labels).filter(([key]) => !key.startsWith(OURS));
  const field = (name: keyof typeof FIELDS) => labels[FIELDS[name]];
  return {
    labels: { ...Object.fromEntries(own), ...restOf(labels) },
    externalId: field("externalId"),
    displayName: field("displayName"),
    image: field("image"),
  };
}

function restOf(labels: Labels): Record<string, string> {
  const { keys, text } = textFromLabels(REST, labels);
  try {
    return text === "" ? {} : (JSON.parse(text) as Record<string, string>);
  } catch {
    // Somebody else wrote labels that look like these.
    return Object.fromEntries(keys.map((key) => [key, labels[key] ?? ""]));
  }
}
