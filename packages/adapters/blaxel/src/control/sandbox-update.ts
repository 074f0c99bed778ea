import { HoldfastError, type Sandbox, UpdateSandbox } from "@holdfast/contract";
import { checker } from "../checked.ts";
import { notSupported } from "../refusals.ts";
import { expiryOf } from "./expiry.ts";
import { chosenTags, fromLabels, replacing, type Tags, toLabels } from "./labels.ts";
import { askedOf, environmentOf, refuseUnknown, type SandboxRequest } from "./sandbox-request.ts";
import { expiryShown } from "./shapes.ts";

const check = checker(UpdateSandbox);

/**
 * What a sandbox is to become, as the client says it: all that it read of it, with a part exchanged. What it does not name
 * stays; so does what it names as it is.
 */
export function sandboxUpdate(
  { metadata = {}, spec }: SandboxRequest,
  sandbox: Sandbox,
  now: number,
): UpdateSandbox {
  const before = fromLabels(sandbox.labels);
  if (metadata.name && metadata.name !== sandbox.name)
    throw notSupported("changing metadata.name", "A sandbox keeps its name.");
  const tags: Tags = { ...before, ...chosenTags(metadata, before) };
  const changes: UpdateSandbox = {};
  if (spec !== undefined) {
    refuseUnknown(spec);
    refuseOthers(spec, sandbox, before);
    const { ports: portsBefore, ...limitsBefore } = before.asked ?? {};
    const { ports = portsBefore, ...asked } = askedOf(spec);
    const isKept = isSame(asked, expiryShown(sandbox));
    if (!isKept) {
      const createdAt = Date.parse(sandbox.createdAt);
      const { ttlMs, idleTtlMs } = expiryOf(asked, createdAt);
      refusePast(createdAt + (ttlMs ?? Number.POSITIVE_INFINITY), now);
      changes.lifecycle = { ttlMs: ttlMs ?? null, idleTtlMs: idleTtlMs ?? null };
    }
    tags.asked = { ...(isKept ? limitsBefore : asked), ...(ports === undefined ? {} : { ports }) };
    if (spec.runtime?.envs?.length) changes.env = environmentOf(spec.runtime.envs);
  }
  changes.labels = replacing(sandbox.labels, toLabels(tags));
  return check(changes, "The sandbox can't be changed to that");
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.entries(value)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, part]) => [key, sorted(part)]);
}

/** What it runs on is chosen when it is created. */
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
      throw notSupported(`changing spec.runtime.${what}`, "A sandbox keeps what it was created with.");
  if (volumes?.length)
    throw notSupported("changing spec.volumes", "drives.mount and drives.unmount do that.");
}

/** To be deleted at once is not what a limit is asked for. */
function refusePast(expiresAt: number, now: number): void {
  if (expiresAt > now) return;
  throw new HoldfastError("invalid_request", {
    message: "The sandbox is older than that already, counted from its creation; to be rid of it, delete it.",
  });
}
