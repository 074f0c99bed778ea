import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  checker,
  imageFor,
  isAnything,
  type Known,
  notSupported,
  refuseFields,
} from "@holdfast/adapter-shared";
import {
  CreateSandbox,
  HoldfastError,
  type MountDrive,
  NAME_PATTERN,
  Nullable,
  Port,
} from "@holdfast/contract";
import type { ImageAliases } from "@holdfast/server/adapter";
import { type AskedExpiry, expiryOf, Policy } from "./expiry.ts";
import { type Asked, toLabels } from "./labels.ts";

const Maybe = <Schema extends Parameters<typeof Nullable>[0]>(schema: Schema) =>
  Type.Optional(Nullable(schema));
const Fields = Type.Record(Type.String(), Type.Unknown());

export const Metadata = Type.Object({
  name: Type.Optional(Type.String({ pattern: NAME_PATTERN })),
  displayName: Maybe(Type.String({ maxLength: 256 })),
  externalId: Maybe(Type.String({ maxLength: 64 })),
  labels: Maybe(Type.Record(Type.String(), Type.String())),
});

export const ByExternalId = Type.Object({ externalId: Type.String({ minLength: 1, maxLength: 64 }) });

const Volume = Type.Object({
  name: Type.String({ minLength: 1 }),
  mountPath: Type.String({ minLength: 1 }),
  readOnly: Maybe(Type.Boolean()),
  type: Maybe(Type.String()),
});

const DeclaredPort = Type.Object({
  name: Maybe(Type.String({ maxLength: 64 })),
  protocol: Maybe(Type.String()),
  target: Port,
});

export const SandboxRequest = Type.Object({
  metadata: Type.Optional(Metadata),
  spec: Type.Optional(
    Type.Intersect([
      Fields,
      Type.Object({
        runtime: Maybe(
          Type.Intersect([
            Fields,
            Type.Object({
              image: Maybe(Type.String()),
              memory: Type.Optional(Type.Integer({ minimum: 16, maximum: 1_048_576 })),
              envs: Maybe(Type.Array(Type.Intersect([Fields, Type.Object({ name: Type.String() })]))),
              ttl: Maybe(Type.String()),
              expires: Maybe(Type.String()),
              ports: Maybe(Type.Array(DeclaredPort)),
            }),
          ]),
        ),
        volumes: Maybe(Type.Array(Volume)),
        lifecycle: Maybe(
          Type.Intersect([Fields, Type.Object({ expirationPolicies: Maybe(Type.Array(Policy)) })]),
        ),
      }),
    ]),
  ),
});
export type SandboxRequest = Static<typeof SandboxRequest>;
type Spec = NonNullable<SandboxRequest["spec"]>;

/** The platform's default time after which an idle sandbox is suspended. */
const IDLE_STANDBY_MS = 15_000;
const DEFAULT_IMAGE_NAME = "blaxel/base-image:latest";

interface Reading {
  aliases: ImageAliases | undefined;
  now: number;
  /** Whether the request may return an existing sandbox with the requested name. */
  createIfNotExist: boolean;
}

const check = checker(CreateSandbox);

/**
 * Translates the platform's create request to Holdfast's. If a field is not supported, throws an error that names it.
 */
export function sandboxRequest(
  { metadata = {}, spec = {} }: SandboxRequest,
  reading: Reading,
): CreateSandbox {
  refuseUnknown(spec);
  const { runtime } = spec;
  const image = runtime?.image || DEFAULT_IMAGE_NAME;
  const asked = askedOf(spec);
  const request: CreateSandbox = {
    image: imageFor(image, reading.aliases),
    env: environmentOf(runtime?.envs ?? []),
    lifecycle: { idleStandbyMs: IDLE_STANDBY_MS, ...expiryOf(asked, reading.now) },
    labels: toLabels({
      labels: metadata.labels ?? {},
      externalId: metadata.externalId || undefined,
      displayName: metadata.displayName || undefined,
      image,
      asked,
    }),
    mounts: (spec.volumes ?? []).map(mountOf),
    ifExists: reading.createIfNotExist ? "return" : "fail",
  };
  if (metadata.name) request.name = metadata.name;
  if (runtime?.memory) request.resources = { memoryMb: runtime.memory };
  return check(request, "The sandbox request is not valid");
}

