import { type CreateSandbox, causeOf, HoldfastError, normalisePath } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { runId, runOf } from "../model/process-machine.ts";
import { forkSource } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Ids, Link } from "../ports/index.ts";
import type {
  ExecRecord,
  ForkedProcess,
  Origin,
  ProcessRecord,
  SandboxRecord,
  SandboxSpec,
  SavedCheckpoint,
} from "../ports/records.ts";

/** Settings that a create request can't choose for a fork, because the fork's memory and files depend on them. */
const FIXED = ["image", "resources"] as const;

/** Returns the spec of a fork: the spec of the source sandbox, with the settings that the create request changes. */
export function forkedSpec({ spec }: SavedCheckpoint, input: CreateSandbox): SandboxSpec {
  const fixed = FIXED.find((name) => input[name] !== undefined);
  if (fixed !== undefined)
    throw new HoldfastError("invalid_request", {
      message: `A sandbox that is created from a checkpoint has the checkpoint's ${fixed}; leave ${fixed} out.`,
    });
  const cwd = input.cwd === undefined ? spec.cwd : normalisePath(input.cwd);
  if (input.cwd !== undefined && cwd === null)
    throw new HoldfastError("invalid_path", { message: "cwd must be an absolute path without '..'." });
  const { env, lifecycle, labels } = input;
  return {
    ...spec,
    cwd,
    env: { ...spec.env, ...env },
    ...(lifecycle && { lifecycle }),
    ...(labels && { labels }),
  };
}

/**
 * Returns the origin of a fork, with new ids for the execs and processes in the fork's memory. The ids are assigned
 * before anything can refer to them. The id of a run is derived from the new id of its process, and its run number
 * stays the same.
 */
export function originOf(saved: SavedCheckpoint, ids: Pick<Ids, "exec" | "process">): Origin {
  const processes = saved.processes.map(({ id, keeperId }) => ({ id: ids.process(), from: id, keeperId }));
  return {
    sandboxId: saved.sandboxId,
    sandboxName: saved.sandboxName,
    checkpointId: saved.id,
    kind: saved.kind,
    generation: saved.generation,
    keeperBootId: saved.keeperBootId,
    execs: saved.execs.map(({ id, keeperId }) => ({
      id: runIn(processes, id) ?? ids.exec(),
      from: id,
      keeperId,
    })),
    processes,
  };
}

/**
 * Returns the fork's id for a run of the source sandbox; null if the exec is not a run of a process that the fork has.
 */
function runIn(processes: readonly ForkedProcess[], id: string) {
  const run = runOf(id);
  const process = processes.find(({ from }) => from === run?.process);
  return run === null || process === undefined ? null : runId(process.id, run.run);
}

/** Returns the records of the processes that a fork has from the start. */
export function forkedProcesses(
  { id: sandboxId, forkedFrom }: SandboxRecord,
  saved: SavedCheckpoint,
  createdAt: number,
): ProcessRecord[] {
  return saved.processes.flatMap(({ id: from, keeperId: _keeperId, ...rest }) => {
    const id = forkedFrom?.processes.find((process) => process.from === from)?.id;
    const fresh = { order: null, seen: null, end: null, createdAt, revision: 0 };
    return id === undefined ? [] : [{ ...rest, ...fresh, id, sandboxId, generation: saved.generation }];
  });
}

/**
 * Returns the records of the execs that a fork has from the start. Their status is `starting`, because the memory with
 * their processes is not restored yet.
 */
export function forkedExecs(
  { id: sandboxId, forkedFrom }: SandboxRecord,
  saved: SavedCheckpoint,
  now: number,
) {
  const names = new Map(forkedFrom?.execs.map(({ id, from }) => [from, id]));
  return saved.execs.flatMap(({ id: from, spec, digest, startedAt }): ExecRecord[] => {
    const id = names.get(from);
    if (id === undefined) return [];
    return [
      {
        id,
        sandboxId,
        generation: saved.generation,
        spec,
        digest,
        status: "starting",
        exitCode: null,
        signal: null,
        cause: null,
        dispatched: "yes",
        outputEnd: 0,
        createdAt: now,
        startedAt,
        endedAt: null,
      },
    ];
  });
}

/**
 * Gives a fork its own host name after its first proof, because its files still contain the host name of the source
 * sandbox.
 */
export class ForkHostnames {
  readonly #context: EngineContext;

  constructor(context: EngineContext, events: EngineEvents) {
    this.#context = context;
    events.proven.subscribe((live) => this.#rename(live));
  }

  async #rename(live: LiveSandbox): Promise<void> {
    const origin = forkSource(live.record);
    const link = live.link;
    if (origin === null || !link) return;
    const { clock, numbers, log } = this.#context;
    const names = { from: origin.sandboxName, to: live.record.name };
    const limit = { ms: numbers.keeperCallMs, what: "naming the host", signal: live.deletedSignal };
    await within(clock, limit, (signal) => renameHost(link, names, signal)).catch((error: unknown) => {
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "the files of a fork keep the old host's name");
    });
  }
}

const HOST_FILE_BYTES = 65_536;

/** Replaces the host name in those files whose content has not changed since the launch. */
async function renameHost(
  { files }: Pick<Link, "files">,
  { from, to }: { from: string; to: string },
  signal: AbortSignal,
): Promise<void> {
  const changes: [path: string, change: (text: string) => string][] = [
    ["/etc/hostname", (text) => (text === `${from}\n` ? `${to}\n` : text)],
    ["/etc/hosts", (text) => text.replaceAll(`\n127.0.1.1 ${from}\n`, `\n127.0.1.1 ${to}\n`)],
  ];
  for (const [path, change] of changes) {
    const { stat, body } = await files.read(path, { offset: 0, length: HOST_FILE_BYTES }, signal);
    const chunks: Uint8Array[] = [];
    for await (const chunk of body) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    const next = change(text);
    if (next === text || stat.sizeBytes > HOST_FILE_BYTES) continue;
    const { mode, uid, gid } = stat;
    await files.write(path, oneChunk(next), { mode: mode & 0o7777, uid, gid }, signal);
  }
}

async function* oneChunk(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}
