/**
 * Checks docs/requirements.md: every test file that it names must exist, and the file must contain each part of a test
 * name that is quoted beside it.
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const TOP = fileURLToPath(new URL("..", import.meta.url));
const DOCUMENT = "docs/requirements.md";
/** Matches a file name in backquotes, or a test name in typographic quotation marks. */
const MENTION =
  /`((?:test|drivers|adapters|engine|server|daemon|store|keeper|cli|sdk|simulator|contract)\/[^`]+\.ts)`|“([^”]+)”/g;

function pathOf(name: string): string {
  if (name.startsWith("test/")) return name;
  const [room = "", ...rest] = name.split("/");
  if (room === "drivers") return join("packages", name);
  if (room === "adapters") return join("packages", room, rest[0] ?? "", "src", ...rest.slice(1));
  return join("packages", room, "src", ...rest);
}

/**
 * Returns whether the source contains the test name. `…` in the name stands for omitted text. If a table of cases
 * generates the name, the name is compared with the title pattern of that table.
 */
function isIn(source: string, name: string): boolean {
  const parts = name.split("›").flatMap((part) => part.split("…"));
  return parts
    .map((part) => part.trim())
    .every((part) => part === "" || source.includes(part) || isFromTable(source, part));
}

/**
 * Returns whether a title in the source with placeholders (`%s`, `$name`, `${…}`) could have produced the test name.
 */
function isFromTable(source: string, name: string): boolean {
  for (const [, title = ""] of source.matchAll(
    /\((?:\n\s*)?["`]([^"`\n]*(?:%[sdjo]|\$\w|\$\{)[^"`\n]*)["`]/g,
  )) {
    const pattern = title
      .split(/%[sdjo]|\$\{[^}]*\}|\$\w+/)
      .map((text) => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join(".+");
    if (new RegExp(`^${pattern}$`).test(name)) return true;
  }
  return false;
}

const problems: string[] = [];
for (const [index, line] of readFileSync(join(TOP, DOCUMENT), "utf8").split("\n").entries()) {
  if (!line.startsWith("|")) continue;
  let source: string | null = null;
  let file = "";
  for (const [, named, quoted] of line.matchAll(MENTION)) {
    if (named !== undefined) {
      file = pathOf(named);
      const exists = existsSync(join(TOP, file));
      source = exists ? readFileSync(join(TOP, file), "utf8") : null;
      if (!exists) problems.push(`${DOCUMENT}:${index + 1}: ${file} does not exist`);
    } else if (quoted !== undefined && source !== null && !isIn(source, quoted)) {
      problems.push(`${DOCUMENT}:${index + 1}: ${file} has no test “${quoted}”`);
    }
  }
}
for (const problem of problems) console.error(problem);
if (problems.length > 0) process.exitCode = 1;
else console.log(`current  ${DOCUMENT}`);
