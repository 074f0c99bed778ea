import type { CreateDrive, Drive, Mount, MountDrive, SandboxId } from "@holdfast/contract";
import type { Act } from "../schedule/schedule.ts";
import { driveMs, gateMs, mountMs, undriveMs, usableMs } from "./bounds.ts";
import { type ClientRequest, clientRequest, type Parts } from "./request.ts";

/** Mount paths. The last path lies inside the first one, so the two can't both be mounted. */
const PATHS = ["/mnt/a", "/mnt/b", "/mnt/a/deep"] as const;

type DriveDeed = "drive" | "undrive" | "show-drive" | "mount" | "unmount" | "mounts" | "write-at";
type DriveAct = Extract<Act, { do: DriveDeed }>;

/** Creates the requests of callers about drives and mounts. */
export class DriveRequests {
  readonly #parts: Parts;
  readonly #refOf: (box: number) => string | null;
  readonly #drives = new Map<number, { name: string | null; id: string | null }>();

  constructor(parts: Parts, refOf: (box: number) => string | null) {
    this.#parts = parts;
    this.#refOf = refOf;
  }

  /** Returns the request for an act; null if the callers do not know the id of the object that the act is about. */
  of(act: DriveAct): ClientRequest | null {
    if (act.do === "drive") return this.#create(act);
    if (act.do === "undrive" || act.do === "show-drive") {
      const drive = this.#driveRef(act.drive);
      if (drive === null) return null;
      return act.do === "undrive" ? this.remove(drive, act.force) : this.#show(drive);
    }
    const ref = this.#refOf(act.box);
    return ref === null ? null : this.#onBox(act, ref);
  }

  /**
   * Returns a reference to a drive for a request: the drive's id if callers know it, else the id of another drive that
   * they know, else the drive's name. Null if callers know no drive.
   */
  #driveRef(drive: number): string | null {
    const known = [...this.#drives.values()].flatMap(({ id }) => id ?? []);
    const asked = this.#drives.get(drive);
    return asked?.id ?? known.at(-1) ?? asked?.name ?? null;
  }

  /** Returns the mounts for a create request. Mounts for which callers know no drive are left out. */
  inputs(mounts: readonly { drive: number; path: number }[]): MountDrive[] {
    return mounts.flatMap(({ drive, path }) => this.#input(drive, path, false) ?? []);
  }

  #input(drive: number, path: number, readOnly: boolean): MountDrive | null {
    const ref = this.#driveRef(drive);
    return ref === null ? null : { drive: ref, path: PATHS[path] ?? PATHS[0], ...(readOnly && { readOnly }) };
  }

  #create({ drive, name, sized, ifExists }: Extract<Act, { do: "drive" }>): ClientRequest {
    const { numbers, note } = this.#parts;
    const input: CreateDrive = {
      ...(name === null ? {} : { name: `drive-${name}` }),
      ...(sized ? { sizeMb: 64 } : {}),
      ifExists,
    };
    this.#drives.set(drive, { name: input.name ?? null, id: null });
    return clientRequest(
      [`drive ${drive}${input.name === undefined ? "" : ` as ${input.name}`}`],
      driveMs(numbers),
      ({ drives }, signal) => drives.create(input, { signal }),
      ({ drive: made }) => {
        note(() => `drive ${drive} is ${made.id.slice(-3)} ${made.status}`);
        this.#drives.set(drive, { name: made.name, id: made.id });
        this.#reported(made);
      },
    );
  }

  #reported(drive: Drive): void {
    this.#parts.report({ type: "reported-drive", drive });
  }

  /** Creates a request to delete a drive by id or name. */
  remove(ref: string, force: boolean): ClientRequest {
    const { numbers, note, report } = this.#parts;
    const what = `${force ? "force " : ""}undrive ${ref.slice(-7)}`;
    return clientRequest(
      [what],
      undriveMs(numbers),
      ({ drives }, signal) => {
        report({ type: "unwanted", id: ref, force });
        return drives.remove(ref, { force, signal });
      },
      (left) => {
        note(() => `${what}: ${left?.status ?? "gone"}`);
        if (left !== null) this.#reported(left);
      },
    );
  }

  #show(ref: string): ClientRequest {
    const { numbers } = this.#parts;
    return clientRequest(
      [`show drive ${ref.slice(-7)}`],
      usableMs(numbers) + numbers.driveUsageMs,
      ({ drives }, signal) => drives.get(ref, signal),
      (drive) => this.#reported(drive),
    );
  }

  #onBox(act: Extract<DriveAct, { box: number }>, ref: string): ClientRequest | null {
    const { numbers, recordOf } = this.#parts;
    const record = recordOf(ref);
    if (act.do === "mounts")
      return clientRequest([`mounts ${ref.slice(-6)}`, ref], 0, (to) => to.mounts.list(ref));
    const path = PATHS[act.path] ?? PATHS[0];
    const what: [string, string] = [`${act.do} ${path} in ${ref.slice(-6)}`, ref];
    if (act.do === "unmount")
      return clientRequest(what, mountMs(record, numbers), (to, signal) =>
        to.mounts.unmount(ref, path, signal),
      );
    if (act.do === "write-at") {
      const bound = gateMs(record, numbers) + numbers.keeperCallMs + numbers.linkDeadMs;
      return clientRequest(what, bound, (to, signal) =>
        to.files.write(ref, `${path}/file`, once("some text"), { parents: true }, signal),
      );
    }
    const input = this.#input(act.drive, act.path, act.readOnly);
    if (input === null) return null;
    return clientRequest(
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
    const { note, report } = this.#parts;
    note(() => `${mount.drive} is at ${mount.path} of ${sandboxId.slice(-3)}, ${mount.state}`);
    report({ type: "mounted", sandboxId, mount });
  }
}

async function* once(text: string): AsyncIterable<Uint8Array> {
  yield Buffer.from(text);
}
