/** Reports a row whose stored form is invalid. Only that record is affected. */
export class UnreadableRecord extends Error {
  readonly table: string;
  readonly id: string;
  constructor(table: string, id: string, cause: unknown) {
    super(`${table} ${id} could not be read: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    });
    this.name = "UnreadableRecord";
    this.table = table;
    this.id = id;
  }
}

/** Reports a database that was written by a later version of Holdfast, which this version cannot interpret. */
export class NewerDatabase extends Error {
  readonly found: number;
  readonly known: number;
  /** What the operator can do. */
  readonly fix: string;
  constructor(found: number, known: number, copies: readonly DatabaseCopy[]) {
    super(
      `The database has schema version ${found}, but this version of Holdfast knows only versions up to ${known}.`,
    );
    this.name = "NewerDatabase";
    this.found = found;
    this.known = known;
    const copy = copies.find(({ version }) => version <= known);
    const back =
      copy === undefined
        ? "This directory has no copy of the database that this version could open."
        : `To go back to this version instead, replace the database by the copy from before the upgrade, ${copy.path}, as docs/operating.md describes; everything that was recorded since is then lost.`;
    this.fix = `Start the newer version of Holdfast that wrote the database. ${back}`;
  }
}

/** A copy of the database that was made before an upgrade of its schema. */
export interface DatabaseCopy {
  path: string;
  /** Version of the schema in the copy. */
  version: number;
}

/** Reports that the disk has no room for the copy of the database that is made before its schema is upgraded. */
export class NoRoomForCopy extends Error {
  readonly fix: string;
  constructor(neededBytes: number, freeBytes: number) {
    const mb = (bytes: number) => Math.ceil(bytes / 1_048_576);
    super(
      `The database must be upgraded, and the disk has no room for the copy that is made before: the copy needs ${mb(neededBytes)} MB, and ${mb(freeBytes)} MB are free.`,
    );
    this.name = "NoRoomForCopy";
    this.fix =
      "Free disk space and start again. The database is unchanged: the earlier version of Holdfast can start and delete sandboxes.";
  }
}

/** Reports that another server holds the state directory. */
export class DirectoryHeld extends Error {
  readonly directory: string;
  /** Pid of the server that holds the directory, if known. */
  readonly pid: number | null;
  constructor(directory: string, pid: number | null) {
    const holder = pid === null ? "another process" : `process ${pid}`;
    super(`${directory} is in use by ${holder}: stop it first, or choose another state directory`);
    this.name = "DirectoryHeld";
    this.directory = directory;
    this.pid = pid;
  }
}
