import { readFileSync } from "node:fs";
import type { WebhookSettings } from "@holdfast/server";
import { StartFailure } from "./start-failure.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** Minimum length of the webhook's secret. A shorter secret could be guessed from one signed message by brute force. */
const SECRET_MIN_LENGTH = 16;

const SECRET_FIX =
  "Set HOLDFAST_WEBHOOK_SECRET_FILE to a file containing the secret that the receiver verifies signatures with, or HOLDFAST_WEBHOOK_SECRET to the secret itself.";

/**
 * Reads the webhook's URL and its signing secret; undefined if none is configured. Error messages contain neither,
 * because they are logged, and readers of the log may not be allowed to see them.
 */
export function readWebhook(env: Environment): WebhookSettings | undefined {
  const {
    HOLDFAST_WEBHOOK_URL: url,
    HOLDFAST_WEBHOOK_SECRET: inline,
    HOLDFAST_WEBHOOK_SECRET_FILE: file,
  } = env;
  if (!url) {
    if (inline || file)
      throw new StartFailure(
        "A webhook secret is set but HOLDFAST_WEBHOOK_URL is not.",
        "Set HOLDFAST_WEBHOOK_URL to the receiver's URL, or unset the secret.",
      );
    return undefined;
  }
  return { url: readUrl(url), secret: readSecret(inline, file) };
}

function readUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url !== null && ["http:", "https:"].includes(url.protocol)) return url;
  throw new StartFailure(
    "HOLDFAST_WEBHOOK_URL is not an http or https URL.",
    "Set it to the receiver's URL, such as https://alerts.example.org/holdfast.",
  );
}

function readSecret(inline: string | undefined, file: string | undefined): string {
  if (inline && file)
    throw new StartFailure(
      "HOLDFAST_WEBHOOK_SECRET and HOLDFAST_WEBHOOK_SECRET_FILE are both set.",
      "Unset one of them.",
    );
  if (!inline && !file)
    throw new StartFailure("HOLDFAST_WEBHOOK_URL is set but no webhook secret is.", SECRET_FIX);
  const secret = (inline || readSecretFile(file ?? "")).trim();
  if (secret.length >= SECRET_MIN_LENGTH) return secret;
  throw new StartFailure(
    `The secret of ${inline ? "HOLDFAST_WEBHOOK_SECRET" : "HOLDFAST_WEBHOOK_SECRET_FILE"} has fewer than ${SECRET_MIN_LENGTH} characters.`,
    "Generate a longer secret, for example with 'openssl rand -hex 32', and configure it in the receiver too.",
  );
}

function readSecretFile(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new StartFailure(
      `HOLDFAST_WEBHOOK_SECRET_FILE could not be read: ${error instanceof Error ? error.message : error}.`,
      SECRET_FIX,
    );
  }
}
