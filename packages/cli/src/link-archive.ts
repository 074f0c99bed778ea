const BLOCK_BYTES = 512;

/** A tar archive of nothing but a symbolic link: unpacking it makes one, with nothing to be run for it. */
export function linkArchive(name: string, target: string): Uint8Array {
  const records = Buffer.from(record(`path=${name}`) + record(`linkpath=${target}`));
  const padding = Buffer.alloc(-records.length & (BLOCK_BYTES - 1));
  const end = Buffer.alloc(2 * BLOCK_BYTES);
  return Buffer.concat([header("x", records.length), records, padding, header("2", 0), end]);
}

/** It begins with its own length, the digits of which count as well. */
function record(text: string): string {
  const rest = Buffer.byteLength(text) + 2;
  const digits = String(rest + String(rest).length).length;
  return `${rest + digits} ${text}\n`;
}

/** Names are in the records before it, which have room for any. */
function header(type: string, sizeBytes: number): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  const octal = (value: number, at: number, digits: number) =>
    block.write(value.toString(8).padStart(digits, "0"), at);
  block.write("link", 0);
  octal(0o777, 100, 7);
  octal(sizeBytes, 124, 11);
  octal(Math.floor(Date.now() / 1000), 136, 11);
  block.write(type, 156);
  block.write("ustar\x0000", 257);
  // The sum is taken with blanks in its own place.
  block.fill(" ", 148, 156);
  octal(
    block.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  );
  block.writeUInt8(0, 154);
  return block;
}
