/**
 * The header of a tar entry: POSIX ustar, preceded by a pax header for values that ustar can't represent (long and non-ASCII
 * names, large files, fractions of seconds).
 */
export interface TarEntry {
  /** The entry's relative path. The path of a directory ends with a slash. */
  name: string;
  kind: "file" | "directory" | "symlink";
  mode: number;
  uid: number;
  gid: number;
  /** The size of a file; 0 for any other entry. */
  sizeBytes: number;
  /** In milliseconds. */
  modifiedAt: number;
  /** The target of a symbolic link; empty for any other entry. */
  target: string;
}

const BLOCK_BYTES = 512;
const TYPES = { file: "0", directory: "5", symlink: "2", pax: "x" } as const;
/** Maximum length of an entry's name or of a symbolic link's target in the header, in bytes. */
const TEXT_BYTES = 100;
/** The largest uid or gid that fits in its octal field. */
const ID_MAX = 0o7777777;
/** The largest file size or modification time that fits in its octal field. */
const LARGE_MAX = 0o77777777777;

export function tarHeader(entry: TarEntry): Buffer {
  const records = Buffer.from(paxRecords(entry));
  if (records.length === 0) return ustar(entry, TYPES[entry.kind]);
  const head = { ...entry, name: "PaxHeader", target: "", mode: 0o644, sizeBytes: records.length };
  return Buffer.concat([
    ustar(head, TYPES.pax),
    records,
    tarPadding(records.length),
    ustar(entry, TYPES[entry.kind]),
  ]);
}

/** Returns the padding that fills the last block after content of this size. */
export const tarPadding = (sizeBytes: number): Buffer =>
  Buffer.alloc((BLOCK_BYTES - (sizeBytes % BLOCK_BYTES)) % BLOCK_BYTES);

/** The end of an archive. */
export const tarEnd = (): Buffer => Buffer.alloc(2 * BLOCK_BYTES);

/** Returns the pax records for values that the ustar header can't represent exactly. */
function paxRecords({ name, target, sizeBytes, uid, gid, modifiedAt }: TarEntry): string {
  const seconds = modifiedAt / 1_000;
  const fields: [name: string, value: string, needed: boolean][] = [
    ["path", name, !isPlain(name)],
    ["linkpath", target, !isPlain(target)],
    ["size", String(sizeBytes), sizeBytes > LARGE_MAX],
    ["uid", String(uid), uid > ID_MAX],
    ["gid", String(gid), gid > ID_MAX],
    ["mtime", String(seconds), !Number.isInteger(seconds) || seconds > LARGE_MAX],
  ];
  return fields.map(([key, value, needed]) => (needed ? paxRecord(`${key}=${value}`) : "")).join("");
}

const isPlain = (text: string): boolean => /^[\x20-\x7e]*$/.test(text) && text.length <= TEXT_BYTES;

/** Formats a pax record. A record begins with its own length, which includes the digits of the length itself. */
function paxRecord(text: string): string {
  const rest = Buffer.byteLength(text) + 2;
  const digits = String(rest + String(rest).length).length;
  return `${rest + digits} ${text}\n`;
}

function ustar(entry: TarEntry, type: string): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  block.write(entry.name, 0, TEXT_BYTES);
  octal(block, entry.mode & 0o7777, 100, 7);
  octal(block, Math.min(entry.uid, ID_MAX), 108, 7);
  octal(block, Math.min(entry.gid, ID_MAX), 116, 7);
  octal(block, Math.min(entry.sizeBytes, LARGE_MAX), 124, 11);
  octal(block, Math.min(Math.floor(entry.modifiedAt / 1_000), LARGE_MAX), 136, 11);
  block.write(type, 156);
  block.write(entry.target, 157, TEXT_BYTES);
  block.write("ustar\x0000", 257);
  // The checksum is computed with its own field filled with spaces.
  block.fill(" ", 148, 156);
  octal(
    block,
    block.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  );
  block[154] = 0;
  return block;
}

function octal(block: Buffer, value: number, at: number, digits: number): void {
  block.write(value.toString(8).padStart(digits, "0"), at);
}
