import { type DriveId, type ExecId, type ProcessId, type SandboxId, STATUSES } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import { isThere } from "./drive-invariants.ts";
import { driveOn } from "./drives.ts";
import type { Host } from "./host.ts";
import type { Scene } from "./invariants.ts";
import type { SimulatedExec } from "./keeper.ts";
import type { Mirror } from "./mirror.ts";
import { otherName, runIn } from "./names.ts";
import { copiesOn } from "./saved.ts";

const ALL = 1_000;

/** What has not come to rest yet. Empty: every sandbox and exec is where it stays unless somebody asks for something. */
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
  // The grace of what is nobody's is counted by the time of day.
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
    ...unowned.map((id) => `something of ${id} is left and nobody owns it`),
    ...forgotten.map((id) => `journals of ${id} are kept and no exec owns them`),
  ];
}

/** Kept checkpoints of which no record speaks. Those of a sandbox whose record can't be read go with it. */
const copies = ({ host, mirror }: Scene): string[] =>
  copiesOn(host)
    .filter(
      ({ sandboxId, stored }) => !mirror.checkpoints.has(stored.id) && !mirror.unreadable.has(sandboxId),
    )
    .map(
      ({ sandboxId, stored }) =>
        `${stored.id} of ${sandboxId} is ${stored.state}, and no record speaks of it`,
    );

/** A drive that can be read is made, or not being deleted any more, and is called what it is. */
async function drives({ host, mirror, time }: Scene, engine: EngineApi): Promise<string[]> {
  const { items } = await engine.drives.list({ limit: ALL });
  return items.flatMap(({ id, status, cause }) => {
    const phase = mirror.drives.get(id as DriveId)?.phase;
    const isWell = driveOn(host, id as DriveId) !== null;
    // A back-off is over at a time of day.
    if (phase === "deleting" && time.setBackMs > 0) return [];
    if (phase === "ready" && status === (isWell ? "ready" : "degraded")) return [];
    return [`drive ${id} is ${status} (${cause?.message ?? "no cause"}), and ${phase} on record`];
  });
}

/** A drive that is gone is nowhere mounted: whoever has it would hold what is not there any more, and its disk. */
const leftMounted = ({ host, mirror }: Scene): string[] =>
  [...host.instances].flatMap(({ sandboxId, places }) =>
    [...places].flatMap(([path, { directory }]) =>
      // Nobody knows what a record says that can't be read.
      directory?.state === "removed" && !mirror.unreadable.has(sandboxId)
        ? [`${path} of ${sandboxId} is drive ${directory.id}, which is gone`]
        : [],
    ),
  );

const lacksMount = ({ host }: Scene, { id, mounts }: SandboxRecord): boolean =>
  mounts.some((mount) => mount.state === "wanted" && !isThere(host, id, mount));

/** Whether a sandbox lacks a drive that can't be had. */
const lacksDrive = ({ host, mirror }: Scene, { id, mounts }: SandboxRecord): boolean =>
  mounts.some(
    (mount) => mount.state === "wanted" && !isThere(host, id, mount) && !isHad(host, mirror, mount.driveId),
  );

const isHad = (host: Host, { drives: records, unreadableDrives }: Mirror, id: DriveId): boolean =>
  driveOn(host, id) !== null && records.has(id) && !unreadableDrives.has(id);

