/** Removes host paths from a text before callers see it. */
export type Scrub = (text: string) => string;

/** Returns a function that replaces paths below the given host directories. */
export function createScrub(directories: readonly string[]): Scrub {
  const known = directories.filter((directory) => directory.length > 1);
  if (known.length === 0) return (text) => text;
  const escaped = known.map((directory) => directory.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pattern = new RegExp(`(?:${escaped.join("|")})(?:/[^\\s'"\`,;:)]*)?(?![\\w.-])`, "g");
  return (text) => text.replace(pattern, "<host path>");
}
