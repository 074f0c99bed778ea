import { createHmac } from "node:crypto";
import type { AlertMessage, Notifier } from "@holdfast/engine";
import type { Scrub } from "./errors.ts";
import { scrubbed } from "./scrubbed.ts";
import { VERSION } from "./version.ts";

export interface WebhookSettings {
  /** May have credentials, and tokens in its path: it is told to nobody. */
  url: URL;
  secret: string;
}

/** The names of what a receiver checks. */
export const WEBHOOK_HEADERS = {
  delivery: "holdfast-delivery",
  timestamp: "holdfast-timestamp",
  signature: "holdfast-signature",
} as const;

/** Over the time as well: a message that somebody kept can't be passed off as a new one. */
export const signatureOf = (secret: string, timestamp: string, body: string): string =>
  `sha256=${createHmac("sha256", secret).update(`${timestamp}.${body}`).digest("hex")}`;

/**
 * Posts messages about alerts to one URL, signed. Any 2xx is taken for "taken"; a redirect is not followed, because a signed
 * message is for one receiver; the answer's body is not read, because nothing in it could change what is done. What is
 * said of a failure has neither the URL nor the secret in it.
 */
export function createWebhook(
  { url, secret }: WebhookSettings,
  { installation, scrub, now = Date.now }: { installation: string; scrub: Scrub; now?: () => number },
): Notifier {
  const { target, authorization } = withoutCredentials(url);
  return {
    async deliver(message, signal) {
      const body = JSON.stringify(scrubbed(bodyOf(message, installation), scrub));
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
        throw new Error(`The receiver could not be reached: ${reasonOf(error)}.`);
      });
      await response.body?.cancel().catch(() => undefined);
      if (!response.ok) throw new Error(`The receiver answered ${response.status}.`);
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

/** A URL with a user in it can't be asked for as it is. */
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

/** The code of what lies beneath: sentences of the network's own may quote the URL. */
function reasonOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  if (cause instanceof Error && "code" in cause && typeof cause.code === "string") return cause.code;
  return cause instanceof Error ? cause.name : "unknown why";
}
