/**
 * Labels there may be any text, labels here may not, and there are fields beside them that have no other place here. All of
 * it is kept in labels: what fits as it is, so that both APIs filter by it, and the rest as one text in as many labels as it
 * takes. Nothing is dropped; what is too much altogether is refused.
 */
import { HoldfastError, type Labels } from "@holdfast/contract";
import { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "../label-text.ts";
import type { AskedExpiry } from "./expiry.ts";

/** What a sandbox or a drive is called there, besides its name. */
export interface Tags {
  labels: Readonly<Record<string, string>>;
  externalId?: string | undefined;
  displayName?: string | undefined;
  /** The image's name as it was asked for. */
  image?: string | undefined;
  asked?: Asked | undefined;
}

/** What has a meaning here, and is told again in the words that it was asked for in. */
export interface Asked extends AskedExpiry {
  ports?: readonly object[];
}

const OURS = "blaxel/";
const FIELDS = {
  externalId: `${OURS}external-id`,
  displayName: `${OURS}display-name`,
  image: `${OURS}image`,
} as const;
const REST = `${OURS}rest-`;
const ASKED = `${OURS}asked-`;
/** Of the contract's labels. */
const KEY = /^[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?$/;

/** What a drive has that was made as a volume. */
export const VOLUME: Labels = { [`${OURS}kind`]: "volume" };

export const externalIdLabel = (externalId: string): Labels => ({ [FIELDS.externalId]: externalId });

export function toLabels({ labels, asked, ...fields }: Tags): Labels {
  const given = Object.entries(labels);
  const rest = given.filter((label) => !fits(label));
  const pieces = [
    ...(rest.length === 0 ? [] : textToLabels(REST, JSON.stringify(Object.fromEntries(rest)))),
    ...(asked === undefined || Object.keys(asked).length === 0
      ? []
      : textToLabels(ASKED, JSON.stringify(asked))),
  ];
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
    asked: joined(labels, ASKED) ?? undefined,
    externalId: field("externalId"),
    displayName: field("displayName"),
    image: field("image"),
  };
}

function restOf(labels: Labels): Record<string, string> {
  // Somebody else may have written labels that look like these.
  const shown = Object.entries(labels).filter(([key]) => key.startsWith(REST));
  return joined<Record<string, string>>(labels, REST) ?? Object.fromEntries(shown);
}

/** What pieces with that prefix make together; null where that is nothing that this file wrote. */
function joined<Value extends object>(labels: Labels, prefix: string): Value | null {
  const { text } = textFromLabels(prefix, labels);
  try {
    const value: unknown = text === "" ? null : JSON.parse(text);
    return typeof value === "object" ? (value as Value | null) : null;
  } catch {
    return null;
  }
}

/** What metadata says of something, over what was said before: what it does not name stays, and nothing takes it away. */
export function chosenTags(
  metadata: { [Field in keyof Pick<Tags, "externalId" | "displayName">]?: string | null | undefined } & {
    labels?: Readonly<Record<string, string>> | null | undefined;
  },
  before: Tags,
): Pick<Tags, "labels" | "externalId" | "displayName"> {
  const chosen = (given: string | null | undefined, was: string | undefined) =>
    given === undefined ? was : given || undefined;
  return {
    labels: metadata.labels === undefined ? before.labels : (metadata.labels ?? {}),
    externalId: chosen(metadata.externalId, before.externalId),
    displayName: chosen(metadata.displayName, before.displayName),
  };
}

/** A change of labels to others: null for those that are to go. */
export const replacing = (before: Labels, after: Labels): Record<string, string | null> => ({
  ...Object.fromEntries(Object.keys(before).map((key) => [key, null])),
  ...after,
});
