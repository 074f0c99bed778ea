import { type ExecId, type SandboxId, STATUSES } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import type { Host } from "./host.ts";
import type { Scene } from "./invariants.ts";
import type { SimulatedExec } from "./keeper.ts";
import { otherName } from "./names.ts";
import { copiesOn } from "./saved.ts";

/** What has not come to rest yet. Empty: every sandbox and exec is where it stays unless somebody asks for something. */
export async function unsettled(scene: Scene, engine: EngineApi | null): Promise<string[]> {
  if (engine === null) return ["no server serves"];
  return [
    ...strays(scene),
    ...copies(scene),
    ...(await sandboxes(scene, engine)),
    ...execs(scene),
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

async function sandboxes({ host, mirror, time }: Scene, engine: EngineApi): Promise<string[]> {
  const found: string[] = [];
  // One whose record can't be read is left alone until somebody deletes it.
  for (const { id } of mirror.readable()) {
    const { status, cause, lease } = await engine.sandboxes.get(id);
    const isBroken = (host.instanceOf(id)?.brokenSince ?? null) !== null;
    const isAtRest =
      status === "ready" ||
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
    const isEndless = waits || (exec.command.kind === "run" && exec.command.ms === null);
    return isEndless && exec.order.timeoutMs === 0 ? [] : [`${id} still runs`];
  });
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
