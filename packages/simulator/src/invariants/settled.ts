import { type DriveId, type ExecId, type ProcessId, type SandboxId, STATUSES } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import { driveOn } from "../world/drives.ts";
import type { Host } from "../world/host.ts";
import type { SimulatedExec } from "../world/keeper.ts";
import type { Mirror } from "../world/mirror.ts";
import { copiesOn } from "../world/saved-checkpoints.ts";
import { isThere } from "./drive-invariants.ts";
import { otherName, runIn } from "./exec-ids.ts";
import type { Scene } from "./invariant.ts";

const ALL = 1_000;

/**
 * Lists everything that has not settled yet. The list is empty if each sandbox and each exec is in a state that only a
 * request can change.
 */
export async function unsettled(scene: Scene, engine: EngineApi | null): Promise<string[]> {
  if (engine === null) return ["no server serves"];
  return [
    ...strays(scene),
    ...copies(scene),
    ...(await drives(scene, engine)),
    ...mounts(scene),
    ...leftMounted(scene),
    ...(await sandboxes(scene, engine)),
    ...execs(scene),
    ...(await processes(scene, engine)),
    ...calls(scene),
  ];
}

function strays({ host, mirror, history, time }: Scene): string[] {
  // The grace period of objects without a record is measured with the time of day. Setting the clock back makes the
  // period longer.
  const isInGrace = (id: SandboxId) => time.setBackMs > 0 && history.strays.has(id);
  const owned = new Set(mirror.live().map(({ id }) => id));
  const withExecs = new Set([...mirror.execs.values()].map(({ sandboxId }) => sandboxId));
  const unowned = [
    ...[...host.instances].map(({ sandboxId }) => sandboxId),
    ...[...host.helpers].map(({ sandboxId }) => sandboxId),
    ...host.directories.keys(),
  ].filter((id) => !owned.has(id) && !isInGrace(id));
  const forgotten = [...host.kept.keys()].filter((id) => !owned.has(id) && !withExecs.has(id));
  return [
    ...unowned.map((id) => `something of ${id} is left without an owner`),
    ...forgotten.map((id) => `journals of ${id} are kept and no exec owns them`),
  ];
}

/**
 * Returns saved checkpoints without a record. Checkpoints of a sandbox with an unreadable record are left out, because
 * they are removed together with the sandbox.
 */
const copies = ({ host, mirror }: Scene): string[] =>
  copiesOn(host)
    .filter(
      ({ sandboxId, stored }) => !mirror.checkpoints.has(stored.id) && !mirror.unreadable.has(sandboxId),
    )
    .map(
      ({ sandboxId, stored }) =>
        `${stored.id} of ${sandboxId} is ${stored.state}, and no record speaks of it`,
    );

/**
 * Returns drives that have not settled. A drive with a readable record has settled if it exists, is not being deleted,
 * and has the reported status.
 */
async function drives({ host, mirror, time }: Scene, engine: EngineApi): Promise<string[]> {
  const { items } = await engine.drives.list({ limit: ALL });
  return items.flatMap(({ id, status, cause }) => {
    const phase = mirror.drives.get(id as DriveId)?.phase;
    const isWell = driveOn(host, id as DriveId) !== null;
    // The end of a back-off is stored as a time of day, so setting the clock back makes the back-off longer.
    if (phase === "deleting" && time.setBackMs > 0) return [];
    if (phase === "ready" && status === (isWell ? "ready" : "degraded")) return [];
    return [`drive ${id} is ${status} (${cause?.message ?? "no cause"}), and ${phase} on record`];
  });
}

/** Returns mounts of deleted drives. Such a mount would keep the drive's disk space in use. */
const leftMounted = ({ host, mirror }: Scene): string[] =>
  [...host.instances].flatMap(({ sandboxId, places }) =>
    [...places].flatMap(([path, { directory }]) =>
      // A sandbox with an unreadable record is left out: the engine can't know that one of its mounts must be removed.
      directory?.state === "removed" && !mirror.unreadable.has(sandboxId)
        ? [`${path} of ${sandboxId} is drive ${directory.id}, which is gone`]
        : [],
    ),
  );

const lacksMount = ({ host }: Scene, { id, mounts }: SandboxRecord): boolean =>
  mounts.some((mount) => mount.state === "wanted" && !isThere(host, id, mount));

/** Returns whether a sandbox can't serve because one of its drives can't be mounted. */
const lacksDrive = ({ host, mirror }: Scene, { id, mounts }: SandboxRecord): boolean =>
  mounts.some(
    (mount) => mount.state === "wanted" && !isThere(host, id, mount) && !isHad(host, mirror, mount.driveId),
  );

const isHad = (host: Host, { drives: records, unreadableDrives }: Mirror, id: DriveId): boolean =>
  driveOn(host, id) !== null && records.has(id) && !unreadableDrives.has(id);

