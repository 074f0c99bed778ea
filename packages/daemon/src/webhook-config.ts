import { readFileSync } from "node:fs";
import { StartFailure } from "./start-failure.ts";
import type { WebhookSettings } from "./webhook.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** Shorter ones can be guessed from one message. */
const SECRET_MIN_LENGTH = 16;

const SECRET_FIX =
  "Set HOLDFAST_WEBHOOK_SECRET_FILE to a file with the secret that the receiver checks signatures with, or HOLDFAST_WEBHOOK_SECRET to the secret itself.";

/**
 * Where alerts are sent, and what they are signed with; undefined where nowhere. No failure quotes the URL or the
 * secret: both may be kept from who reads the log.
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
        "There is a secret for a webhook, and HOLDFAST_WEBHOOK_URL is not set.",
        "Set it to where alerts are to be sent, or unset the secret.",
      );
    return undefined;
  }
  return { url: readUrl(url), secret: readSecret(inline, file) };
}

function readUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url !== null && ["http:", "https:"].includes(url.protocol)) return url;
  throw new StartFailure(
    "HOLDFAST_WEBHOOK_URL is not a URL of http or https.",
    "Set it to where alerts are to be sent, such as https://alerts.example.org/holdfast.",
  );
}

function readSecret(inline: string | undefined, file: string | undefined): string {
  if (inline && file)
    throw new StartFailure(
      "HOLDFAST_WEBHOOK_SECRET and HOLDFAST_WEBHOOK_SECRET_FILE are both set.",
      "Unset one of them.",
    );
  if (!inline && !file)
    throw new StartFailure("HOLDFAST_WEBHOOK_URL is set, and there is no secret.", SECRET_FIX);
  const secret = (inline || readSecretFile(file ?? "")).trim();
  if (secret.length >= SECRET_MIN_LENGTH) return secret;
  throw new StartFailure(
    `The secret of ${inline ? "HOLDFAST_WEBHOOK_SECRET" : "HOLDFAST_WEBHOOK_SECRET_FILE"} has fewer than ${SECRET_MIN_LENGTH} characters.`,
    "Make a longer one, such as by 'openssl rand -hex 32', and give it to the receiver too.",
  );
}

function readSecretFile(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new StartFailure(
      `HOLDFAST_WEBHOOK_SECRET_FILE can't be read: ${error instanceof Error ? error.message : error}.`,
      SECRET_FIX,
    );
  }
}
