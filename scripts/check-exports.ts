/**
 * Reports every `export` that no other file imports. The fix is to remove the word `export`. The compiler then reports
 * the declaration if its own file does not use it either.
 */
import { filesIn, packageExports, resolveImport, sourceOf } from "./imports.ts";

/**
 * Files whose exports count as used: the entry files of the packages, because a package decides itself what it offers,
 * and a file with functions that vitest calls.
 */
const ENTRIES = [...packageExports().values(), "test/setup/global.ts"];

const DECLARATION =
  /^export (?:declare )?(?:async )?(?:abstract )?(?:const|let|function\*?|class|interface|type|enum) ([A-Za-z_$][\w$]*)/gm;
/** Matches an import or export clause with its module, as in `import type { a, b as c } from "./d.ts"`. */
const CLAUSE =
  /^(import|export)\s+(?:type\s+)?((?:[\w$]+\s*,\s*)?(?:\{[^}]*\}|\*(?:\s+as\s+[\w$]+)?|[\w$]+))\s+from\s+"([^"]+)"/gm;
/** Matches an `import()` within an expression or a type, with the names taken from the module if they can be seen. */
const INLINE = /(?:\{([^{}]{0,300})\}\s*=\s*await\s+)?\bimport\(\s*"([^"]+)"\s*\)(?:\)?\.([\w$]+))?/g;
/** Matches the names in braces: `a`, `type a`, `a as b`, and `a: b` in a destructuring. */
const NAMES = /(?:\btype\s+)?([\w$]+)(?:\s*(?:\bas\b|:)\s*([\w$]+))?/g;

interface Reference {
  from: string;
  /** Name in the imported file; `*` stands for all exports of that file. */
  name: string;
  /** Name under which the importing file re-exports the import; null if the file does not re-export it. */
  again: string | null;
}

const files = filesIn().filter((file) => /\.(ts|tsx|mjs)$/.test(file));
const modules = packageExports();

function namesIn(braces: string): { name: string; local: string }[] {
  const text = braces.replaceAll(/\/\/.*$|\/\*.*?\*\//gm, "");
  return [...text.matchAll(NAMES)].map(([, name = "", local]) => ({ name, local: local ?? name }));
}

function referencesOf(file: string, source: string): Reference[] {
  const found: Reference[] = [];
  const add = (specifier: string, name: string, again: string | null = null) => {
    const from = resolveImport(file, specifier, modules);
    if (from !== null) found.push({ from, name, again });
  };
  for (const [, kind, clause = "", specifier = ""] of source.matchAll(CLAUSE)) {
    const isExport = kind === "export";
    const braces = clause.match(/\{([^}]*)\}/)?.[1];
    for (const { name, local } of namesIn(braces ?? "")) add(specifier, name, isExport ? local : null);
    if (clause.includes("*")) add(specifier, "*", isExport && !/\bas\b/.test(clause) ? "*" : null);
  }
  for (const [, braces, specifier = "", member] of source.matchAll(INLINE)) {
    if (member !== undefined && !["then", "catch"].includes(member)) add(specifier, member);
    else if (braces !== undefined) for (const { name } of namesIn(braces)) add(specifier, name);
    else add(specifier, "*");
  }
  return found;
}

const sources = new Map(files.map((file) => [file, sourceOf(file)]));
const references = new Map([...sources].map(([file, source]) => [file, referencesOf(file, source)]));
const used = new Set<string>();

/**
 * Marks an export as used. If the file only re-exports the name from another file, marks the export in that file too.
 */
function use(file: string, name: string): void {
  const key = `${file} ${name}`;
  if (used.has(key)) return;
  used.add(key);
  for (const { from, name: original, again } of references.get(file) ?? []) {
    if (again === null) continue;
    if (again === "*") use(from, name);
    else if (again === name || name === "*") use(from, original);
  }
}

for (const entry of ENTRIES) use(entry, "*");
for (const all of references.values()) {
  for (const { from, name, again } of all) if (again === null) use(from, name);
}

let count = 0;
function report(file: string, name: string): void {
  if (used.has(`${file} ${name}`) || used.has(`${file} *`)) return;
  console.error(`${file}: ${name} is exported, and no other file imports it`);
  count += 1;
}

for (const [file, source] of sources) {
  if (file.endsWith(".generated.ts")) continue;
  for (const [, name = ""] of source.matchAll(DECLARATION)) report(file, name);
  for (const { again } of references.get(file) ?? [])
    if (again !== null && again !== "*") report(file, again);
}
if (count > 0) process.exitCode = 1;
else console.log("exports  every export is imported by another file");
