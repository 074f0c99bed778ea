/** Paths as that platform reads them: what is not absolute begins at the root, and `~` is the home of the user there, root. */
const HOME = "/root";

export function homed(path: string): string {
  const absolute = `/${path}`.replaceAll(/\/{2,}/g, "/").replace(/^\/~(?=\/|$)/, HOME);
  return absolute.replace(/(?<=.)\/$/, "");
}