/**
 * Returns mounts that have not settled: a mount that is no longer wanted must be unmounted, and a mount of an available
 * drive must be mounted.
 */
function mounts({ host, mirror }: Scene): string[] {
  return mirror.readable().flatMap(({ id, phase, lease, mounts: all }) => {
    // A sandbox with an unreadable lease is left out: it stays unchanged until it is deleted.
    if (lease.state === "quarantined") return [];
    if (phase.name !== "running" || host.instanceOf(id)?.brokenSince != null) return [];
    const owed = all.filter(
      (mount) =>
        mount.state === "removing" || (isHad(host, mirror, mount.driveId) && !isThere(host, id, mount)),
    );
    return owed.map(
      ({ path, state }) =>
        `${path} of ${id} is ${state}, and ${state === "wanted" ? "not there" : "not gone"}`,
    );
  });
}

async function sandboxes(scene: Scene, engine: EngineApi): Promise<string[]> {
  const { host, mirror, time } = scene;
  const found: string[] = [];
  // Sandboxes with an unreadable record are left out: they stay unchanged until a caller deletes them.
  for (const record of mirror.readable()) {
    const { id } = record;
    const { status, cause, lease } = await engine.sandboxes.get(id);
    // A sandbox may stay broken only if one of its drives is missing. Otherwise the engine heals it or declares it
    // failed.
    const isBroken = lacksDrive(scene, record);
    const isAtRest =
      (status === "ready" && !lacksMount(scene, record)) ||
      (status === "standby" && host.instanceOf(id) === null) ||
      (status === "paused" && host.instanceOf(id)?.holds.has("frozen")) ||
      (status === "degraded" && isBroken) ||
      // An unreadable lease counts as settled: it is reported, and stays until a caller deletes the sandbox.
      lease.state === "quarantined" ||
      (status === "failed" && lease.state === "none") ||
      // The end of a back-off is stored as a time of day, so setting the clock back makes the back-off longer.
      (time.setBackMs > 0 && (lease.state === "stop_needed" || lease.state === "exhausted"));
    if (!isAtRest)
      found.push(`${id} is ${status} (${cause?.message ?? "no cause"}), its lease ${lease.state}`);
  }
  return found;
}

/** Returns the execs that violate this rule: an exec without a recorded outcome must still be running. */
function execs({ host, mirror, time, history }: Scene): string[] {
  return mirror.openExecs().flatMap(({ id, sandboxId, status, spec }) => {
    const { lease, phase } = mirror.sandboxes.get(sandboxId) ?? {};
    const isAsleep = phase?.name === "paused" || phase?.name === "standby";
    const inside = otherName(mirror, sandboxId, id);
    const exec =
      host.instanceOf(sandboxId)?.keeper.execs.get(inside) ?? rememberedOf(host, phase, sandboxId, inside);
    // An exec leaves the queue at the latest at a stored time of day. Setting the clock back lets it stay queued for
    // longer.
    if (time.setBackMs > 0 && status === "queued") return [];
    // If the record or the lease of a sandbox is unreadable, its execs stay open until the sandbox is deleted.
    if (mirror.unreadable.has(sandboxId)) return [];
    if (lease?.state === "quarantined" && phase?.name !== "deleting") return [];
    // If the checkpoint is damaged, the execs have no outcome until the next wake: only the wake discovers the damage,
    // and then ends the execs.
    if (phase?.name === "standby" && phase.checkpoint && history.sleep.harmed.has(phase.checkpoint.id))
      return [];
    // If a sandbox was paused while an exec was starting, the exec starts only when the sandbox is resumed.
    if (exec === undefined && phase?.name === "paused") return [];
    if (exec === undefined) return [`${id} has no outcome, and nothing runs under its id`];
    if (exec.state !== "running" && !isAsleep) return [`${id} has no outcome, and ${exec.state} long ago`];
    // An exec of a sleeping sandbox may have no outcome yet: only a wake can show whether the exec ended before the
    // standby or still runs.
    if (isAsleep) return [];
    const waits = exec.command.kind === "cat" && spec.stdin?.end === false;
    // A run of a process may last as long as the process, so a run that still runs is settled.
    if (runIn(id) !== null) return [];
    const isEndless = waits || (exec.command.kind === "run" && exec.command.ms === null);
    return isEndless && exec.order.timeoutMs === 0 ? [] : [`${id} still runs`];
  });
}

/**
 * Returns processes that have not settled. In a serving sandbox every process must have ended, be running, or be about
 * to run, and this must also be its reported status. In a sandbox whose memory is lost, the next run starts only when
 * the sandbox serves again.
 */
