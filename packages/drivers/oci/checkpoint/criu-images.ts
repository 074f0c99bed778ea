/**
 * What CRIU writes of open files, and compares when it opens them again: their size and mode. A drive is shared, and others
 * write to it while a sandbox sleeps; nothing is wrong with a file there that has grown. The images are sequences of
 * protobuf messages behind two words: of `files.img`, entries whose third field is a regular file or directory, with its
 * name in the sixth field, size in the eighth and mode in the tenth.
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
  /** With its tag, and without. */
  whole: Buffer;
  content: Buffer;
}

/** The same image, in which nothing is compared of the files that are said. Fails where it is no such image. */
export function forgetCompared(image: Buffer, isShared: (name: string) => boolean): Buffer {
  for (const [index, magic] of MAGICS.entries())
    if (image.length < (index + 1) * WORD || image.readUInt32LE(index * WORD) !== magic)
      throw new Error("the image of open files has another form than expected");
  const parts = [image.subarray(0, MAGICS.length * WORD)];
  for (let at = MAGICS.length * WORD; at < image.length; ) {
    if (at + WORD > image.length) throw new Error("the image of open files ends too soon");
    const size = image.readUInt32LE(at);
    const end = at + WORD + size;
    if (end > image.length) throw new Error("the image of open files ends too soon");
    const entry = forgetIn(image.subarray(at + WORD, end), isShared);
    const length = Buffer.alloc(WORD);
    length.writeUInt32LE(entry.length);
    parts.push(length, entry);
    at = end;
  }
  return Buffer.concat(parts);
}

function forgetIn(entry: Buffer, isShared: (name: string) => boolean): Buffer {
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
    if (to > message.length) throw new Error("an entry of the image of open files ends too soon");
    fields.push({
      number: tag.value >>> 3,
      whole: message.subarray(at, to),
      content: message.subarray(from, to),
    });
    at = to;
  }
  return fields;
}

/** Where the content of a field of this kind begins and ends. */
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
      throw new Error("the image of open files has a field of an unknown kind");
  }
}

/** Larger values than 32 bits are passed over rightly, and not needed. */
function readVarint(message: Buffer, at: number): { value: number; end: number } {
  let value = 0;
  for (let shift = 0; shift < 70; shift += 7) {
    const byte = message[at++];
    if (byte === undefined) break;
    if (shift < 28) value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return { value, end: at };
  }
  throw new Error("the image of open files has a number that does not end");
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest]);
    bytes.push((rest & 0x7f) | 0x80);
  }
}
