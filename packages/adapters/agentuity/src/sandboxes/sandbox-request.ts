import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  checker,
  fieldsOf,
  imageFor,
  isAnything,
  type Known,
  notSupported,
  refuseFields,
} from "@holdfast/adapter-shared";
import { CreateSandbox, isCheckpointId, type Lifecycle, Port, type Resources } from "@holdfast/contract";
import type { ImageAliases } from "@holdfast/server/adapter";
import { durationIn } from "../durations.ts";
import { Command, refuseStreams, Streams } from "../executions/command-request.ts";
import { FilesIn } from "../files/files-in.ts";
import { type Details, detailsToLabels } from "./details.ts";
import { coresIn, megabytesIn } from "./quantities.ts";

const Text = Type.Optional(Type.String());

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
 * Maximum age of a one-shot sandbox. Normally the sandbox is deleted earlier, when a client learns that its command has
 * ended. The maximum age applies if no client asks. The server may also delete the sandbox earlier when the host runs
 * short of resources.
 */
const ONESHOT_TTL_MS = 86_400_000;

const check = checker(CreateSandbox);

/**
 * Translates the platform's create request to Holdfast's. If a field is not supported, throws an error that names it.
 */
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
    resources: body.resources,
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
  return check(request, "The sandbox request is not valid");
}

const ONESHOT: Lifecycle = { ttlMs: ONESHOT_TTL_MS, disposable: true };

const isNothing = (value: unknown) => Array.isArray(value) && value.length === 0;
const KNOWN: Known = {
  ...fieldsOf(SandboxRequest),
  dependencies: isNothing,
  packages: isNothing,
  scopes: isNothing,
};
/**
 * Supported network fields. Outbound network access is always disabled, so a request that disables it explicitly is
 * accepted.
 */
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

/**
 * Returns the checkpoint id that the request gives as its snapshot. A sandbox can start only from a Holdfast
 * checkpoint, which contains a sandbox's files and memory, so any other snapshot id is refused.
 */
function checkpointIn(snapshot: string): string {
  if (isCheckpointId(snapshot)) return snapshot;
  throw notSupported(
    `creating from the snapshot ${JSON.stringify(snapshot.slice(0, 80))}`,
    "Use the id of a disk checkpoint (ckp_…) whose sandbox still exists.",
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
