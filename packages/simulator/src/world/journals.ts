import type { ExecId, SandboxId } from "@holdfast/contract";
import type { JournalsAfterDeath } from "@holdfast/engine";
import type { Armed, Point } from "../schedule/armed-faults.ts";
import type { Host } from "./host.ts";
import type { Journal } from "./journal.ts";
import { never, type Process } from "./process.ts";

/** The journal operations of one server on the shared host's files. */
export function journalsOf(host: Host, process: Process): JournalsAfterDeath {
  const find = (sandboxId: SandboxId, id: ExecId): Journal | undefined =>
    host.kept.get(sandboxId)?.get(id) ?? host.directories.get(sandboxId)?.journals.get(id);

  const verb = <Answer>(
    point: Point,
    signal: AbortSignal,
    act: () => Answer,
    onFault: () => void = () => undefined,
  ): Promise<Answer> => {
    if (!process.mayCall()) return never();
    return process.delivers(
      (async () => {
        signal.throwIfAborted();
        const fault = host.faults.take(point);
        if (fault !== null) onFault();
        await struck(fault, signal);
        return process.alive ? act() : await never();
      })(),
    );
  };

  const struck = async (fault: Armed | null, signal: AbortSignal): Promise<void> => {
    const ms = fault?.kind === "journals-slow" ? fault.ms : host.latency();
    if (ms > 0) await host.time.pause(ms, signal);
    if (fault !== null && fault.kind !== "journals-slow")
      throw new Error("the journals could not be reached");
  };

  return {
    read: (sandboxId, id, { cursor }, signal) =>
      verb("journals.read", signal, () => find(sandboxId, id)?.slice(cursor, false) ?? null),
    end: (sandboxId, id, signal) =>
      verb(
        "journals.end",
        signal,
        () => find(sandboxId, id)?.ending() ?? null,
        () => host.report({ type: "journal-unread", sandboxId, id }),
      ),
    archive: (sandboxId, signal) =>
      verb("journals.change", signal, () => {
        const journals = host.directories.get(sandboxId)?.journals;
        if (journals === undefined) return;
        process.effect("keeps journals", () => {
          host.kept.set(sandboxId, new Map([...(host.kept.get(sandboxId) ?? []), ...journals]));
          journals.clear();
        });
      }),
    remove: (sandboxId, ids, signal) =>
      verb("journals.change", signal, () => {
        const kept = host.kept.get(sandboxId);
        for (const id of ids) {
          kept?.delete(id);
          host.directories.get(sandboxId)?.journals.delete(id);
        }
        if (kept?.size === 0) host.kept.delete(sandboxId);
      }),
    archived: (signal) => verb("journals.change", signal, () => [...host.kept.keys()]),
    drop: (sandboxId, signal) => verb("journals.change", signal, () => void host.kept.delete(sandboxId)),
  };
}
