import { type Static, Type } from "@fastify/type-provider-typebox";
import { CreateSandbox, HoldfastError, type MountDrive, NAME_PATTERN, Nullable } from "@holdfast/contract";
import { type ImageAliases, imageFor } from "../image-aliases.ts";
import { checker } from "./checked.ts";
import { durationMs } from "./durations.ts";
import { toLabels } from "./labels.ts";
import { isAnything, type Known, notSupported, refuseFields } from "./not-supported.ts";

const Maybe = <Schema extends Parameters<typeof Nullable>[0]>(schema: Schema) =>
  Type.Optional(Nullable(schema));
const Fields = Type.Record(Type.String(), Type.Unknown());

export const Metadata = Type.Object({
  name: Type.Optional(Type.String({ pattern: NAME_PATTERN })),
  displayName: Maybe(Type.String({ maxLength: 256 })),
  externalId: Maybe(Type.String({ maxLength: 64 })),
  labels: Maybe(Type.Record(Type.String(), Type.String())),
});

const Volume = Type.Object({
  name: Type.String({ minLength: 1 }),
  mountPath: Type.String({ minLength: 1 }),
  readOnly: Maybe(Type.Boolean()),
  type: Maybe(Type.String()),
});

const Policy = Type.Object({
  type: Type.String(),
  value: Type.String(),
  action: Maybe(Type.String()),
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
  const ttlMs = lifetimeOf(spec, reading.now);
  const request: CreateSandbox = {
    image: imageFor(image, reading.aliases),
    env: environmentOf(runtime?.envs ?? []),
    lifecycle: { idleStandbyMs: IDLE_STANDBY_MS, ...(ttlMs === null ? {} : { ttlMs }) },
    labels: toLabels({
      labels: metadata.labels ?? {},
      externalId: metadata.externalId || undefined,
      displayName: metadata.displayName || undefined,
      image,
    }),
    mounts: (spec.volumes ?? []).map(mountOf),
    ifExists: reading.createIfNotExist ? "return" : "fail",
  };
  if (metadata.name) request.name = metadata.name;
  if (runtime?.memory) request.resources = { memoryMb: runtime.memory };
  return check(request, "The sandbox that was asked for can't be had");
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
  ports: isNothing,
  snapshotEnabled: (value) => value === false,
  extraArgs: isNothing,
  terminationGracePeriodSeconds: (value) => value === 0,
};
const LIFECYCLE: Known = { expirationPolicies: isAnything };
const ENV: Known = { name: isAnything, value: isAnything, secret: isAnything };

function refuseUnknown(spec: Spec): void {
  refuseFields("spec", spec, SPEC);
  refuseFields("spec.runtime", spec.runtime ?? {}, RUNTIME);
  refuseFields("spec.lifecycle", spec.lifecycle ?? {}, LIFECYCLE);
  for (const env of spec.runtime?.envs ?? []) refuseFields("spec.runtime.envs", env, ENV);
}

function environmentOf(envs: readonly { name: string; value?: unknown }[]): Record<string, string> {
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

/** How long it may live, by whatever ends it first; null where nothing does. */
function lifetimeOf({ runtime, lifecycle }: Spec, now: number): number | null {
  const limits = (lifecycle?.expirationPolicies ?? []).map((policy) => policyMs(policy, now));
  if (runtime?.ttl) limits.push(ageMs("spec/runtime/ttl", runtime.ttl));
  if (runtime?.expires) limits.push(untilMs("spec/runtime/expires", runtime.expires, now));
  return limits.length === 0 ? null : Math.min(...limits);
}

function policyMs({ type, value, action }: Static<typeof Policy>, now: number): number {
  const where = "spec/lifecycle/expirationPolicies";
  if (action && action !== "delete")
    throw notSupported(`spec.lifecycle.expirationPolicies with the action ${action}`);
  if (type === "ttl-max-age") return ageMs(where, value);
  if (type === "date") return untilMs(where, value, now);
  throw notSupported(
    `spec.lifecycle.expirationPolicies of type ${type}`,
    "One that is idle sleeps and costs disk only; its age can be limited.",
  );
}

function ageMs(where: string, text: string): number {
  const ms = durationMs(text);
  if (ms !== null && ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `body/${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a duration such as 30m, 24h or 7d.`,
  });
}

function untilMs(where: string, text: string, now: number): number {
  const ms = Date.parse(text) - now;
  if (ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `body/${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a date that is still to come.`,
  });
}