async function processes({ host, mirror, time }: Scene, engine: EngineApi): Promise<string[]> {
  const found: string[] = [];
  for (const { id: sandboxId, phase, lease } of mirror.readable()) {
    const instance = host.instanceOf(sandboxId);
    if (phase.name !== "running" || lease.state !== "held" || instance === null) continue;
    if (instance.brokenSince !== null) continue;
    for (const { id, status, execId, endedAt } of (await engine.processes.list(sandboxId)).items) {
      const record = mirror.processes.get(id as ProcessId);
      const what = `process ${id} is ${status}`;
      if (record === undefined) found.push(`${what}, and not on record`);
      else if ((record.end === null) !== (endedAt === null)) found.push(`${what}, and that is not stored`);
      else if (record.order !== null) found.push(`${what}, and is to ${record.order.do}`);
      if (endedAt !== null) continue;
      // A queued run leaves the queue at the latest at a stored time of day. If the clock was set back, it may stay
      // queued for longer.
      if (time.setBackMs > 0 && mirror.execs.get(execId as ExecId)?.status === "queued") continue;
      const inside = otherName(mirror, sandboxId, execId as ExecId);
      const isAlive = instance.keeper.execs.get(inside)?.state === "running";
      const waits = [...instance.keeper.rows].some(
        ({ last, state }) => last === inside && state === "waiting",
      );
      if (status === "waiting" ? !waits : !isAlive) found.push(`${what}, and its keeper knows better`);
    }
  }
  return found;
}

/** Returns an exec as it is in the memory that a wake of its sandbox would restore. */
function rememberedOf(
  host: Host,
  phase: SandboxRecord["phase"] | undefined,
  sandboxId: SandboxId,
  id: ExecId,
): SimulatedExec | undefined {
  if (phase?.name !== "standby" || phase.checkpoint === null) return undefined;
  const stored = host.directories.get(sandboxId)?.checkpoints.get(phase.checkpoint.id);
  return stored?.memory.execs.find(({ order }) => order.id === id);
}

/**
 * Returns sandboxes that are still asleep although a caller asked to wake them, and that have no reason to fall asleep
 * again.
 */
export function sleepers({ mirror }: Scene): SandboxRecord[] {
  return mirror.readable().filter(({ phase, lease, spec }) => {
    const isAsleep = phase.name === "standby" || phase.name === "paused";
    return isAsleep && lease.state !== "quarantined" && spec.lifecycle.idleStandbyMs === undefined;
  });
}

/**
 * Returns calls without an answer, except calls that follow the output of a running exec: they may still wait for
 * output.
 */
function calls({ openCalls, mirror }: Scene): string[] {
  const running = new Set<string>(mirror.openExecs().map(({ id }) => id));
  return [...openCalls]
    .filter(({ what, boundMs }) => Number.isFinite(boundMs) || !running.has(what.replace("output of ", "")))
    .map(({ what }) => `"${what}" has no answer`);
}

/**
 * Lists everything that is left after all objects were deleted and the time for which their records are kept has
 * passed.
 */
export async function remains(scene: Scene, engine: EngineApi | null): Promise<string[]> {
  if (engine === null) return ["no server serves"];
  const { host, mirror } = scene;
  const left = [
    ...mirror.live().map(({ id, phase, lease }) => `${id} is ${phase.name}, its lease ${lease.state}`),
    ...[...host.instances].map(({ sandboxId }) => `a process of ${sandboxId}`),
    ...[...host.directories.keys()].map((id) => `files of ${id}`),
    ...[...host.kept.keys()].map((id) => `journals of ${id}`),
    ...[...mirror.execs.values()].map(({ id, status }) => `the record of ${id}, ${status}`),
    ...[...mirror.checkpoints.keys()].map((id) => `the record of ${id}`),
    ...[...mirror.processes.keys()].map((id) => `the record of ${id}`),
    ...[...mirror.drives.values()].map(({ id, phase }) => `the record of ${id}, ${phase}`),
    ...[...host.drives.values()]
      .filter(({ id, isAway }) => !isAway && !scene.history.drives.strays.has(id))
      .map(({ id }) => `files of ${id}`),
  ];
  return left.length > 0 ? left : figures(await engine.stats());
}

/**
 * Returns the figures that should be zero when nothing is left, but are not. Such a figure shows, for example, a quota
 * slot that was not released.
 */
function figures(stats: Awaited<ReturnType<EngineApi["stats"]>>): string[] {
  const { execsRunning, execsQueued, readers, orphans, totals } = stats;
  const counts = STATUSES.filter((status) => status !== "terminated").map(
    (status) => [status, stats.sandboxes[status]] as const,
  );
  const zeros = [
    ...counts,
    ["execs running", execsRunning],
    ["execs queued", execsQueued],
    ["readers", readers],
    ["orphans", orphans],
    ["created and not terminated", totals.created - totals.terminated],
    ["execs started and not ended", totals.execsStarted - totals.execsEnded],
  ] as const;
  return zeros
    .filter(([, count]) => count !== 0)
    .map(([what, count]) => `${what}: ${count}, with nothing left`);
}
