/** Reads the number after `name` from a kernel file with lines of the form `name number`; 0 if the name is absent. */
export function fieldOf(text: string, name: string): number {
  const isFirst = text.startsWith(`${name} `);
  const before = isFirst ? 0 : text.indexOf(`\n${name} `) + 1;
  if (!isFirst && before === 0) return 0;
  const end = text.indexOf("\n", before);
  return Number(text.slice(before + name.length + 1, end < 0 ? undefined : end));
}

export const words = (text: string): string[] => text.split(/\s+/).filter(Boolean);
