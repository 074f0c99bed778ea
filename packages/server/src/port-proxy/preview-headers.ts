/** The headers that a preview adds to each request to the program and to each response from it. */

import { HoldfastError } from "@holdfast/contract";
import type { PreviewHeaders } from "@holdfast/engine";
import { ownedByServer } from "./headers.ts";

/** Maximum number of headers that a preview adds to a request, and maximum number that it adds to a response. */
const HEADERS_MAX = 64;
/** Limit on the total length of the names and values of the added headers, for a request and for a response. */
const HEADERS_MAX_BYTES = 16_384;

const NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/i;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

type Given = Readonly<Record<string, string>> | null | undefined;

/**
 * Checks the headers that a new preview is to add. Headers that delimit a message or belong to one connection are
 * refused, because with a wrong value a receiver could parse one message as two. `where` names the request's field in
 * errors.
 */
export function checkPreviewHeaders(where: string, request: Given, response: Given): PreviewHeaders {
  return {
    request: checked(`${where}.requestHeaders`, request ?? {}),
    response: checked(`${where}.responseHeaders`, response ?? {}),
  };
}

function checked(where: string, headers: Readonly<Record<string, string>>): Record<string, string> {
  const all = Object.entries(headers);
  const bytes = all.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
  if (all.length > HEADERS_MAX || bytes > HEADERS_MAX_BYTES)
    throw invalid(`${where} exceeds ${HEADERS_MAX} headers or ${HEADERS_MAX_BYTES} characters.`);
  const seen = new Set<string>();
  for (const [name, value] of all) {
    const shown = JSON.stringify(name.slice(0, 80));
    if (!NAME.test(name)) throw invalid(`${where}: ${shown} is not a header name.`);
    if (!VALUE.test(value))
      throw invalid(`${where}: the value of ${shown} has characters that no header can have.`);
    const lower = name.toLowerCase();
    if (ownedByServer(lower)) throw invalid(`${where}: the server sets ${shown} itself.`);
    if (seen.has(lower)) throw invalid(`${where}: ${shown} is there twice.`);
    seen.add(lower);
  }
  return { ...headers };
}

const invalid = (message: string): HoldfastError => new HoldfastError("invalid_request", { message });

const ALLOWED_ORIGIN = "access-control-allow-origin";

/**
 * Whether the request is a CORS preflight that the preview answers itself: one for a preview that sets the header with
 * the allowed origins. Browsers send preflights without credentials, so a preflight could not be admitted to the
 * program in the sandbox.
 */
export function isAnsweredPreflight(
  method: string | undefined,
  headers: Readonly<Record<string, unknown>>,
  { response }: PreviewHeaders,
): boolean {
  const isPreflight =
    method === "OPTIONS" &&
    headers.origin !== undefined &&
    headers["access-control-request-method"] !== undefined;
  return isPreflight && Object.keys(response).some((name) => name.toLowerCase() === ALLOWED_ORIGIN);
}
