/**
 * Converts paths to the form that Holdfast expects. On the platform a relative path starts at `/`, and `~` is the home
 * of root, the platform's user.
 */
const HOME = "/root";

export function resolveHome(path: string): string {
  const absolute = `/${path}`.replaceAll(/\/{2,}/g, "/").replace(/^\/~(?=\/|$)/, HOME);
  return absolute.replace(/(?<=.)\/$/, "");
}
