import type { CreateDrive, Drive, Mount, MountDrive, SandboxId } from "@holdfast/contract";
import { driveMs, gateMs, mountMs, undriveMs, usableMs } from "./bounds.ts";
import { type Parts, type Question, question } from "./questions.ts";
import type { Act } from "./schedule.ts";

/** Where drives are mounted: the last lies within the first, where nothing may lie. */
export const PATHS = ["/mnt/a", "/mnt/b", "/mnt/a/deep"] as const;

export type DriveDeed = "drive" | "undrive" | "show-drive" | "mount" | "unmount" | "mounts" | "write-at";
export type DriveAct = Extract<Act, { do: DriveDeed }>;

/** What callers ask about drives, and what sandboxes have of them. */
export class DriveQuestions {
  readonly #parts: Parts;
  readonly #refOf: (box: number) => string | null;
  readonly #drives = new Map<number, { name: string | null; id: string | null }>();

  constructor(parts: Parts, refOf: (box: number) => string | null) {
    this.#parts = parts;
    this.#refOf = refOf;
  }

  /** Null where what it is about was never heard of. */
  of(act: DriveAct): Question | null {
    if (act.do === "drive") return this.#create(act);
    if (act.do === "undrive" || act.do === "show-drive") {
      const drive = this.#driveRef(act.drive);
      if (drive === null) return null;
      return act.do === "undrive" ? this.remove(drive, act.force) : this.#show(drive);
    }
    const ref = this.#refOf(act.box);
    return ref === null ? null : this.#onBox(act, ref);
  }

  /** By its id or that of another one, else by name: whoever wants a drive takes what there is. */
  #driveRef(drive: number): string | null {
    const known = [...this.#drives.values()].flatMap(({ id }) => id ?? []);
    const asked = this.#drives.get(drive);
    return asked?.id ?? known.at(-1) ?? asked?.name ?? null;
  }

  /** Those that a sandbox is to be created with, as far as they were ever heard of. */
  inputs(mounts: readonly { drive: number; path: number }[]): MountDrive[] {
    return mounts.flatMap(({ drive, path }) => this.#input(drive, path, false) ?? []);
  }

  #input(drive: number, path: number, readOnly: boolean): MountDrive | null {
    const ref = this.#driveRef(drive);
    return ref === null ? null : { drive: ref, path: PATHS[path] ?? PATHS[0], ...(readOnly && { readOnly }) };
  }

  #create({ drive, name, sized, ifExists }: Extract<Act, { do: "drive" }>): Question {
    const { numbers, note } = this.#parts;
    const input: CreateDrive = {
      ...(name === null ? {} : { name: `drive-${name}` }),
      ...(sized ? { sizeMb: 64 } : {}),
      ifExists,
    };
    this.#drives.set(drive, { name: input.name ?? null, id: null });
    return question(
      [`drive ${drive}${input.name === undefined ? "" : ` as ${input.name}`}`],
      driveMs(numbers),
      ({ drives }, signal) => drives.create(input, { signal }),
      ({ drive: made }) => {
        note(() => `drive ${drive} is ${made.id.slice(-3)} ${made.status}`);
        this.#drives.set(drive, { name: made.name, id: made.id });
        this.#told(made);
      },
    );
  }

  #told(drive: Drive): void {
    this.#parts.tell({ type: "told-drive", drive });
  }

  /** By its id or its name. */
  remove(ref: string, force: boolean): Question {
    const { numbers, note, tell } = this.#parts;
    const what = `${force ? "force " : ""}undrive ${ref.slice(-7)}`;
    return question(
      [what],
      undriveMs(numbers),
      ({ drives }, signal) => {
        tell({ type: "unwanted", id: ref, force });
        return drives.remove(ref, { force, signal });
      },
      (left) => {
        note(() => `${what}: ${left?.status ?? "gone"}`);
        if (left !== null) this.#told(left);
      },
    );
  }

  #show(ref: string): Question {
    const { numbers } = this.#parts;
    return question(
      [`show drive ${ref.slice(-7)}`],
      usableMs(numbers) + numbers.driveUsageMs,
      ({ drives }, signal) => drives.get(ref, signal),
      (drive) => this.#told(drive),
    );
  }

  #onBox(act: Extract<DriveAct, { box: number }>, ref: string): Question | null {
    const { numbers, recordOf } = this.#parts;
    const record = recordOf(ref);
    if (act.do === "mounts")
      return question([`mounts ${ref.slice(-6)}`, ref], 0, (to) => to.mounts.list(ref));
    const path = PATHS[act.path] ?? PATHS[0];
    const what: [string, string] = [`${act.do} ${path} in ${ref.slice(-6)}`, ref];
    if (act.do === "unmount")
      return question(what, mountMs(record, numbers), (to, signal) => to.mounts.unmount(ref, path, signal));
    if (act.do === "write-at") {
      const bound = gateMs(record, numbers) + numbers.keeperCallMs + numbers.linkDeadMs;
      return question(what, bound, (to, signal) =>
        to.files.write(ref, `${path}/file`, once("some text"), { parents: true }, signal),
      );
    }
    const input = this.#input(act.drive, act.path, act.readOnly);
    if (input === null) return null;
    return question(
      what,
      mountMs(record, numbers),
      async ({ mounts, sandboxes }, signal) => {
        const { mount } = await mounts.mount(ref, input, signal);
        return { mount, id: (await sandboxes.get(ref)).id as SandboxId };
      },
      ({ mount, id }) => this.#mounted(id, mount),
    );
  }

  #mounted(sandboxId: SandboxId, mount: Mount): void {
    const { note, tell } = this.#parts;
    note(() => `${mount.drive} is at ${mount.path} of ${sandboxId.slice(-3)}, ${mount.state}`);
    tell({ type: "mounted", sandboxId, mount });
  }
}

async function* once(text: string): AsyncIterable<Uint8Array> {
  yield Buffer.from(text);
}