/**
 * Returns the requested values for which Holdfast has no field of the same form. They are stored in labels, so that the
 * client gets them back unchanged.
 */
export function askedOf({ runtime, lifecycle }: Spec): Asked & AskedExpiry {
  const policies = lifecycle?.expirationPolicies ?? [];
  const secrets = (runtime?.envs ?? []).filter(({ secret }) => secret === true).map(({ name }) => name);
  return {
    ...(runtime?.ttl ? { ttl: runtime.ttl } : {}),
    ...(runtime?.expires ? { expires: runtime.expires } : {}),
    ...(policies.length > 0 ? { policies } : {}),
    ...(runtime?.ports?.length ? { ports: runtime.ports } : {}),
    ...(secrets.length > 0 ? { secrets } : {}),
  };
}

const isNothing = (value: unknown) =>
  typeof value === "object" && value !== null && Object.values(value).every((part) => part == null);

/**
 * Supported fields. Region and generation are hints about placement and are ignored, because Holdfast runs all
 * sandboxes in one place.
 */
const SPEC: Known = {
  runtime: isAnything,
  volumes: isAnything,
  lifecycle: isAnything,
  region: isAnything,
  enabled: (value) => value === true,
  network: isNothing,
  vpc: (value) => value === "default",
};
const RUNTIME: Known = {
  image: isAnything,
  memory: isAnything,
  envs: isAnything,
  ttl: isAnything,
  expires: isAnything,
  generation: isAnything,
  ports: isAnything,
  snapshotEnabled: (value) => typeof value === "boolean",
  extraArgs: isNothing,
  terminationGracePeriodSeconds: (value) => value === 0,
};
const LIFECYCLE: Known = { expirationPolicies: isAnything };
const ENV: Known = { name: isAnything, value: isAnything, secret: isAnything };

const WHY: Readonly<Record<string, string>> = {
  network: "A sandbox has only its own loopback network; there is no outbound traffic to route or filter.",
  vpc: "A sandbox has only its own loopback network.",
  enabled: "Pause the sandbox with Holdfast's own API, or delete it.",
  terminatedRetention:
    "The server's configuration sets how long records and output of deleted sandboxes are retained.",
  terminationGracePeriodSeconds: "A delete kills processes at once; stop them first.",
};

export function refuseUnknown(spec: Spec): void {
  refuseFields("spec", spec, SPEC, WHY);
  refuseFields("spec.runtime", spec.runtime ?? {}, RUNTIME, WHY);
  refuseFields("spec.lifecycle", spec.lifecycle ?? {}, LIFECYCLE, WHY);
  for (const env of spec.runtime?.envs ?? []) refuseFields("spec.runtime.envs", env, ENV);
  for (const { protocol } of spec.runtime?.ports ?? [])
    if (protocol === "UDP")
      throw notSupported("spec.runtime.ports with UDP", "Only TCP ports are supported.");
}

export function environmentOf(envs: readonly { name: string; value?: unknown }[]): Record<string, string> {
  return Object.fromEntries(
    envs.map(({ name, value = "" }) => {
      if (typeof value === "string") return [name, value];
      throw new HoldfastError("invalid_request", {
        message: `body/spec/runtime/envs: the value of ${JSON.stringify(name.slice(0, 80))} is not a string.`,
      });
    }),
  );
}

/** Translates a volume to a mount. A volume is a persistent drive, which the volume's name identifies. */
function mountOf({ name, mountPath, readOnly, type }: Static<typeof Volume>): MountDrive {
  if (type === "ephemeral") {
    throw notSupported("spec.volumes of type ephemeral", "The sandbox's own disk is ephemeral storage.");
  }
  return { drive: name, path: mountPath, readOnly: readOnly ?? false };
}
