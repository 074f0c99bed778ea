import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  CreateSandbox,
  HoldfastError,
  type MountDrive,
  NAME_PATTERN,
  Nullable,
  Port,
} from "@holdfast/contract";
import { checker } from "../checked.ts";
import { type ImageAliases, imageFor } from "../image-aliases.ts";
import { isAnything, type Known, notSupported, refuseFields } from "../refusals.ts";
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

/** The platform's own: a sandbox that nobody calls sleeps after this long. */
const IDLE_STANDBY_MS = 15_000;
const DEFAULT_IMAGE_NAME = "blaxel/base-image:latest";

export interface Reading {
  aliases: ImageAliases | undefined;
  now: number;
  /** Whether one that exists is as good as a new one. */
  createIfNotExist: boolean;
}

const check = checker(CreateSandbox);

/** A request for a sandbox in Holdfast's words. What asks for something that it would not get is refused by its field. */
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
  return check(request, "The sandbox that was asked for can't be had");
}

/** What was asked for in words that have no field here, and is told in the same ones. */
export function askedOf({ runtime, lifecycle }: Spec): Asked & AskedExpiry {
  const policies = lifecycle?.expirationPolicies ?? [];
  return {
    ...(runtime?.ttl ? { ttl: runtime.ttl } : {}),
    ...(runtime?.expires ? { expires: runtime.expires } : {}),
    ...(policies.length > 0 ? { policies } : {}),
    ...(runtime?.ports?.length ? { ports: runtime.ports } : {}),
  };
}

const isNothing = (value: unknown) =>
  typeof value === "object" && value !== null && Object.values(value).every((part) => part == null);

/** Region and generation are places, and here is only one. */
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
  network:
    "A sandbox's network is its own loopback: nothing leaves it, and there is nothing to route or to filter.",
  vpc: "A sandbox's network is its own loopback.",
  enabled: "Pause it with Holdfast's own API, or delete it.",
  terminatedRetention:
    "Records and output of deleted sandboxes are kept for as long as the server is configured to.",
  terminationGracePeriodSeconds: "A delete ends processes at once; stop them before.",
};

export function refuseUnknown(spec: Spec): void {
  refuseFields("spec", spec, SPEC, WHY);
  refuseFields("spec.runtime", spec.runtime ?? {}, RUNTIME, WHY);
  refuseFields("spec.lifecycle", spec.lifecycle ?? {}, LIFECYCLE, WHY);
  for (const env of spec.runtime?.envs ?? []) refuseFields("spec.runtime.envs", env, ENV);
  for (const { protocol } of spec.runtime?.ports ?? [])
    if (protocol === "UDP") throw notSupported("spec.runtime.ports with UDP", "Ports here are TCP.");
}

export function environmentOf(envs: readonly { name: string; value?: unknown }[]): Record<string, string> {
  return Object.fromEntries(
    envs.map(({ name, value = "" }) => {
      if (typeof value === "string") return [name, value];
      throw new HoldfastError("invalid_request", {
        message: `body/spec/runtime/envs: the value of ${JSON.stringify(name.slice(0, 80))} is no text.`,
      });
    }),
  );
}

/** A volume is persistent and has a name, and so has a drive: the drive of that name is what is mounted. */
function mountOf({ name, mountPath, readOnly, type }: Static<typeof Volume>): MountDrive {
  if (type === "ephemeral") {
    throw notSupported("spec.volumes of type ephemeral", "The sandbox's own disk is one.");
  }
  return { drive: name, path: mountPath, readOnly: readOnly ?? false };
}
