import { checker, notSupported } from "@holdfast/adapter-shared";
import { HoldfastError, type Sandbox, UpdateSandbox } from "@holdfast/contract";
import { expiryShown } from "../shapes.ts";
import { expiryOf } from "./expiry.ts";
import { chosenTags, fromLabels, replacing, type Tags, toLabels } from "./labels.ts";
import { askedOf, environmentOf, refuseUnknown, type SandboxRequest } from "./sandbox-request.ts";

const check = checker(UpdateSandbox);

/**
 * Translates an update of a sandbox. The client sends the complete sandbox as it has read it, with its changes. Fields
 * that are absent or unchanged are left as they are.
 */
export function sandboxUpdate(
  { metadata = {}, spec }: SandboxRequest,
  sandbox: Sandbox,
  now: number,
): UpdateSandbox {
  const before = fromLabels(sandbox.labels);
  if (metadata.name && metadata.name !== sandbox.name)
    throw notSupported("changing metadata.name", "A sandbox's name cannot be changed.");
  const tags: Tags = { ...before, ...chosenTags(metadata, before) };
  const changes: UpdateSandbox = {};
  if (spec !== undefined) {
    refuseUnknown(spec);
    refuseOthers(spec, sandbox, before);
    const { ports: portsBefore, secrets: secretsBefore = [], ...limitsBefore } = before.asked ?? {};
    const { ports = portsBefore, secrets: _given, ...asked } = askedOf(spec);
    const isKept = isSame(asked, expiryShown(sandbox));
    if (!isKept) {
      const createdAt = Date.parse(sandbox.createdAt);
      const { ttlMs, idleTtlMs } = expiryOf(asked, createdAt);
      refusePast(createdAt + (ttlMs ?? Number.POSITIVE_INFINITY), now);
      changes.lifecycle = { ttlMs: ttlMs ?? null, idleTtlMs: idleTtlMs ?? null };
    }
    const envs = spec.runtime?.envs ?? [];
    const secrets = secretsOf(envs, secretsBefore);
    tags.asked = {
      ...(isKept ? limitsBefore : asked),
      ...(ports === undefined ? {} : { ports }),
      ...(secrets.length > 0 ? { secrets } : {}),
    };
    // A known secret without a value stays unchanged: the client has read it without its value, and sends back what it
    // read.
    const sent = envs.filter(({ name, value }) => value != null || !secretsBefore.includes(name));
    if (sent.length > 0) changes.env = environmentOf(sent);
  }
  changes.labels = replacing(sandbox.labels, toLabels(tags));
  return check(changes, "The sandbox update is not valid");
}

/**
 * Returns the names of the variables that are secrets after an update. For a variable in the update, the update says
 * whether it is a secret. Any other variable is a secret if it was one before.
 */
function secretsOf(envs: readonly { name: string; secret?: unknown }[], before: readonly string[]): string[] {
  const named = new Set(envs.map(({ name }) => name));
  const given = envs.filter(({ secret }) => secret === true).map(({ name }) => name);
  return [...before.filter((name) => !named.has(name)), ...given];
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.entries(value)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, part]) => [key, sorted(part)]);
}

/** Refuses changes of properties that are fixed when the sandbox is created. */
function refuseOthers(
  { runtime, volumes }: NonNullable<SandboxRequest["spec"]>,
  sandbox: Sandbox,
  { image }: Tags,
) {
  const others: [what: string, isOther: boolean][] = [
    ["image", runtime?.image != null && ![image, sandbox.image].includes(runtime.image)],
    ["memory", runtime?.memory !== undefined && runtime.memory !== sandbox.resources.memoryMb],
  ];
  for (const [what, isOther] of others)
    if (isOther)
      throw notSupported(`changing spec.runtime.${what}`, "This is fixed when the sandbox is created.");
  if (volumes?.length) throw notSupported("changing spec.volumes", "Use drives.mount and drives.unmount.");
}

/** Refuses a lifetime limit that has already passed, because it would delete the sandbox immediately. */
function refusePast(expiresAt: number, now: number): void {
  if (expiresAt > now) return;
  throw new HoldfastError("invalid_request", {
    message:
      "The sandbox is already older than that, counted from its creation. To remove the sandbox, delete it.",
  });
}
