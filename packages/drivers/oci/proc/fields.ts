/** The number behind a name at the beginning of a line of one of the kernel's small files; 0 where there is none. */
export function fieldOf(text: string, name: string): number {
  const isFirst = text.startsWith(`${name} `);
  const before = isFirst ? 0 : text.indexOf(`\n${name} `) + 1;
  if (!isFirst && before === 0) return 0;
  const end = text.indexOf("\n", before);
  return Number(text.slice(before + name.length + 1, end < 0 ? undefined : end));
}
