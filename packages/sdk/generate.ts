/**
 * Generates `src/types.generated.ts` from the contract's schemas and error registry, so that the SDK has them without
 * depending on the contract. `node packages/sdk/generate.ts` writes the file; `npm run check` compares it.
 */
import { writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import {
  AlertList,
  AuditReport,
  Backup,
  Cause,
  CheckpointList,
  CreateCheckpoint,
  CreateDrive,
  CreatePreview,
  CreatePreviewToken,
  CreateSandbox,
  DeliveryList,
  Diagnosis,
  DriveList,
  ERRORS,
  ErrorBody,
  EventList,
  ExecList,
  FileChange,
  FileList,
  FileSearch,
  Health,
  ImageList,
  LogList,
  MountDrive,
  MountList,
  PreviewList,
  PreviewToken,
  PreviewTokenList,
  ProcessList,
  ResourceReport,
  SandboxList,
  SandboxStory,
  StartExec,
  StartProcess,
  Stats,
  StreamRecord,
  SweepReport,
  Unpacked,
  UpdateDrive,
  UpdateSandbox,
  UsageList,
} from "@holdfast/contract";
import { compile } from "json-schema-to-typescript";

export const file = fileURLToPath(new URL("./src/types.generated.ts", import.meta.url));

const ROOTS = [
  AlertList,
  AuditReport,
  Backup,
  Cause,
  CheckpointList,
  CreateCheckpoint,
  CreateDrive,
  CreatePreview,
  CreatePreviewToken,
  CreateSandbox,
  DeliveryList,
  Diagnosis,
  DriveList,
  ErrorBody,
  EventList,
  ExecList,
  FileChange,
  FileList,
  FileSearch,
  Health,
  ImageList,
  LogList,
  MountDrive,
  MountList,
  PreviewList,
  PreviewToken,
  PreviewTokenList,
  ProcessList,
  ResourceReport,
  SandboxList,
  SandboxStory,
  StartExec,
  StartProcess,
  Stats,
  StreamRecord,
  SweepReport,
  Unpacked,
  UpdateDrive,
  UpdateSandbox,
  UsageList,
];

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type Definitions = Record<string, Json>;

/**
 * Schemas whose names are changed: the schema of an error body is named `Error`, which is already a type in TypeScript.
 */
const RENAMED: Record<string, string> = { Error: "ErrorBody" };

/**
 * Keywords that the compiler cannot check. They are left out, because generated types are more readable without them.
 */
const RUN_TIME_ONLY = new Set(["$id", "pattern", "minItems", "maxItems"]);

/**
 * Collects every schema with an `$id` as one definition and replaces it by a reference, so that a `Sandbox` in a list
 * and a single `Sandbox` are the same type.
 */
function collect(schema: Json, definitions: Definitions): Json {
  if (Array.isArray(schema)) return schema.map((item) => collect(item, definitions));
  if (schema === null || typeof schema !== "object") return schema;
  const { $defs, $ref, patternProperties } = schema;
  if ($defs !== undefined) collect($defs, definitions);
  if (typeof $ref === "string") return { $ref: `#/definitions/${$ref}` };
  if (patternProperties !== null && typeof patternProperties === "object") {
    const [value] = Object.values(patternProperties);
    return {
      type: "object",
      additionalProperties: collect(value ?? {}, definitions),
      ...(schema.description === undefined ? {} : { description: schema.description }),
    };
  }
  const plain = Object.fromEntries(
    Object.entries(schema)
      .filter(([key]) => !RUN_TIME_ONLY.has(key))
      .map(([key, value]) => [key, collect(value, definitions)]),
  );
  if (typeof schema.$id !== "string") return plain;
  const name = RENAMED[schema.$id] ?? schema.$id;
  definitions[name] = { ...plain, title: name };
  return { $ref: `#/definitions/${name}` };
}

/** Names for union types that users of the SDK need, and that the schemas contain without a name. */
const ALIASES = `
/** Every code an error from the server can carry. */
export type ErrorCode = ErrorBody["error"]["code"];
export type Dispatched = ErrorBody["error"]["dispatched"];
export type SandboxStatus = Sandbox["status"];
export type ExecStatus = Exec["status"];
export type ProcessStatus = Process["status"];
export type EventType = Event["type"];
export type FileKind = FileStat["kind"];
export type DriveStatus = Drive["status"];
export type AuditFinding = AuditReport["findings"][number];
export type SweepItem = SweepReport["items"][number];
export type LayerHealth = Stats["sweeps"][number];
export type AlertKind = Alert["kind"];
export type DeliveryState = Delivery["state"];
export type Finding = Diagnosis["findings"][number];
export type FindingKind = Finding["kind"];
export type ProcessUsage = ResourceReport["processes"]["items"][number];
export type UsageSample = ResourceReport["history"][number];
export type LogLevel = LogLine["level"];
export type StoryLine = SandboxStory["lines"][number];
`;

/**
 * The HTTP status of each error code. It is needed for an error within a stream, which has a code only, because the
 * status of the stream was sent before the error occurred.
 */
const STATUSES = `
/** The HTTP status that belongs to each code. */
export const ERROR_STATUSES: Readonly<Record<ErrorCode, number>> = {
${Object.entries(ERRORS)
  .map(([code, { status }]) => `  ${code}: ${status},`)
  .join("\n")}
};
`;

/** Removes the generator's own comments, and joins comments that fit on one line. */
const tidy = (source: string): string =>
  source
    .replace(/export interface Wire \{\n {2}\[k: string\]: unknown;\n\}\n/, "")
    .replace(/ \* This interface was referenced by .*\n \* via the `definition` .*\n/g, "")
    .replace(/\/\*\*\n( \*\n)* \*\/\n/g, "")
    .replace(/ \*\n \*\//g, " */")
    .replace(/\/\*\*\n\s+\* (.*)\n\s+\*\//g, "/** $1 */");

export async function generate(): Promise<string> {
  const definitions: Definitions = {};
  for (const root of ROOTS) collect(JSON.parse(JSON.stringify(root)) as Json, definitions);
  const sorted = Object.fromEntries(Object.entries(definitions).sort(([a], [b]) => (a < b ? -1 : 1)));
  const source = await compile({ definitions: sorted } as Parameters<typeof compile>[0], "Wire", {
    additionalProperties: false,
    bannerComment:
      "/* Generated by packages/sdk/generate.ts from the schemas of @holdfast/contract. Not edited by hand. */\n",
    unreachableDefinitions: true,
    style: { printWidth: 110 },
  });
  return tidy(source) + ALIASES + STATUSES;
}

if (import.meta.main) await writeFile(file, await generate());
