/**
 * What a sandbox is told there besides what it has here: description, metadata, project, mode and the rest of its kind. Kept
 * as one text in labels, so that it lives as long as the sandbox does and needs no place of its own.
 */
import { HoldfastError, type Labels } from "@holdfast/contract";
import { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "../label-text.ts";

export type Mode = "oneshot" | "interactive";

export interface Details {
  description?: string | undefined;
  projectId?: string | undefined;
  metadata?: Record<string, unknown> | undefined;
  /** The runtime's name as it was asked for. */
  runtime?: string | undefined;
  mode?: Mode | undefined;
  /** Where it is open to everybody. */
  port?: number | undefined;
  /** The execution of the command that it was created with: its end is the sandbox's where the mode is `oneshot`. */
  executionId?: string | undefined;
}

const PREFIX = "agentuity/details-";

export function detailsToLabels(details: Details): Labels {
  const text = JSON.stringify(details);
  const labels = text === "{}" ? [] : textToLabels(PREFIX, text);
  if (labels.length <= LABELS_MAX) return Object.fromEntries(labels);
  throw new HoldfastError("invalid_request", {
    message: `body: description and metadata together are more than the ${LABELS_MAX * LABEL_VALUE_MAX} characters that can be kept.`,
  });
}

export function detailsOf(labels: Labels): Details {
  const { text } = textFromLabels(PREFIX, labels);
  try {
    const details: unknown = text === "" ? {} : JSON.parse(text);
    return typeof details === "object" && details !== null ? details : {};
  } catch {
    // Somebody else wrote labels that look like these.
    return {};
  }
}
