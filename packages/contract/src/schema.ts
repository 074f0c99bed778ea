import { type Static, type TSchema, Type } from "typebox";

/** A point in time. Like the other schemas in this file, it is shared by the schemas of all resources. */
export const Timestamp = Type.String({ format: "date-time", description: "ISO 8601, UTC" });

export const Nullable = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()]);

export const OneOf = <const Values extends readonly string[]>(
  values: Values,
  options: { description?: string } = {},
) => Type.Unsafe<Values[number]>({ type: "string", enum: [...values], ...options });

const LabelKey = Type.String({ pattern: "^[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?$" });
const LabelValue = Type.String({ maxLength: 256 });
export const LABELS_MAX = 64;
export const Labels = Type.Record(LabelKey, LabelValue, {
  additionalProperties: false,
  maxProperties: LABELS_MAX,
  description: "the caller's own key-value pairs; listings can filter by them",
});
export type Labels = Static<typeof Labels>;

/**
 * Changes of labels. Twice `LABELS_MAX` entries are allowed, so that one update can remove every label and add as many
 * new ones.
 */
export const LabelChanges = Type.Record(LabelKey, Nullable(LabelValue), {
  additionalProperties: false,
  maxProperties: 2 * LABELS_MAX,
  description: "null removes a label; absent labels are left unchanged",
});

export const VariableName = Type.String({ pattern: "^[A-Za-z_][A-Za-z0-9_]{0,127}$" });
export const VariableValue = Type.String({ maxLength: 131_072, pattern: "^[^\\u0000]*$" });
export const VARIABLES_MAX = 512;
export const Environment = Type.Record(VariableName, VariableValue, {
  additionalProperties: false,
  maxProperties: VARIABLES_MAX,
  description: "environment variables",
});
export type Environment = Static<typeof Environment>;

export const AbsolutePath = Type.String({
  minLength: 1,
  maxLength: 4096,
  description: "an absolute path inside the sandbox, without `..`",
});

export const List = <Item extends TSchema>(item: Item, title: string) =>
  Type.Object({ items: Type.Array(item), nextCursor: Nullable(Type.String()) }, { $id: title, title });
