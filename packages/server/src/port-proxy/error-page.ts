import type { ErrorCode } from "@holdfast/contract";
import type { WireError } from "../ports/wire-error.ts";

const ESCAPES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};
const escaped = (text: string): string => text.replace(/[&<>"']/g, (sign) => ESCAPES[sign] ?? sign);

type VisibleError = WireError["body"]["error"];

/**
 * Codes of errors about access. They have a hint of their own, because their hints in the error registry are written
 * for callers of the API and not for visitors.
 */
const ACCESS: ReadonlySet<ErrorCode> = new Set(["unauthorized", "preview_denied"]);
const ACCESS_HINT = "Ask the owner of this page for a new link.";

/**
 * Replaces the hint of an error about access, because any visitor of a preview's URL may get such an error. Other
 * errors keep their hints, which are written for the program that made the request.
 */
export const forVisitor = (error: VisibleError): VisibleError =>
  ACCESS.has(error.code) ? { ...error, hint: ACCESS_HINT } : error;

/** Returns the hint for a visitor, who has the preview's URL, but neither a key nor a shell on the server's machine. */
function visitorHint({ code, retryable }: VisibleError): string {
  if (ACCESS.has(code)) return ACCESS_HINT;
  return retryable ? "Try again in a moment." : "Ask the owner of this page what to do.";
}

/** Renders the HTML page for a browser whose port request failed. */
export function renderErrorPage(status: number, error: VisibleError): string {
  const { code, message, requestId } = error;
  const hint = visitorHint(error);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${status} · Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}
code,small{opacity:.7}</style></head>
<body><h1>${escaped(message)}</h1><p>${escaped(hint)}</p><small><code>${escaped(code)}</code> · ${escaped(requestId)}</small></body></html>
`;
}
