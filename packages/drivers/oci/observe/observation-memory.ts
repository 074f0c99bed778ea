import { statSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Identity } from "@holdfast/engine";
import type { Living } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { type InstanceNote, readInstance } from "../machine/sandbox-notes.ts";
import { readCgroups } from "../proc/proc-files.ts";

/**
 * The keeper's cgroups are read in one of this many observations. Reading them takes a fifth of an observation's time,
 * so not every observation does it.
 */
const MEMBERSHIP_EVERY = 4;

interface KnownNote {
  ino: number;
  mtimeMs: number;
  note: InstanceNote | null;
}

interface KnownMembership {
  pid: number;
  startTime: string;
  missing: readonly string[];
  /** Number of observations before the cgroups are read again. */
  left: number;
}

/**
 * Remembers what earlier passes over the sandboxes have read, so that later passes are cheap: the instance notes, until
 * they are replaced; the cgroup controllers whose limits do not apply to a keeper; and the identities of mounted roots.
 */
export class ObservationMemory {
  readonly #notes = new Map<SandboxId, KnownNote>();
  readonly #memberships = new Map<SandboxId, KnownMembership>();
  readonly #roots = new Map<SandboxId, { mountId: number; root: Identity }>();
  #reads = 0;

  /**
   * Reads the instance note. A note is always replaced as a whole, so a note with the same inode and modification time
   * has the same content. If the note is lost with the sandbox's directory, returns the last note that was read, until
   * the instance is stopped.
   */
  note({ layout }: Pick<Machine, "layout">, id: SandboxId): InstanceNote | null {
    const found = statSync(layout.sandbox(id).instance, { throwIfNoEntry: false });
    const known = this.#notes.get(id);
    if (found === undefined) return known?.note ?? null;
    if (known?.ino === found.ino && known.mtimeMs === found.mtimeMs) return known.note;
    const note = readInstance(layout, id);
    this.#notes.set(id, { ino: found.ino, mtimeMs: found.mtimeMs, note });
    return note;
  }

  /**
   * Returns the cgroup controllers whose limits do not apply to the keeper, because it is outside the sandbox's cgroup.
   * Returns remembered values for most observations. If `isDue` is set, reads them now.
   */
  ungoverned(
    { cgroups }: Pick<Machine, "cgroups">,
    id: SandboxId,
    { pid, startTime }: Pick<Living, "pid" | "startTime">,
    isDue: boolean,
  ): readonly string[] {
    const known = this.#memberships.get(id);
    if (!isDue && known?.pid === pid && known.startTime === startTime && known.left > 0) {
      known.left--;
      return known.missing;
    }
    const missing = cgroups.missingFor(id, readCgroups(pid) ?? "");
    // The first interval differs from sandbox to sandbox, so that each pass reads the cgroups of only some sandboxes.
    const left = known === undefined ? this.#reads++ % MEMBERSHIP_EVERY : MEMBERSHIP_EVERY - 1;
    this.#memberships.set(id, { pid, startTime, missing, left });
    return missing;
  }

  /** Returns device and inode of the root. They stay the same as long as the root is the same mount. */
  root(id: SandboxId, mountId: number, path: string): Identity {
    const known = this.#roots.get(id);
    if (known?.mountId === mountId) return known.root;
    const { dev, ino } = statSync(path, { bigint: true });
    const root = { dev: String(dev), ino: String(ino) };
    this.#roots.set(id, { mountId, root });
    return root;
  }

  /** Must be called when the sandbox's instance ends, because the kernel may reuse the ids of its mounts. */
  forget(id: SandboxId): void {
    this.#roots.delete(id);
    this.#notes.delete(id);
    this.#memberships.delete(id);
  }
}
