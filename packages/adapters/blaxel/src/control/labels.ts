/**
 * Stores the platform's labels and extra fields in Holdfast's labels. The platform allows any text in labels, Holdfast
 * does not. Labels that Holdfast allows are stored as they are, so that both APIs can filter by them. All other labels
 * are joined to one text, which is split over several labels. Nothing is dropped; a request that exceeds the limits is
 * refused.
 */

import { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "@holdfast/adapter-shared";
import { HoldfastError, type Labels } from "@holdfast/contract";
import type { AskedExpiry } from "./expiry.ts";

/** Platform metadata of a sandbox or drive, besides its name. */
export interface Tags {
  labels: Readonly<Record<string, string>>;
  externalId?: string | undefined;
  displayName?: string | undefined;
  /** The image's name as requested. */
  image?: string | undefined;
  asked?: Asked | undefined;
}

/**
 * Requested values of settings that Holdfast also has. They are stored in addition to Holdfast's own values, so that
 * the client gets them back in the form in which it sent them.
 */
export interface Asked extends AskedExpiry {
  ports?: readonly object[];
  /** Names of the environment variables that are secrets. Their values are not returned. */
  secrets?: readonly string[];
}

const OURS = "blaxel/";
const FIELDS = {
  externalId: `${OURS}external-id`,
  displayName: `${OURS}display-name`,
  image: `${OURS}image`,
} as const;
const REST = `${OURS}rest-`;
const ASKED = `${OURS}asked-`;
/** Matches the keys that the contract allows for labels. */
const KEY = /^[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?$/;

/** Marks a drive that was created as a volume. */
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
    message: `body/metadata/labels exceed the limit of ${LABELS_MAX} labels of ${LABEL_VALUE_MAX} characters.`,
  });
}

/**
 * Returns whether a label can be stored unchanged: it meets Holdfast's limits, and this file does not generate its key.
 */
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
  // If the text in the labels with the prefix `REST` can't be parsed, another client has written these labels, and they
  // are returned unchanged.
  const shown = Object.entries(labels).filter(([key]) => key.startsWith(REST));
  return joined<Record<string, string>>(labels, REST) ?? Object.fromEntries(shown);
}

/**
 * Joins the text that was split over the labels with the given prefix, and parses it. Returns null if there is no such
 * label, or if the text can't be parsed because another client wrote the labels.
 */
function joined<Value extends object>(labels: Labels, prefix: string): Value | null {
  const { text } = textFromLabels(prefix, labels);
  try {
    const value: unknown = text === "" ? null : JSON.parse(text);
    return typeof value === "object" ? (value as Value | null) : null;
  } catch {
    return null;
  }
}

/** Merges the given metadata into the existing metadata: absent fields stay unchanged. */
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

/** Returns the change from one set of labels to another: null removes a label. */
export const replacing = (before: Labels, after: Labels): Record<string, string | null> => ({
  ...Object.fromEntries(Object.keys(before).map((key) => [key, null])),
  ...after,
});
