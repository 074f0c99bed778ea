/** Generates `docs/errors.md` from the error registry, so that the docs always match the server's answers. */
import { fileURLToPath } from "node:url";
import { ERRORS, type ErrorCode } from "./src/errors.ts";

export const file = fileURLToPath(new URL("../../docs/errors.md", import.meta.url));

const HEAD = `# Errors

Generated from \`packages/contract/src/errors.ts\`; do not edit. The shape of an error response and the meaning of
\`dispatched\` are described in [api.md](api.md#errors).

- **4xx** errors are caused by the request, **5xx** errors by the server.
- **again: same** – send the same request again after a pause; the server expects it.
- **again: later** – the same request can succeed when the condition named in the message has changed. Check
  \`dispatched\` first if the request has effects.
- **again: no** – the same request gets the same answer.

| code | status | again | what happened | what to do next |
|---|---|---|---|---|
`;

function again(code: ErrorCode): "same" | "later" | "no" {
  const { status, retryable } = ERRORS[code];
  if (!retryable) return "no";
  return status === 503 ? "same" : "later";
}

const cell = (text: string): string => text.replaceAll("|", "\\|");

export async function generate(): Promise<string> {
  const codes = Object.keys(ERRORS) as ErrorCode[];
  const rows = codes
    .sort((a, b) => ERRORS[a].status - ERRORS[b].status)
    .map((code) => {
      const { status, message, hint } = ERRORS[code];
      return `| \`${code}\` | ${status} | ${again(code)} | ${cell(message)} | ${cell(hint)} |\n`;
    });
  return HEAD + rows.join("");
}
