import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** The outcome of calling one public method of a client against a server. */
export interface Finding {
  /** The client's type, as its users write it. */
  type: string;
  method: string;
  outcome: "works" | "501" | "not applicable";
  /** Why the method does not work, or how it differs if it does. */
  note?: string;
}

const DOCUMENT = join(import.meta.dirname, "..", "..", "..", "docs", "clients.md");
const WORDS = { works: "works", "501": "501", "not applicable": "n/a" } as const;

const sectionOf = (client: string) => ({
  begin: `<!-- conformance: ${client} -->`,
  end: `<!-- end of conformance: ${client} -->`,
});

/** Formats the table for the client's users, with totals. Rows keep the order in which they were found. */
function tableOf(findings: readonly Finding[]): string {
  const count = (outcome: Finding["outcome"]) => findings.filter((each) => each.outcome === outcome).length;
  const cell = (text: string) => text.replaceAll("|", "\\|").replaceAll("\n", " ");
  const rows = findings.map(
    ({ type, method, outcome, note = "" }) => `| \`${type}.${method}\` | ${WORDS[outcome]} | ${cell(note)} |`,
  );
  return [
    `${findings.length} methods: ${count("works")} work, ${count("501")} are refused with 501, ${count("not applicable")} don't apply.`,
    "",
    "| method | outcome | note |",
    "|---|---|---|",
    ...rows,
  ].join("\n");
}

/**
 * Returns the client's table in docs/clients.md, and the table that the findings produce. With
 * HOLDFAST_WRITE_CONFORMANCE=1 the document is updated first.
 */
export async function documented(
  client: string,
  findings: readonly Finding[],
): Promise<{ found: string; wanted: string }> {
  const wanted = tableOf(findings);
  const { begin, end } = sectionOf(client);
  let text = await readFile(DOCUMENT, "utf8");
  const from = text.indexOf(begin);
  const to = text.indexOf(end);
  if (from === -1 || to < from) throw new Error(`docs/clients.md has no place for ${client}`);
  if (process.env.HOLDFAST_WRITE_CONFORMANCE === "1") {
    text = `${text.slice(0, from)}${begin}\n\n${wanted}\n\n${text.slice(to)}`;
    await writeFile(DOCUMENT, text);
  }
  const at = text.indexOf(begin) + begin.length;
  return { found: text.slice(at, text.indexOf(end)).trim(), wanted };
}
