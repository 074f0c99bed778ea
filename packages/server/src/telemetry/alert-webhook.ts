import { createHmac } from "node:crypto";
import type { AlertMessage, Notifier } from "@holdfast/engine";
import type { Scrub } from "../http/scrub.ts";
import { scrubJson } from "../http/scrub-json.ts";
import { VERSION } from "../http/version.ts";

export interface WebhookSettings {
  /** URL of the receiver. It may contain credentials or tokens, so it is never logged or returned. */
  url: URL;
  secret: string;
}

/** Names of the headers that a receiver verifies. */
const WEBHOOK_HEADERS = {
  delivery: "holdfast-delivery",
  timestamp: "holdfast-timestamp",
  signature: "holdfast-signature",
} as const;

/**
 * Returns the signature of a message. The signature covers the time too, so that a recorded message can't be sent again
 * later as a new one.
 */
export const signatureOf = (secret: string, timestamp: string, body: string): string =>
  `sha256=${createHmac("sha256", secret).update(`${timestamp}.${body}`).digest("hex")}`;

/**
 * Posts signed alert messages to one URL. A message counts as delivered if the response has a 2xx status. Redirects are
 * not followed, because a signed message is meant for one receiver. The response body is not read, because it could not
 * change the outcome. Error messages contain neither the URL nor the secret.
 */
export function createWebhook(
  { url, secret }: WebhookSettings,
  { installation, scrub, now = Date.now }: { installation: string; scrub: Scrub; now?: () => number },
): Notifier {
  const { target, authorization } = withoutCredentials(url);
  return {
    async deliver(message, signal) {
      const body = JSON.stringify(scrubJson(bodyOf(message, installation), scrub));
      const timestamp = String(Math.floor(now() / 1000));
      const headers = {
        "content-type": "application/json",
        "user-agent": `holdfast/${VERSION}`,
        ...authorization,
        [WEBHOOK_HEADERS.delivery]: message.id,
        [WEBHOOK_HEADERS.timestamp]: timestamp,
        [WEBHOOK_HEADERS.signature]: signatureOf(secret, timestamp, body),
      };
      const response = await fetch(target, {
        method: "POST",
        headers,
        body,
        signal,
        redirect: "manual",
      }).catch((error: unknown) => {
        signal.throwIfAborted();
        throw new Error(`The webhook receiver could not be reached: ${reasonOf(error)}.`);
      });
      await response.body?.cancel().catch(() => undefined);
      if (!response.ok) throw new Error(`The webhook receiver answered ${response.status}.`);
    },
  };
}

const bodyOf = ({ id, createdAt, alert }: AlertMessage, installation: string) => ({
  id,
  type: alert.state === "firing" ? "alert.fired" : "alert.cleared",
  createdAt: new Date(createdAt).toISOString(),
  installation,
  alert,
});

/** `fetch` refuses URLs that contain credentials, so they are sent as a header. */
function withoutCredentials(url: URL): { target: string; authorization: { authorization?: string } } {
  const target = new URL(url);
  const { username, password } = target;
  target.username = "";
  target.password = "";
  if (username === "" && password === "") return { target: target.href, authorization: {} };
  const pair = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return {
    target: target.href,
    authorization: { authorization: `Basic ${Buffer.from(pair).toString("base64")}` },
  };
}

/** Returns the code of the underlying error. The error's message is not used, because it may quote the URL. */
function reasonOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  if (cause instanceof Error && "code" in cause && typeof cause.code === "string") return cause.code;
  return cause instanceof Error ? cause.name : "unknown error";
}
