import type { WireError } from "../errors.ts";

const ESCAPES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};
const escaped = (text: string): string => text.replace(/[&<>"']/g, (sign) => ESCAPES[sign] ?? sign);

/** What somebody sees whose browser went to a port that can't be shown. */
export function errorPage(
  status: number,
  { code, message, hint, requestId }: WireError["body"]["error"],
): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${status} · Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}
code,small{opacity:.7}</style></head>
<body><h1>${escaped(message)}</h1><p>${escaped(hint)}</p><small><code>${escaped(code)}</code> · ${escaped(requestId)}</small></body></html>
`;
}
