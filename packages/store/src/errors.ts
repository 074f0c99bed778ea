/** A row whose stored form is not what was written. Only that record is affected. */
export class UnreadableRecord extends Error {
  readonly table: string;
  readonly id: string;
  constructor(table: string, id: string, cause: unknown) {
    super(`${table} ${id} can't be read: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    });
    this.name = "UnreadableRecord";
    this.table = table;
    this.id = id;
  }
}

/** The database was written by a later version of Holdfast, which may mean things by it that this one can't know. */
export class NewerDatabase extends Error {
  readonly found: number;
  readonly known: number;
  constructor(found: number, known: number) {
    super(
      `the database has schema version ${found}, but this Holdfast knows only up to ${known}: start the newer version that wrote it, or restore a copy from before the upgrade`,
    );
    this.name = "NewerDatabase";
    this.found = found;
    this.known = known;
  }
}

/** Another server owns the state directory. */
export class DirectoryHeld extends Error {
  readonly directory: string;
  /** Of the holder, where it could be learned. */
  readonly pid: number | null;
  constructor(directory: string, pid: number | null) {
    const holder = pid === null ? "another process" : `process ${pid}`;
    super(`${directory} is in use by ${holder}: stop it first, or choose another state directory`);
    this.name = "DirectoryHeld";
    this.directory = directory;
    this.pid = pid;
  }
}
