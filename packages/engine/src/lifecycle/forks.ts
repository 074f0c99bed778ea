import { type CreateSandbox, HoldfastError, normalisePath } from "@holdfast/contract";
import type { Ids, Link } from "./ports.ts";
import { runId, runOf } from "./process.ts";
import type {
  ExecRecord,
  ForkedProcess,
  Origin,
  ProcessRecord,
  SandboxRecord,
  SandboxSpec,
  SavedCheckpoint,
} from "./records.ts";

/** What the creator of a fork may not choose: the memory was laid out for it, and the files lie over it. */
const FIXED = ["image", "resources"] as const;

/** The sandbox as it was, with what its creator says otherwise. */
export function forkedSpec({ spec }: SavedCheckpoint, input: CreateSandbox): SandboxSpec {
  const fixed = FIXED.find((name) => input[name] !== undefined);
  if (fixed !== undefined)
    throw new HoldfastError("invalid_request", {
      message: `A sandbox that begins with a checkpoint has the ${fixed} of that; leave ${fixed} out.`,
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
 * Where a fork comes from. Its execs and processes get names of their own here, before there is anything that could be called
 * by them; a run is called by its process, and keeps its number.
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

/** What a run of the source is called in a fork; null where it is no run of a process that comes along. */
function runIn(processes: readonly ForkedProcess[], id: string) {
  const run = runOf(id);
  const process = processes.find(({ from }) => from === run?.process);
  return run === null || process === undefined ? null : runId(process.id, run.run);
}

/** The processes that a fork begins with. */
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

/** The execs that a fork begins with. They are under way in memory that is still on disk. */
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

const HOST_FILE_BYTES = 65_536;

/** The files that name the sandbox name the fork, where they still say what they said at first. */
export async function renameHost(
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
