const HIDDEN = "***";
const PROGRAM_CHARS = 80;
/** A secret is recognised up to this length, even if the title shows only its beginning. */
const LONGEST_SECRET = 4_096;

/** Words in the name of an option, variable, header or field whose value is a secret. */
const SECRET_WORD =
  "(?:pass(?!ive)|pwd|key(?!board|word)|sig(?!nal)|cookie|token|secret|auth(?!or(?!iz))|credential)";
/**
 * At most 64 characters before and after the word are matched, so that the time to search a long text grows only
 * linearly.
 */
const SECRET_NAME = `[\\w.-]{0,64}${SECRET_WORD}[\\w.-]{0,64}`;

/** Options of programs whose value is a secret although their name does not show it. */
const SECRET_OPTIONS: Readonly<Record<string, readonly string[]>> = {
  "7z": ["-p"],
  curl: ["-u", "--user", "-U", "-b", "-E", "--cert"],
  http: ["-a"],
  https: ["-a"],
  ldapsearch: ["-w"],
  mongosh: ["-p"],
  mysql: ["-p"],
  mysqldump: ["-p"],
  "redis-cli": ["-a"],
  smbclient: ["-U"],
  sshpass: ["-p"],
  unzip: ["-P"],
  zip: ["-P"],
};

/** Secrets within a text, with the text that replaces each. */
const SECRETS: readonly (readonly [RegExp, string])[] = [
  // A key or certificate in PEM. Its end may have been cut off.
  [/-----BEGIN [^-]*-----[\s\S]*?(?:-----END [^-]*-----|$)/g, HIDDEN],
  // The user and password in a URL. The password may contain slashes and at signs.
  [/\b([a-z][a-z0-9+.-]{0,32}:\/\/)(?:[^\s/@'":]*:[^\s'"]*|[^\s/@'"]+)@/gi, `$1${HIDDEN}@`],
  // The credentials in an Authorization header.
  [/\b(bearer|basic)\s+[^\s'"]+/gi, `$1 ${HIDDEN}`],
  // NAME=value, --name=value, ?name=value and "name": value.
  [new RegExp(`(${SECRET_NAME}["']?)(\\s*[=:]\\s*)("[^"]*"|'[^']*'|[^\\s'"]+)`, "gi"), `$1$2${HIDDEN}`],
  // Keys with a known prefix, and JSON web tokens.
  [/\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[a-z]|AKIA|ASIA|npm|hf)[-_]?[A-Za-z0-9_-]{12,}/g, HIDDEN],
  [/\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?/g, HIDDEN],
  // Any long mix of letters and digits, as in keys and hashes.
  [/\b(?=[A-Za-z0-9+_-]*\d)(?=[A-Za-z0-9+_-]*[A-Za-z])[A-Za-z0-9+_-]{32,}={0,2}/g, HIDDEN],
];

/**
 * A word of a shell command. Quotes belong to the word. If an opening quote has no closing quote, the word includes the
 * rest of the command.
 */
const WORD = /(?:"[^"]*"?|'[^']*'?|[^\s"'])+/g;
const SECRET_OPTION = new RegExp(`^--?${SECRET_NAME}$`, "i");
/** A word that consists of a name and its value, such as an assignment or a header. */
const NAMED_VALUE = new RegExp(`^(["']?-{0,2}${SECRET_NAME}\\s*[=:]\\s*)[^]+$`, "i");

/**
 * Replaces the secrets in the words of one command. Each word must be passed to `take`, in the order of the command.
 */
class WordRedaction {
  readonly #options = new Set<string>();
  #isValueNext = false;

  /** Returns the word without secrets. `inner` redacts a word that contains no option and no named value. */
  take(word: string, inner: (word: string) => string): string {
    const bare = word.replace(/^["']|["']$/g, "");
    if (this.#isValueNext) {
      this.#isValueNext = false;
      return HIDDEN;
    }
    this.#isValueNext = SECRET_OPTION.test(bare) || this.#options.has(bare);
    if (this.#isValueNext) return word;
    for (const option of this.#options) if (isJoined(bare, option)) return `${option}${HIDDEN}`;
    for (const option of SECRET_OPTIONS[programOf(bare)] ?? []) this.#options.add(option);
    const named = NAMED_VALUE.exec(word);
    return named === null ? inner(word) : `${named[1]}${HIDDEN}`;
  }
}

/** Whether a word is a short option and its value without a space, such as -psecret. */
const isJoined = (word: string, option: string): boolean =>
  /^-[^-]$/.test(option) && word.startsWith(option) && word.length > option.length;

const programOf = (path: string): string => path.split("/").at(-1) ?? "";

/** Replaces everything that looks like a secret. A secret that looks like an ordinary word is not recognised. */
export function redacted(text: string): string {
  const words = new WordRedaction();
  const clean = SECRETS.reduce((left, [pattern, instead]) => left.replace(pattern, instead), text);
  return clean.replace(WORD, (word) => words.take(word, (other) => other));
}

/**
 * Replaces the secrets in the arguments of a command. An argument that is the value of a secret is replaced as a whole,
 * whatever it contains. An argument may also be a command line for a shell.
 */
function redactedArguments(argv: readonly string[]): string[] {
  const words = new WordRedaction();
  return argv.map((argument) => words.take(argument, redacted));
}

/**
 * Returns the text for a command in the timeline: the name of its program if `chars` is 0, otherwise the beginning of
 * its command line, without secrets. Secrets are removed because arguments often contain them, and events are kept for
 * days and can be read by everyone with an API key.
 */
export function commandTitle(argv: readonly string[], chars: number): string {
  if (chars <= 0) return programOf(argv[0] ?? "").slice(0, PROGRAM_CHARS);
  // Redacts a longer text than the result needs, so that a secret is recognised even if the result cuts it off.
  let left = 2 * chars + LONGEST_SECRET;
  const beginning: string[] = [];
  for (const argument of argv) {
    if (left <= 0) break;
    beginning.push(argument.slice(0, left));
    left -= argument.length + 1;
  }
  return redactedArguments(beginning).join(" ").slice(0, chars);
}
