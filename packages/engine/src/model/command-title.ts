const HIDDEN = "***";
const PROGRAM_CHARS = 80;

/** Matches a name whose value is a secret. */
const SECRET_NAME =
  "[\\w-]*(?:passw(?:or)?d|passphrase|secret|token|credential|auth|api[_-]?key|access[_-]?key|private[_-]?key)[\\w-]*";

/** Patterns of secrets, with the text that replaces each. */
const SECRETS: readonly (readonly [RegExp, string])[] = [
  // The user and password in a URL.
  [/\b([a-z][a-z0-9+.-]*:\/\/)[^\s/@'"]+@/gi, `$1${HIDDEN}@`],
  // The credentials in an Authorization header.
  [/\b(bearer|basic)\s+[^\s'"]+/gi, `$1 ${HIDDEN}`],
  // NAME=value, --name=value and "name": value.
  [new RegExp(`(${SECRET_NAME}["']?)(\\s*[=:]\\s*)("[^"]*"|'[^']*'|[^\\s'"]+)`, "gi"), `$1$2${HIDDEN}`],
  // --name value.
  [new RegExp(`(--?${SECRET_NAME}\\s+)("[^"]*"|'[^']*'|[^\\s'"-][^\\s'"]*)`, "gi"), `$1${HIDDEN}`],
  // Keys with a known prefix, and JSON web tokens.
  [/\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[a-z]|AKIA|ASIA|npm|hf)[-_]?[A-Za-z0-9_-]{12,}/g, HIDDEN],
  [/\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?/g, HIDDEN],
  // Any long mix of letters and digits, as in keys and hashes.
  [/\b(?=[A-Za-z0-9+_-]*\d)(?=[A-Za-z0-9+_-]*[A-Za-z])[A-Za-z0-9+_-]{32,}={0,2}/g, HIDDEN],
];

/** Replaces everything that looks like a secret. A secret that looks like an ordinary word is not recognised. */
export const redacted = (text: string): string =>
  SECRETS.reduce((left, [pattern, instead]) => left.replace(pattern, instead), text);

/**
 * Returns the text for a command in the timeline: the name of its program or, with `chars`, the beginning of its
 * command line. Events are kept for days and can be read by everyone with an API key, and arguments often contain
 * secrets.
 */
export function commandTitle(argv: readonly string[], chars: number): string {
  const program = (argv[0] ?? "").split("/").at(-1) ?? "";
  if (chars <= 0) return program.slice(0, PROGRAM_CHARS);
  // Redacts a longer text than the result needs, so that a secret is recognised even if the result cuts it off.
  return redacted(argv.join(" ").slice(0, 2 * chars + LONGEST_SECRET)).slice(0, chars);
}

const LONGEST_SECRET = 4_096;
