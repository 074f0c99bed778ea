/**
 * The platform's sandbox properties that Holdfast does not have: description, metadata, project, mode and the like.
 * They are stored as text in labels, which are kept as long as the sandbox and need no storage of their own.
 */

import { LABEL_VALUE_MAX, LABELS_MAX, textFromLabels, textToLabels } from "@holdfast/adapter-shared";
import { HoldfastError, type Labels } from "@holdfast/contract";

type Mode = "oneshot" | "interactive";

interface AskedResources {
  memory?: string | undefined;
  cpu?: string | undefined;
  disk?: string | undefined;
}

export interface Details {
  description?: string | undefined;
  projectId?: string | undefined;
  metadata?: Record<string, unknown> | undefined;
  /** The runtime's name, as the create request gave it. */
  runtime?: string | undefined;
  mode?: Mode | undefined;
  /** Memory, CPU and disk, as the create request gave them. */
  resources?: AskedResources | undefined;
  /** The public port. */
  port?: number | undefined;
  /**
   * The execution that was created with the sandbox. In mode `oneshot` the sandbox is deleted when this execution ends.
   */
  executionId?: string | undefined;
}

const PREFIX = "agentuity/details-";

export function detailsToLabels(details: Details): Labels {
  const text = JSON.stringify(details);
  const labels = text === "{}" ? [] : textToLabels(PREFIX, text);
  if (labels.length <= LABELS_MAX) return Object.fromEntries(labels);
  throw new HoldfastError("invalid_request", {
    message: `body: description and metadata together exceed the limit of ${LABELS_MAX * LABEL_VALUE_MAX} characters.`,
  });
}

export function detailsOf(labels: Labels): Details {
  const { text } = textFromLabels(PREFIX, labels);
  try {
    const details: unknown = text === "" ? {} : JSON.parse(text);
    return typeof details === "object" && details !== null ? details : {};
  } catch {
    // The labels can't be parsed, so another client wrote them, and they are ignored.
    return {};
  }
}
