import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { Readable } from "node:stream";
import {
  CreateSandbox,
  type Drive,
  type DriveId,
  HoldfastError,
  isImageName,
  newDriveId,
  newSandboxId,
  randomText,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import { clearDirectory, NoRoomForBackup, type OciDriver, StateCopier } from "@holdfast/drivers/oci";
import type { DriveRecord, EngineApi, SandboxRecord } from "@holdfast/engine";
import { PorterError } from "@holdfast/keeper";
import type { TransferService } from "@holdfast/server";
import { Value } from "typebox/value";
import { pack, unpack } from "./archive.ts";
import { type BackupParts, copyAlone } from "./take-backup.ts";

const FORMAT = 1;
const INFO = "export.json";
const STATE = "state";
const VERSION_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** Describes an exported sandbox or drive. */
interface ExportInfo {
  format: number;
  kind: "sandbox" | "drive";
  id: string;
  name: string;
  /** First UID and GID of the range on the host to which the owners of the files belong. */
  idBase: number;
  spec?: SandboxRecord["spec"];
  image?: { name: string; version: string };
  sizeMb?: number | null;
  labels?: Record<string, string>;
}

interface TransferParts extends BackupParts {
  engine: EngineApi;
  driver: OciDriver;
}

/**
 * Exports a sandbox or a drive to one file, and imports it from such a file, into this or another installation. The
 * export of a sandbox contains its files and its image, but no memory: an imported sandbox starts from its files. It
 * gets a new id, so any number of imports can exist beside the original. Everything in an archive is untrusted: only
 * the files that are needed are taken from it, and the porter copies them.
 */
export class Transfers implements TransferService {
  readonly #parts: TransferParts;

  constructor(parts: TransferParts) {
    this.#parts = parts;
  }

  /**
   * Removes the files that exports and imports of a killed server left behind. Must be called before the first export
   * or import.
   */
  async clear(): Promise<void> {
    if (existsSync(this.#root)) await clearDirectory(this.#root, () => false);
  }

  get #root(): string {
    return join(this.#parts.stateDir, "transfers");
  }

  #makeRoom(): string {
    const room = join(this.#root, randomText(12));
    mkdirSync(join(room, STATE), { recursive: true, mode: 0o700 });
    return room;
  }

  #idBase(): number {
    return JSON.parse(readFileSync(join(this.#parts.stateDir, "ids.json"), "utf8")).base as number;
  }

  #copier(from: string, to: string, target: "backup" | "state"): StateCopier {
    const { installation } = this.#parts.store;
    const isSourceIdle = from !== this.#parts.stateDir;
    return new StateCopier({
      from: { stateDir: from, installation },
      to: { stateDir: to, installation },
      isSourceIdle,
      target,
    });
  }

  async exportSandbox(ref: string, signal: AbortSignal): Promise<Readable> {
    const { id } = await this.#parts.engine.sandboxes.get(ref);
    return this.#export(signal, async (copier, state) => {
      await copyAlone(this.#parts, copier, { sandboxes: [id as SandboxId], drives: [] }, signal);
      const record = await this.#parts.store.sandbox(id as SandboxId);
      if (record === null) throw new HoldfastError("sandbox_gone");
      await copier.unseal(record.id);
      const image = copier.imageOf(record.id);
      await copier.image(image.name, signal, image.version);
      const { name, spec } = record;
      for (const part of ["mounts.json", "bundle", "control"])
        await copier.removeTree(join(state, "sandboxes", id, part));
      return { kind: "sandbox", id, name, spec, image };
    });
  }

  async exportDrive(ref: string, signal: AbortSignal): Promise<Readable> {
    const { id } = await this.#parts.engine.drives.get(ref, signal);
    return this.#export(signal, async (copier) => {
      await copyAlone(this.#parts, copier, { sandboxes: [], drives: [id as DriveId] }, signal);
      const record = (await this.#parts.store.drives()).find((drive) => drive.id === id);
      if (record === undefined) throw new HoldfastError("drive_not_found");
      const { name, sizeMb, labels } = record;
      return { kind: "drive", id, name, sizeMb, labels };
    });
  }

  async #export(
    signal: AbortSignal,
    fill: (copier: StateCopier, state: string) => Promise<Omit<ExportInfo, "format" | "idBase">>,
  ): Promise<Readable> {
    const room = this.#makeRoom();
    const state = join(room, STATE);
    const copier = this.#copier(this.#parts.stateDir, state, "backup");
    const clear = () => copier.removeTree(room).finally(() => copier.close());
    try {
      const info = { format: FORMAT, idBase: this.#idBase(), ...(await fill(copier, state)) };
      writeFileSync(join(room, INFO), JSON.stringify(info satisfies ExportInfo));
      signal.throwIfAborted();
      return pack(room, [INFO, STATE], clear);
    } catch (error) {
      await clear();
      throw error;
    }
  }

  async importSandbox(
    name: string | undefined,
    archive: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<Sandbox> {
    const { clock, engine } = this.#parts;
    return this.#import("sandbox", archive, signal, async (info, { source, target, copier }) => {
      const record = newRecord(info, name ?? info.name, clock.now());
      const { id, spec } = record;
      const dir = join(source, "sandboxes", id);
      requirePlain(join(source, "sandboxes", info.id), "directory");
      renameSync(join(source, "sandboxes", info.id), dir);
      requirePlain(join(dir, "upper"), "directory");
      await this.#replaceNotes(dir, info, id, copier);
      await fromArchive(() =>
        copier.sandbox({ id, diskMb: spec.resources.diskMb, checkpoint: null, saved: [] }, signal),
      );
      await this.#importImage(info, source, signal);
      const place = join(this.#parts.stateDir, "sandboxes", id);
      renameSync(join(target, "sandboxes", id), place);
      await orRemoved(() => engine.adoptSandbox(record), place, copier);
      return engine.sandboxes.get(id);
    });
  }

  /**
   * Removes everything except the upper layer from an unpacked sandbox, because the archive is untrusted. Then writes a
   * new creation note and creates an empty control directory.
   */
  async #replaceNotes(
    dir: string,
    { image }: ExportInfo,
    sandboxId: string,
    copier: StateCopier,
  ): Promise<void> {
    for (const name of readdirSync(dir)) if (name !== "upper") await copier.removeTree(join(dir, name));
    const isSound = image !== undefined && isImageName(image.name) && VERSION_PATTERN.test(image.version);
    if (!isSound) throw invalid("it does not name its image");
    const note = { sandboxId, image: image.name, imageVersion: image.version };
    writeFileSync(join(dir, "order.json"), JSON.stringify(note), { mode: 0o600 });
    copier.makeControl(dir);
  }

  /** Adds the version of the image that the sandbox needs, if this installation lacks it. */
  async #importImage({ image }: ExportInfo, source: string, signal: AbortSignal): Promise<void> {
    if (image === undefined) return;
    const { name, version } = image;
    const from = join(source, "images", name);
    const copier = this.#copier(source, this.#parts.stateDir, "backup");
    try {
      for (const path of [join(source, "images"), from, join(from, version), join(from, version, "rootfs")])
        requirePlain(path, "directory");
      requirePlain(join(from, "image.json"), "file");
      await copier.image(name, signal, version);
      await this.#parts.driver.reloadImages();
    } finally {
      copier.close();
    }
  }

  async importDrive(
    name: string | undefined,
    archive: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<Drive> {
    const { clock, engine } = this.#parts;
    return this.#import("drive", archive, signal, async (info, { source, target, copier }) => {
      const id = newDriveId();
      const sizeMb = typeof info.sizeMb === "number" && info.sizeMb > 0 ? Math.floor(info.sizeMb) : null;
      const dir = join(source, "drives", id);
      requirePlain(join(source, "drives", info.id), "directory");
      renameSync(join(source, "drives", info.id), dir);
      for (const each of readdirSync(dir)) if (each !== "data") await copier.removeTree(join(dir, each));
      requirePlain(join(dir, "data"), "directory");
      writeFileSync(join(dir, "drive.json"), JSON.stringify({ sizeMb, ino: "0" }), { mode: 0o600 });
      await fromArchive(() => copier.drive(id, signal));
      const record: DriveRecord = {
        ...{ id, name: name ?? info.name, phase: "ready", sizeMb, labels: info.labels ?? {}, owner: null },
        ...{ createdAt: clock.now(), revision: 0 },
      };
      const place = join(this.#parts.stateDir, "drives", id);
      renameSync(join(target, "drives", id), place);
      await orRemoved(() => engine.adoptDrive(record), place, copier);
      return engine.drives.get(id, signal);
    });
  }

  async #import<Result>(
    kind: ExportInfo["kind"],
    archive: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
    take: (
      info: ExportInfo,
      places: { source: string; target: string; copier: StateCopier },
    ) => Promise<Result>,
  ): Promise<Result> {
    const room = this.#makeRoom();
    const [source, target] = [join(room, "archive"), join(room, "new")];
    mkdirSync(source, { mode: 0o700 });
    rmSync(join(room, STATE), { recursive: true });
    let copier: StateCopier | null = null;
    try {
      await unpack(archive, source, signal);
      const info = readInfo(source, kind, this.#idBase());
      const state = join(source, STATE);
      requirePlain(state, "directory");
      requirePlain(join(state, kind === "sandbox" ? "sandboxes" : "drives"), "directory");
      rmSync(join(state, "ids.json"), { force: true });
      writeFileSync(join(state, "ids.json"), readFileSync(join(this.#parts.stateDir, "ids.json")));
      mkdirSync(target, { mode: 0o700 });
      copier = this.#copier(state, target, "state");
      return await take(info, { source: state, target, copier });
    } finally {
      const cleaner = copier ?? this.#copier(this.#parts.stateDir, join(room, "none"), "backup");
      await cleaner.removeTree(room);
      cleaner.close();
    }
  }
}

/**
 * Runs `copy`, which copies files from an archive. If the porter throws an error, the archive is reported as invalid.
 */
async function fromArchive(copy: () => Promise<unknown>): Promise<void> {
  try {
    await copy();
  } catch (error) {
    if (error instanceof NoRoomForBackup) throw new HoldfastError("disk_full", { cause: error });
    if (error instanceof PorterError) throw invalid(error.message);
    throw error;
  }
}

/**
 * Runs `adopt`, which creates the record of imported files. If `adopt` fails, removes the files, because files without
 * a record would be orphans.
 */
async function orRemoved(adopt: () => Promise<void>, place: string, copier: StateCopier): Promise<void> {
  try {
    await adopt();
  } catch (error) {
    await copier.removeTree(place);
    throw error;
  }
}

/** Reads the description of an archive. Throws if this installation can't import the archive. */
function readInfo(directory: string, kind: ExportInfo["kind"], idBase: number): ExportInfo {
  const path = join(directory, INFO);
  requirePlain(path, "file");
  let info: Partial<ExportInfo>;
  try {
    info = JSON.parse(readFileSync(path, "utf8")) as Partial<ExportInfo>;
  } catch {
    throw invalid(`its ${INFO} can't be read`);
  }
  if (info.format !== FORMAT) throw invalid(`it has format ${info.format}, which this version does not know`);
  if (info.kind !== kind) throw invalid(`it contains a ${info.kind}, not a ${kind}`);
  if (info.idBase !== idBase)
    throw new HoldfastError("not_supported", {
      message: `The files in the archive belong to host ids from ${info.idBase} up, those of this installation to ids from ${idBase} up.`,
    });
  if (typeof info.id !== "string" || !/^[a-z]+_[a-z0-9]+$/.test(info.id) || typeof info.name !== "string")
    throw invalid("it has no valid id and name");
  return info as ExportInfo;
}

function newRecord({ spec }: ExportInfo, name: string, now: number): SandboxRecord {
  const { image, env = {}, cwd = null, resources, lifecycle = {}, labels = {} } = spec ?? {};
  const wanted = { name, image, env, ...(cwd === null ? {} : { cwd }), resources, lifecycle, labels };
  if (image === undefined || resources === undefined || !Value.Check(CreateSandbox, wanted))
    throw invalid("the description of its sandbox is not valid");
  return {
    ...{ id: newSandboxId(), name, nameHeld: true, generation: 0, memorySince: 0, instance: null },
    ...{ phase: { name: "standby", checkpoint: null, failedWakes: 0 }, lease: { state: "none" } },
    ...{ spec: { image, env, cwd, resources, lifecycle, labels }, owner: null, execsStarted: 0 },
    ...{ createdAt: now, lastActivityAt: now, transitionedAt: now, endedAt: null, forkedFrom: null },
    ...{ mounts: [], restarts: { since: now, count: 0, restoredAt: now }, revision: 0 },
  };
}

/**
 * Throws if the path in an unpacked archive is not a file or directory as expected. A symbolic link, for example, could
 * lead anywhere on the host.
 */
function requirePlain(path: string, kind: "file" | "directory"): void {
  const found = lstatSync(path, { throwIfNoEntry: false });
  const isRight = kind === "file" ? found?.isFile() : found?.isDirectory();
  if (!isRight) throw invalid("a part of it is missing");
}

const invalid = (why: string): HoldfastError =>
  new HoldfastError("invalid_request", {
    message: `The archive is not a valid Holdfast export: ${why}.`,
  });