/** Of those that serve but for their mounts: what was given up is off, and what can be had is there. */
function mounts({ host, mirror }: Scene): string[] {
  return mirror.readable().flatMap(({ id, phase, lease, mounts: all }) => {
    // Nothing is done about one whose lease can't be read until it is deleted.
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
  // One whose record can't be read is left alone until somebody deletes it.
  for (const record of mirror.readable()) {
    const { id } = record;
    const { status, cause, lease } = await engine.sandboxes.get(id);
    // All else that is broken is healed, or given up.
    const isBroken = lacksDrive(scene, record);
    const isAtRest =
      (status === "ready" && !lacksMount(scene, record)) ||
      (status === "standby" && host.instanceOf(id) === null) ||
      (status === "paused" && host.instanceOf(id)?.holds.has("frozen")) ||
      (status === "degraded" && isBroken) ||
      // Shown, and left to whoever deletes it.
      lease.state === "quarantined" ||
      (status === "failed" && lease.state === "none") ||
      // A back-off is stored as the time of day at which it is over.
      (time.setBackMs > 0 && (lease.state === "stop_needed" || lease.state === "exhausted"));
    if (!isAtRest)
      found.push(`${id} is ${status} (${cause?.message ?? "no cause"}), its lease ${lease.state}`);
  }
  return found;
}

/** An exec without an outcome is one that really runs and has no end of its own. */
function execs({ host, mirror, time, history }: Scene): string[] {
  return mirror.openExecs().flatMap(({ id, sandboxId, status, spec }) => {
    const { lease, phase } = mirror.sandboxes.get(sandboxId) ?? {};
    const isAsleep = phase?.name === "paused" || phase?.name === "standby";
    const inside = otherName(mirror, sandboxId, id);
    const exec =
      host.instanceOf(sandboxId)?.keeper.execs.get(inside) ?? rememberedOf(host, phase, sandboxId, inside);
    // So is the end of its place in the line.
    if (time.setBackMs > 0 && status === "queued") return [];
    // Whoever deletes a sandbox whose record or lease can't be read ends its execs with it.
    if (mirror.unreadable.has(sandboxId)) return [];
    if (lease?.state === "quarantined" && phase?.name !== "deleting") return [];
    // Nobody has looked yet at a checkpoint that was harmed; whoever wakes it ends its execs.
    if (phase?.name === "standby" && phase.checkpoint && history.sleep.harmed.has(phase.checkpoint.id))
      return [];
    // One that was on its way when its sandbox was paused goes on its way when that is resumed.
    if (exec === undefined && phase?.name === "paused") return [];
    if (exec === undefined) return [`${id} has no outcome, and nothing runs under its id`];
    if (exec.state !== "running" && !isAsleep) return [`${id} has no outcome, and ${exec.state} long ago`];
    // How it ended before its sandbox fell asleep, or that it goes on, is told when that wakes.
    if (isAsleep) return [];
    const waits = exec.command.kind === "cat" && spec.stdin?.end === false;
    // How long it runs is up to the process that it is a run of.
    if (runIn(id) !== null) return [];
    const isEndless = waits || (exec.command.kind === "run" && exec.command.ms === null);
    return isEndless && exec.order.timeoutMs === 0 ? [] : [`${id} still runs`];
  });
}

/**
 * Of a sandbox that serves, every process is over, runs, or is about to, and is told as what it is. Without memory the next run
 * is begun when it serves again.
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
      // The end of a place in the line is a time of day.
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

/** An exec in the memory that its sandbox would be woken with. */
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

/** What still sleeps though it was asked for, and has no reason of its own to sleep again. */
export function sleepers({ mirror }: Scene): SandboxRecord[] {
  return mirror.readable().filter(({ phase, lease, spec }) => {
    const isAsleep = phase.name === "standby" || phase.name === "paused";
    return isAsleep && lease.state !== "quarantined" && spec.lifecycle.idleStandbyMs === undefined;
  });
}

/** Every call is answered; whoever follows the output of an exec hears of its end when it has one. */
function calls({ openCalls, mirror }: Scene): string[] {
  const running = new Set<string>(mirror.openExecs().map(({ id }) => id));
  return [...openCalls]
    .filter(({ what, boundMs }) => Number.isFinite(boundMs) || !running.has(what.replace("output of ", "")))
    .map(({ what }) => `"${what}" has no answer`);
}

/** What is left after everything was deleted and its time was over. */
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

/** With nothing left, every figure but the totals is zero: else a place of a quota was lost. */
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
