import { createHmac, timingSafeEqual } from "node:crypto";
import type { TokenId } from "@holdfast/contract";
import type { PreviewRecord, TokenRecord } from "./records.ts";

const PREFIX = "hfp_";
const FORM = /^hfp_([a-z0-9]{16})_([A-Za-z0-9_-]{43})$/;

/**
 * A token is an id and a signature over all that it is good for: this installation, one preview, its sandbox and port, until a
 * time. Nothing of it is kept that could be presented, and a record that was changed makes it another one's.
 */
export function signToken(secret: string, preview: PreviewRecord, { id, expiresAt }: TokenRecord): string {
  return `${PREFIX}${id}_${signatureOf(secret, preview, id, expiresAt).toString("base64url")}`;
}

/** The id in a token; null where it has not the form of one. */
export function tokenIdIn(token: string): TokenId | null {
  return (FORM.exec(token)?.[1] as TokenId | undefined) ?? null;
}

/** Whether the token was signed for this preview. Takes as long for one that is almost right as for any other. */
export function isSigned(secret: string, token: string, preview: PreviewRecord, known: TokenRecord): boolean {
  const given = Buffer.from(FORM.exec(token)?.[2] ?? "", "base64url");
  const wanted = signatureOf(secret, preview, known.id, known.expiresAt);
  return given.length === wanted.length && timingSafeEqual(given, wanted);
}

function signatureOf(secret: string, preview: PreviewRecord, id: TokenId, expiresAt: number): Buffer {
  const said = [id, preview.id, preview.sandboxId, preview.port, expiresAt].join("\n");
  return createHmac("sha256", secret).update(`holdfast preview\n${said}`).digest();
}
