/**
 * Turns the findings of the schema validator into messages that a caller can act on. The messages name fields and
 * allowed values. For a union, they report only what the value lacks compared with the form that it matches best.
 */

/** What the validator found wrong with one value. `schemaPath` leads to the value's schema. */
export interface Finding {
  keyword: string;
  schemaPath: string;
  instancePath: string;
  params: Readonly<Record<string, unknown>>;
  message: string;
}

/**
 * Keyword of the finding that the validator reports for an unknown field. The object that has the field gets a finding
 * too, and only that one is reported to the caller.
 */
const UNKNOWN_FIELD = "boolean";
/**
 * Keywords of findings that suggest that the caller meant another form of the union than the form to which the finding
 * belongs.
 */
const OF_ANOTHER_FORM: ReadonlySet<string> = new Set(["required", "additionalProperties", UNKNOWN_FIELD]);

const MAX_FINDINGS = 3;

/** Describes the findings about a part of a request, such as its body, in one sentence. */
export function describeFindings(findings: readonly Finding[], schema: unknown, place: string): string {
  const sentences = withoutUnions(findings.map((finding) => worded(finding, schema)))
    .filter(({ keyword }) => keyword !== UNKNOWN_FIELD)
    .slice(0, MAX_FINDINGS)
    .map(({ instancePath, message }) => `${place}${instancePath} ${message}`);
  if (sentences.length > 0) return `${sentences.join("; ")}.`;
  // The validator stops after a limited number of findings. If a request has many unknown fields, all reported findings
  // can be about them, and then only the names of these fields are known.
  const names = findings.map(({ instancePath }) => instancePath.slice(instancePath.lastIndexOf("/") + 1));
  return `${place} has unknown fields, among them ${quoteFields(names)}.`;
}

/** Maximum number of field names that a message quotes. The number is limited because a caller chooses the fields. */
const QUOTED_FIELDS = 5;
/** Maximum length of a quoted field name. It is limited because a caller chooses the name. */
const QUOTED_LENGTH = 64;

/** Quotes field names for a message. */
export function quoteFields(names: readonly string[]): string {
  const quoted = names.slice(0, QUOTED_FIELDS).map((name) => JSON.stringify(name.slice(0, QUOTED_LENGTH)));
  const more = names.length > QUOTED_FIELDS ? ` and ${names.length - QUOTED_FIELDS} more` : "";
  return quoted.join(", ") + more;
}

type Node = Readonly<Record<string, unknown>>;

function worded(finding: Finding, schema: unknown): Finding {
  const { keyword, params, message, schemaPath } = finding;
  const rule = RULES[keyword]?.(params, nodeAt(schema, schemaPath)) ?? null;
  return { ...finding, message: rule ?? message };
}

/**
 * Better messages for findings, by the JSON Schema keyword that was violated. The validator's own message for these
 * keywords lacks a fact that the caller needs, such as the allowed values. If a function returns null, the validator's
 * message is used.
 */
const RULES: Readonly<Record<string, (params: Node, node: Node) => string | null>> = {
  required: ({ requiredProperties }) => named("lacks the", "field", requiredProperties),
  additionalProperties: ({ additionalProperties }, { patternProperties }) =>
    patternProperties === undefined
      ? named("has the unknown", "field", additionalProperties)
      : named("has the invalid", "key", additionalProperties),
  enum: (_params, { enum: values }) =>
    Array.isArray(values)
      ? `must be one of ${values.map((value) => JSON.stringify(value)).join(", ")}`
      : null,
  const: (_params, node) => ("const" in node ? `must be ${JSON.stringify(node.const)}` : null),
  minLength: ({ limit }) => (limit === 1 ? "must not be empty" : null),
  minItems: ({ limit }) => (limit === 1 ? "must not be empty" : null),
};

function named(what: string, noun: string, names: unknown): string | null {
  if (!Array.isArray(names) || names.length === 0) return null;
  return `${what} ${names.length === 1 ? noun : `${noun}s`} ${quoteFields(names.map(String))}`;
}

/** Returns the part of the schema at the path; an empty schema if there is none. */
function nodeAt(schema: unknown, path: string): Node {
  let node = schema;
  for (const part of path.split("/").slice(1)) node = (node as Node | undefined)?.[part];
  return (node ?? {}) as Node;
}

/**
 * For each union, keeps only the findings about the form that the value matches best. The validator reports the
 * findings about every form, and most of them do not apply to the form that the caller meant. Inner unions are resolved
 * first.
 */
function withoutUnions(findings: readonly Finding[]): Finding[] {
  const unions = findings.filter(({ keyword }) => keyword === "anyOf");
  unions.sort((one, other) => other.schemaPath.length - one.schemaPath.length);
  return unions.reduce<Finding[]>((left, union) => resolved(left, union), [...findings]);
}

function resolved(findings: Finding[], union: Finding): Finding[] {
  const start = `${union.schemaPath}/anyOf/`;
  const isOf = ({ schemaPath, instancePath }: Finding) =>
    schemaPath.startsWith(start) && `${instancePath}/`.startsWith(`${union.instancePath}/`);
  const forms = Map.groupBy(findings.filter(isOf), ({ schemaPath }) =>
    Number.parseInt(schemaPath.slice(start.length), 10),
  );
  if (forms.size === 0) return findings;
  const rated = [...forms.values()].map((form) => ({ form, distance: distanceOf(form, union) }));
  const least = Math.min(...rated.map(({ distance }) => distance));
  const best = rated.filter(({ distance }) => distance === least).map(({ form }) => form);
  const kept = best.length === 1 ? (best[0] ?? []) : [either(best, union)];
  return findings.flatMap((finding) => (finding === union ? kept : isOf(finding) ? [] : [finding]));
}

/**
 * Returns how much a value differs from one form of a union. Missing fields, unknown fields and a wrong type of the
 * value itself count a hundred times as much as other findings.
 */
function distanceOf(form: readonly Finding[], union: Finding): number {
  const isShape = ({ keyword, instancePath }: Finding) =>
    OF_ANOTHER_FORM.has(keyword) || (keyword === "type" && instancePath === union.instancePath);
  return form.filter(isShape).length * 100 + form.length;
}

/** Combines the findings about several forms of a union into one, if the value matches these forms equally well. */
function either(forms: readonly (readonly Finding[])[], union: Finding): Finding {
  const messages = forms
    .flatMap((form) => form.slice(0, 1))
    .map(({ instancePath, message }) => {
      const inside = instancePath.slice(union.instancePath.length + 1);
      return inside === "" ? message : `${inside} ${message}`;
    });
  const [first = union.message, ...others] = new Set(messages);
  return {
    ...union,
    message: [first, ...others.map((other) => other.replace(/^must be /, ""))].join(" or "),
  };
}
