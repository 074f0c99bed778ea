/**
 * Rejects unclear phrases and suggests plain words. It reads the string literals of production code in TypeScript and C
 * (errors, hints, help, events, alerts, findings and log lines) and, for the worst of the phrases, all comments and
 * test names. It also rejects the same words in identifiers, except in tests.
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { commentsIn } from "./comments.ts";

const TOP = fileURLToPath(new URL("..", import.meta.url));

interface Phrase {
  phrase: RegExp;
  instead: string;
}

/**
 * Phrases that are rejected everywhere: there is a usual word for each, or the phrase hides the subject of its
 * sentence.
 */
const WORST: readonly Phrase[] = [
  { phrase: /\btold\b/i, instead: "reported, returned, logged" },
  { phrase: /\bby order\b/i, instead: "on request" },
  { phrase: /\bunder way\b/i, instead: "in progress" },
  { phrase: /\bgo(es)? on\b/i, instead: "continues, keeps running" },
  { phrase: /\banew\b/i, instead: "again" },
  { phrase: /\b(whoever|somebody|someone|nobody)\b/i, instead: "the caller, another client, no client" },
  { phrase: /\bbroken off\b/i, instead: "aborted" },
  { phrase: /\btaken? back\b/i, instead: "revoked" },
  { phrase: /\blet go\b/i, instead: "released, thawed" },
  { phrase: /\b(is|are) (all )?fine\b/i, instead: "does nothing, is allowed, is ignored" },
  { phrase: /\bthe how manieth\b/i, instead: "a number, a position" },
  { phrase: /\bput to sleep\b/i, instead: "suspended, put into standby" },
  { phrase: /\bfell asleep\b/i, instead: "went into standby" },
  { phrase: /\btakes no more\b/i, instead: "accepts no more, refuses" },
];

/** Phrases that are rejected in user-facing strings. */
const PHRASES: readonly Phrase[] = [
  ...WORST,
  { phrase: /\bordered (it|its|a)\b/i, instead: "requested" },
  {
    phrase: /^(What|Of|That which|Those) (is|are|was|were|has|have|it|they)\b/,
    instead: "a sentence that begins with its subject",
  },
  { phrase: /\bthat there (are|is)\b/i, instead: "a number, a position" },
  { phrase: /\b(is|are) over\b(?! \d)/i, instead: "has ended, has passed" },
  { phrase: /\b(is|are) not there\b/i, instead: "is missing, does not exist" },
];

/** Words that are rejected as whole words of camel-case or snake-case names, with what to write instead. */
const IDENTIFIERS: readonly (readonly [words: string, instead: string])[] = [
  ["told", "reported, returned, logged"],
  ["let_go", "release, thaw"],
  ["go_on", "continue, keep"],
  ["rouse", "wake, resume"],
  ["said", "the noun of what it holds: message, response, output"],
];
const IDENTIFIER = /(?<![\w$.])[A-Za-z_$][\w$]*/g;
/**
 * The field `said` of a stored process record is exempt, because renaming it would need a migration of the database.
 */
const STORED = /\bsaid\??:/g;

/**
 * Matches string literals. Only literals that contain a space are checked, because those are sentences or parts of
 * them.
 */
const LITERAL = /"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`/g;

/** Matches the name of a test or of a group of tests. */
const TEST_NAME =
  /\b(?:it|test|describe)(?:\.\w+(?:\([^()]*\))?)*\(\s*(?:"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`)/g;

const FOLDERS = ["packages", "scripts", "test", "bench", "examples"];
const files = execFileSync("git", ["ls-files", "-co", "--exclude-standard", ...FOLDERS], { cwd: TOP })
  .toString()
  .split("\n")
  .filter((file) => /\.(ts|mjs|c|h)$/.test(file) && !file.endsWith(".generated.ts"));

let count = 0;

function check(text: string, phrases: readonly Phrase[], place: string): void {
  for (const { phrase, instead } of phrases) {
    const at = text.search(phrase);
    if (at < 0) continue;
    console.error(`${place}: "${text.slice(Math.max(0, at - 50), at + 50)}": write ${instead}`);
    count += 1;
  }
}

function checkStrings(file: string, source: string): void {
  for (const [index, line] of source.split("\n").entries()) {
    if (/^\s*(\*|\/\/|\/\*)/.test(line)) continue;
    for (const [, quoted, template] of line.replace(/\s\/\/ .*$/, "").matchAll(LITERAL)) {
      const text = quoted ?? template ?? "";
      if (text.includes(" ")) check(text, PHRASES, `${file}:${index + 1}`);
    }
  }
}

/** Checks the names in a line of code, once comments and strings are removed. */
function checkIdentifiers(file: string, source: string): void {
  for (const [index, line] of source.split("\n").entries()) {
    if (/^\s*(\*|\/\/|\/\*)/.test(line)) continue;
    const code = line
      .replace(/\s\/\/ .*$/, "")
      .replaceAll(LITERAL, "")
      .replaceAll(STORED, "");
    for (const [name] of code.matchAll(IDENTIFIER)) {
      const words = `_${name.replaceAll(/(?<=[a-z\d])(?=[A-Z])/g, "_").toLowerCase()}_`;
      const wrong = IDENTIFIERS.find(([each]) => words.includes(`_${each}_`));
      if (wrong === undefined) continue;
      console.error(`${file}:${index + 1}: the name ${name}: write ${wrong[1]}`);
      count += 1;
    }
  }
}

/** Whether the file is production code of a package. Tests, `testing/` folders and the simulator are not. */
const isProduction = (file: string): boolean =>
  /^packages\/.*\.(ts|c|h)$/.test(file) && !/\.test\.ts$|\/(testing|simulator|fixtures)\//.test(file);

for (const file of files) {
  const source = readFileSync(join(TOP, file), "utf8");
  if (isProduction(file)) checkStrings(file, source);
  for (const { line, text } of commentsIn(source)) check(text, WORST, `${file}:${line}`);
  if (!file.endsWith(".test.ts")) {
    checkIdentifiers(file, source);
    continue;
  }
  for (const match of source.matchAll(TEST_NAME))
    check(match[1] ?? match[2] ?? "", WORST, `${file}:${source.slice(0, match.index).split("\n").length}`);
}
if (count > 0) process.exitCode = 1;
else console.log("phrases  user-facing strings, comments and test names are plain");
