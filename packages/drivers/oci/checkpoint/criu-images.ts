/**
 * Edits CRIU's image of open files, `files.img`. CRIU stores the size and mode of each open file in it, and refuses the
 * restore if a file then has another size or mode. Files in drives may change legitimately, because other sandboxes
 * write to the drive while this one is in standby; so their size and mode are removed from the image.
 *
 * Format: two magic words, then protobuf messages, each after its length. Field 3 of a message is a regular file or
 * directory; in it, field 6 is the name, field 8 the size and field 10 the mode.
 */
const MAGICS = [0x54564319, 0x56303138];
const WORD = 4;
const REGULAR = 3;
const NAME = 6;
const COMPARED = new Set([8, 10]);

const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const FIXED32 = 5;

interface Field {
  number: number;
  /** All bytes of the field: its tag, its length and its value. */
  whole: Buffer;
  /** The field's value alone. */
  content: Buffer;
}

/**
 * Returns CRIU's image of open files without the sizes and modes of the files for which `isShared` is true. Throws if
 * the input is not such an image.
 */
export function removeComparedFields(image: Buffer, isShared: (name: string) => boolean): Buffer {
  for (const [index, magic] of MAGICS.entries())
    if (image.length < (index + 1) * WORD || image.readUInt32LE(index * WORD) !== magic)
      throw new Error("the image of open files has an unexpected format");
  const parts = [image.subarray(0, MAGICS.length * WORD)];
  for (let at = MAGICS.length * WORD; at < image.length; ) {
    if (at + WORD > image.length) throw new Error("the image of open files is truncated");
    const size = image.readUInt32LE(at);
    const end = at + WORD + size;
    if (end > image.length) throw new Error("the image of open files is truncated");
    const entry = removeFromEntry(image.subarray(at + WORD, end), isShared);
    const length = Buffer.alloc(WORD);
    length.writeUInt32LE(entry.length);
    parts.push(length, entry);
    at = end;
  }
  return Buffer.concat(parts);
}

function removeFromEntry(entry: Buffer, isShared: (name: string) => boolean): Buffer {
  const fields = fieldsOf(entry);
  const regular = fields.find(({ number }) => number === REGULAR);
  if (regular === undefined) return entry;
  const inner = fieldsOf(regular.content);
  const name = inner.find(({ number }) => number === NAME)?.content.toString();
  if (name === undefined || !isShared(name)) return entry;
  const kept = Buffer.concat(inner.filter(({ number }) => !COMPARED.has(number)).map(({ whole }) => whole));
  const changed = Buffer.concat([varint((REGULAR << 3) | BYTES), varint(kept.length), kept]);
  return Buffer.concat(fields.map((field) => (field === regular ? changed : field.whole)));
}

function fieldsOf(message: Buffer): Field[] {
  const fields: Field[] = [];
  for (let at = 0; at < message.length; ) {
    const tag = readVarint(message, at);
    const { from, to } = extentOf(message, tag.value & 7, tag.end);
    if (to > message.length) throw new Error("an entry of the image of open files is truncated");
    fields.push({
      number: tag.value >>> 3,
      whole: message.subarray(at, to),
      content: message.subarray(from, to),
    });
    at = to;
  }
  return fields;
}

/** Start and end of a field's content. `kind` is the protobuf wire type. */
function extentOf(message: Buffer, kind: number, at: number): { from: number; to: number } {
  switch (kind) {
    case VARINT:
      return { from: at, to: readVarint(message, at).end };
    case FIXED64:
      return { from: at, to: at + 8 };
    case FIXED32:
      return { from: at, to: at + 4 };
    case BYTES: {
      const length = readVarint(message, at);
      return { from: length.end, to: length.end + length.value };
    }
    default:
      throw new Error("the image of open files has a field of an unknown wire type");
  }
}

/**
 * Reads a varint. `end` is the offset after it. `value` contains only its low 28 bits, which is enough for every value
 * that callers use: field tags and lengths.
 */
function readVarint(message: Buffer, at: number): { value: number; end: number } {
  let value = 0;
  for (let shift = 0; shift < 70; shift += 7) {
    const byte = message[at++];
    if (byte === undefined) break;
    if (shift < 28) value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return { value, end: at };
  }
  throw new Error("the image of open files has an unterminated varint");
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest]);
    bytes.push((rest & 0x7f) | 0x80);
  }
}
