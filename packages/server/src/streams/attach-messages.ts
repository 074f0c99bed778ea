/** The text messages that an attached client may send. Their content is not trusted. */
import { type Static, type TSchema, Type, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { HoldfastError, TerminalSize } from "@holdfast/contract";
import { SignalExec } from "../http/schemas.ts";

const strict = { additionalProperties: false } as const;

const Resize = Type.Object({ type: Type.Literal("resize"), ...TerminalSize.properties }, strict);
const Signal = Type.Object({ type: Type.Literal("signal"), ...SignalExec.properties }, strict);
const Stdin = Type.Object(
  {
    type: Type.Literal("stdin"),
    data: Type.Optional(Type.String({ pattern: "^[A-Za-z0-9+/]*={0,2}$", description: "base64" })),
    offset: Type.Optional(Type.Integer({ minimum: 0 })),
    end: Type.Optional(Type.Boolean()),
  },
  strict,
);
const Detach = Type.Object({ type: Type.Literal("detach") }, strict);

export type ClientMessage =
  | Static<typeof Resize>
  | Static<typeof Signal>
  | Static<typeof Stdin>
  | Static<typeof Detach>;

const compile = (schema: TSchema) =>
  TypeBoxValidatorCompiler({ schema, method: "GET", url: "", httpPart: "body" });
const CHECKS = {
  resize: compile(Resize),
  signal: compile(Signal),
  stdin: compile(Stdin),
  detach: compile(Detach),
} as const satisfies Record<ClientMessage["type"], unknown>;

/** Parses a client's message. If it is malformed, throws `invalid_request` with the reason. */
export function readMessage(text: string): ClientMessage {
  const value = parse(text);
  const type = typeof value === "object" && value !== null && "type" in value ? value.type : undefined;
  if (typeof type !== "string" || !Object.hasOwn(CHECKS, type)) {
    throw malformed(`A message must have a type: ${Object.keys(CHECKS).join(", ")}.`);
  }
  const result: unknown = CHECKS[type as ClientMessage["type"]](value);
  const { error } = result as { error?: { instancePath: string; message?: string }[] };
  if (error === undefined) return value as ClientMessage;
  const [finding] = error;
  throw malformed(`${type}${finding?.instancePath ?? ""} ${finding?.message ?? "is not valid"}.`);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw malformed("A text message must be JSON; send bytes for stdin as a binary message.");
  }
}

const malformed = (message: string) => new HoldfastError("invalid_request", { message });
