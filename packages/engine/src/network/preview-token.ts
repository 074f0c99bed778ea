import { createHmac, timingSafeEqual } from "node:crypto";
import type { TokenId } from "@holdfast/contract";
import type { PreviewRecord, TokenRecord } from "../ports/records.ts";

const PREFIX = "hfp_";
const FORM = /^hfp_([a-z0-9]{16})_([A-Za-z0-9_-]{43})$/;

/**
 * Signs a token. A token consists of an id and a signature over everything that it grants: this installation, one
 * preview, its sandbox, its port and the expiry. The signature is not stored: each check computes it again from the
 * preview's record, so a change of one of these values in the record invalidates the token.
 */
export function signToken(secret: string, preview: PreviewRecord, { id, expiresAt }: TokenRecord): string {
  return `${PREFIX}${id}_${signatureOf(secret, preview, id, expiresAt).toString("base64url")}`;
}

/** Returns the id in a token; null if the text does not have the form of a token. */
export function tokenIdIn(token: string): TokenId | null {
  return (FORM.exec(token)?.[1] as TokenId | undefined) ?? null;
}

/**
 * Whether the token was signed for this preview. Compares in constant time. The texts are compared and not the decoded
 * signatures: the last character of a signature has two bits that decoding ignores, so four texts decode to the same
 * signature, and only one of them is the token.
 */
export function isSigned(secret: string, token: string, preview: PreviewRecord, known: TokenRecord): boolean {
  const given = Buffer.from(token);
  const wanted = Buffer.from(signToken(secret, preview, known));
  return given.length === wanted.length && timingSafeEqual(given, wanted);
}

function signatureOf(secret: string, preview: PreviewRecord, id: TokenId, expiresAt: number): Buffer {
  const signed = [id, preview.id, preview.sandboxId, preview.port, expiresAt].join("\n");
  return createHmac("sha256", secret).update(`holdfast preview\n${signed}`).digest();
}
