import { type Static, Type } from "@fastify/type-provider-typebox";
import { CreateSandbox, isCheckpointId, type Lifecycle, Port, type Resources } from "@holdfast/contract";
import { checker } from "../checked.ts";
import { type ImageAliases, imageFor } from "../image-aliases.ts";
import { fieldsOf, isAnything, type Known, notSupported, refuseFields } from "../refusals.ts";
import { type Details, detailsToLabels } from "./details.ts";
import { durationIn } from "./durations.ts";
import { FilesIn } from "./files-in.ts";
import { coresIn, megabytesIn } from "./quantities.ts";

const Text = Type.Optional(Type.String());

export const Command = Type.Array(Type.String(), { minItems: 1, maxItems: 4_096 });

/** A stream to write to somewhere else can't be had; one that nobody wants need not be told of. */
export const Streams = Type.Object({
  stdout: Text,
  stderr: Text,
  stdin: Text,
  timestamps: Type.Optional(Type.Boolean()),
});
export type Streams = Static<typeof Streams>;

export const SandboxRequest = Type.Object({
  name: Text,
  description: Text,
  projectId: Text,
  runtime: Text,
  runtimeId: Text,
  snapshot: Text,
  resources: Type.Optional(Type.Object({ memory: Text, cpu: Text, disk: Text })),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  network: Type.Optional(Type.Object({ enabled: Type.Optional(Type.Boolean()), port: Type.Optional(Port) })),
  stream: Type.Optional(Streams),
  timeout: Type.Optional(Type.Object({ idle: Text, execution: Text, paused: Text })),
  command: Type.Optional(
    Type.Object({
      exec: Command,
      files: Type.Optional(FilesIn),
      mode: Type.Optional(Type.Union([Type.Literal("oneshot"), Type.Literal("interactive")])),
    }),
  ),
  files: Type.Optional(FilesIn),
  dependencies: Type.Optional(Type.Array(Type.String())),
  packages: Type.Optional(Type.Array(Type.String())),
  metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  scopes: Type.Optional(Type.Array(Type.String())),
});
export type SandboxRequest = Static<typeof SandboxRequest>;

const DEFAULT_RUNTIME = "host";
/**
 * The client of a one-shot deletes nothing: whoever is told of its command's end has it deleted. Should nobody ask, its age
 * ends it, and it may go sooner where the host runs short.
 */
const ONESHOT_TTL_MS = 86_400_000;

const check = checker(CreateSandbox);

/** A request for a sandbox in Holdfast's words. What asks for something that it would not get is refused by its field. */
export function sandboxRequest(
  body: SandboxRequest,
  { aliases, executionId }: { aliases: ImageAliases | undefined; executionId: string | undefined },
): CreateSandbox {
  refuseUnknown(body);
  const runtime = body.runtime ?? body.runtimeId;
  const mode = body.command?.mode ?? "interactive";
  const details: Details = {
    description: body.description,
    projectId: body.projectId,
    metadata: body.metadata,
    runtime,
    mode,
    port: body.network?.port,
    executionId,
  };
  const request: CreateSandbox = {
    labels: detailsToLabels(details),
    lifecycle: { ...lifecycleOf(body.timeout), ...(mode === "oneshot" ? ONESHOT : {}) },
    ...(body.name ? { name: body.name } : {}),
    ...(body.env ? { env: body.env } : {}),
    ...(body.snapshot
      ? { fromCheckpoint: checkpointIn(body.snapshot) }
      : { image: imageFor(runtime ?? DEFAULT_RUNTIME, aliases) }),
  };
  const resources = resourcesOf(body.resources);
  if (resources !== undefined) request.resources = resources;
  return check(request, "The sandbox that was asked for can't be had");
}

const ONESHOT: Lifecycle = { ttlMs: ONESHOT_TTL_MS, disposable: true };

const isNothing = (value: unknown) => Array.isArray(value) && value.length === 0;
const KNOWN: Known = {
  ...fieldsOf(SandboxRequest),
  dependencies: isNothing,
  packages: isNothing,
  scopes: isNothing,
};
/** The way out is closed, which is what is had where it is asked for in so many words. */
const NETWORK: Known = { enabled: (value) => value === false, port: isAnything };
const TIMEOUT: Known = {
  idle: isAnything,
  execution: isAnything,
  paused: (value) => typeof value === "string" && durationIn("body/timeout/paused", value) === 0,
};

function refuseUnknown(body: SandboxRequest): void {
  refuseFields("sandbox", body, KNOWN);
  refuseFields("network", body.network ?? {}, NETWORK);
  refuseFields("timeout", body.timeout ?? {}, TIMEOUT);
  refuseStreams("stream", body.stream);
}

const STREAMS: Known = {
  stdout: (value) => value === "ignore",
  stderr: (value) => value === "ignore",
  stdin: isAnything,
  timestamps: (value) => value === false,
};
export const refuseStreams = (where: string, streams: Streams | undefined): void =>
  refuseFields(where, streams ?? {}, STREAMS);

/** Only what was made here can be begun with: a checkpoint, which is of a sandbox, and its memory too. */
function checkpointIn(snapshot: string): string {
  if (isCheckpointId(snapshot)) return snapshot;
  throw notSupported(
    `creating from the snapshot ${JSON.stringify(snapshot.slice(0, 80))}`,
    "The id of a disk checkpoint (ckp_…) can be given instead, while its sandbox lives.",
  );
}

function lifecycleOf({ idle, execution }: NonNullable<SandboxRequest["timeout"]> = {}): Lifecycle {
  const idleMs = idle ? durationIn("body/timeout/idle", idle) : 0;
  const execMs = execution ? durationIn("body/timeout/execution", execution) : 0;
  return {
    ...(idleMs > 0 ? { idleStandbyMs: idleMs } : {}),
    ...(execMs > 0 ? { maxExecMs: execMs } : {}),
  };
}

function resourcesOf(given: SandboxRequest["resources"] = {}): Partial<Resources> | undefined {
  const { memory, cpu, disk } = given;
  if (!memory && !cpu && !disk) return undefined;
  return {
    ...(memory ? { memoryMb: megabytesIn("body/resources/memory", memory) } : {}),
    ...(cpu ? { cpus: coresIn("body/resources/cpu", cpu) } : {}),
    ...(disk ? { diskMb: megabytesIn("body/resources/disk", disk) } : {}),
  };
}
