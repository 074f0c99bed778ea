import { existsSync, readFileSync, renameSync, statSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { join } from "node:path";
import type { InstallationId } from "@holdfast/contract";
import { copiedDirectories, mountedElsewhere, notePlaces } from "@holdfast/drivers/oci";
import { StartFailure } from "../start-failure.ts";
import { MANIFEST_FILE } from "./backup-manifest.ts";

/**
 * The place of an installation: its path, and the inode and creation time of its sandboxes' directory. Inode and
 * creation time distinguish the installation from a copy of it. A reboot or a rename of the state directory does not
 * change them.
 */
interface Place {
  installation: string;
  path: string;
  inode: string;
  born: string;
}

const PLACE_FILE = "place.json";
/** This file exists in the target of a restore until the restore is complete. */
export const RESTORING_FILE = "restoring.json";

const sandboxesIn = (stateDir: string): string => join(stateDir, "sandboxes");

function placeOf(stateDir: string): Pick<Place, "inode" | "born"> | null {
  const found = statSync(sandboxesIn(stateDir), { bigint: true, throwIfNoEntry: false });
  return found === undefined ? null : { inode: String(found.ino), born: String(found.birthtimeNs) };
}

function readPlace(stateDir: string): Place | null {
  try {
    return JSON.parse(readFileSync(join(stateDir, PLACE_FILE), "utf8")) as Place;
  } catch {
    return null;
  }
}

/**
 * Records the place of the installation: this directory's path, and the inode and creation time of `sandboxes` in it.
 * Also adds the place to the notes of sandboxes and drives that lack it. A later start recognizes a copy by these
 * records.
 */
export function recordPlace(stateDir: string, installation: InstallationId): void {
  notePlaces(stateDir);
  const place = placeOf(stateDir);
  const known = readPlace(stateDir);
  if (place === null) return;
  if (known !== null && isAt(known, place) && known.installation === installation && known.path === stateDir)
    return;
  const file = join(stateDir, PLACE_FILE);
  const text = JSON.stringify({ installation, path: stateDir, ...place } satisfies Place);
  writeFileSync(`${file}.new`, text, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

/**
 * Returns whether a directory is the recorded one. A creation time of 0 means that the file system stores no creation
 * times; then only the inodes are compared.
 */
const isAt = (known: Place, { inode, born }: Pick<Place, "inode" | "born">): boolean =>
  known.inode === inode && (known.born === born || known.born === "0" || born === "0");

/**
 * Returns the recorded path of the original if the directory is a copy of an installation; null if it is not a copy.
 */
export function copiedFrom(stateDir: string): string | null {
  const known = readPlace(stateDir);
  const place = placeOf(stateDir);
  if (known === null || place === null || isAt(known, place)) return null;
  return known.path;
}

/**
 * Returns whether copies were put in place of the directories of sandboxes or drives. In that case `sandboxes` itself
 * is the recorded directory, but several directories in it, or all of them, are copies. A single copy among several
 * directories does not count, because it may have been put there on purpose.
 */
export function hasCopiedParts(stateDir: string): boolean {
  const { noted, copied } = copiedDirectories(stateDir);
  return copied.length > 1 || (copied.length === 1 && noted === 1);
}

/** Whether the directory has no note of its place, because an earlier version of Holdfast made or copied it. */
export const isUnplaced = (stateDir: string): boolean => readPlace(stateDir) === null;

/**
 * Refuses to start a server in a copied state directory that has no `place.json`, while sandboxes of the original run
 * on this host. The sandboxes of copy and original have the same marker, so the server would take the original's
 * sandboxes for its own and end them.
 */
export function requireNoOriginal(stateDir: string, installation: InstallationId): void {
  if (!isUnplaced(stateDir)) return;
  const mount = mountedElsewhere(stateDir, installation);
  if (mount === null) return;
  throw new StartFailure(
    `${stateDir} is a copy: a sandbox of its original is mounted at ${mount}, and both have the same identity.`,
    `Give the copy an identity of its own: 'holdfast restore ${stateDir} NEWDIR', then set HOLDFAST_DIR to NEWDIR.`,
  );
}

/**
 * Refuses to start a server in a directory that is a backup, an unfinished restore or a copy. A copy has the identity
 * of its original, so a server on the copy would stop the original's sandboxes. The copy's own sandboxes would not
 * start, because the kernel ties their files to inodes that a copy does not have.
 */
export function requireOwnPlace(stateDir: string): void {
  if (existsSync(join(stateDir, MANIFEST_FILE)))
    throw new StartFailure(
      `${stateDir} is a backup, and a server does not run in a backup.`,
      `Restore it into a new directory: 'holdfast restore ${stateDir} NEWDIR', then set HOLDFAST_DIR to NEWDIR.`,
    );
  if (existsSync(join(stateDir, RESTORING_FILE)))
    throw new StartFailure(
      `${stateDir} is the target of a restore that did not finish.`,
      "Run the same 'holdfast restore' again: it begins from the start. The backup is unchanged.",
    );
  const aside = `${stateDir}.copy`;
  const fromAside = `Move it aside and restore from it: 'mv ${stateDir} ${aside}', then 'holdfast restore ${aside} ${stateDir}'.`;
  const original = copiedFrom(stateDir);
  if (original === null) {
    if (!hasCopiedParts(stateDir)) return;
    throw new StartFailure(
      `The files of sandboxes or drives in ${stateDir} were replaced by copies, which can't be used in their place.`,
      fromAside,
    );
  }
  const fix =
    original === stateDir
      ? fromAside
      : `Give the copy an identity of its own: 'holdfast restore ${stateDir} NEWDIR', then set HOLDFAST_DIR to NEWDIR.`;
  throw new StartFailure(
    `${stateDir} is a copy of the state directory ${original}: its files were copied, and it has the original's identity.`,
    fix,
  );
}

/**
 * Makes this process the only server with this identity on the host, whatever path its state directory has. The
 * identity is the name of a socket, which the kernel frees when the process ends.
 */
export async function holdIdentity(installation: InstallationId): Promise<{ release(): Promise<void> }> {
  const server = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) =>
      reject(error.code === "EADDRINUSE" ? identityTaken() : error),
    );
    server.listen({ path: `\0holdfast-${installation}` }, resolve);
  });
  server.unref();
  return { release: () => closed(server) };
}

const closed = (server: Server): Promise<void> => new Promise((resolve) => server.close(() => resolve()));

const identityTaken = (): StartFailure =>
  new StartFailure(
    "Another server with the same identity runs on this host: one of the two state directories is a copy of the other.",
    "Give the copy an identity of its own: 'holdfast restore COPY NEWDIR', then set HOLDFAST_DIR to NEWDIR.",
  );
