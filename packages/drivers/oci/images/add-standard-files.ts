import { DEFAULT_USER, HoldfastError } from "@holdfast/contract";
import type { JailedFiles } from "@holdfast/keeper";
import { readStart, statIfThere } from "./check-image.ts";

const ROOT = { uid: 0, gid: 0 };
const MAX_TABLE_BYTES = 1_048_576;

/**
 * Directories at which the runtime mounts file systems. An image that has a file or symbolic link at one of these paths
 * can't be launched.
 */
const MOUNT_POINTS = ["/proc", "/dev", "/sys"];

/** Adds what every sandbox needs to an image: mount points, /tmp, and the user that commands run as. */
export async function addStandardFiles(jail: JailedFiles, signal: AbortSignal): Promise<void> {
  for (const path of [...MOUNT_POINTS, "/etc"]) await requireDirectory(jail, path, 0o755, signal);
  await requireDirectory(jail, "/tmp", 0o1777, signal);
  if ((await statIfThere(jail, "/.holdfast", signal, false)) !== null) {
    await jail.remove("/.holdfast", { recursive: true }, signal);
  }
  await jail.mkdir("/.holdfast", { mode: 0o755, ...ROOT }, signal);
  const home = await requireUser(jail, signal);
  if ((await statIfThere(jail, home, signal)) !== null) return;
  await jail.mkdir(
    home,
    { mode: 0o755, parents: true, uid: DEFAULT_USER.uid, gid: DEFAULT_USER.gid },
    signal,
  );
}

async function requireDirectory(
  jail: JailedFiles,
  path: string,
  mode: number,
  signal: AbortSignal,
): Promise<void> {
  const found = await statIfThere(jail, path, signal, false);
  if (found === null) return jail.mkdir(path, { mode, ...ROOT }, signal);
  if (found.kind === "directory") return;
  throw new HoldfastError("image_incapable", { message: `The image's ${path} is not a directory.` });
}

/**
 * Adds the default user and its group to /etc/passwd and /etc/group if they are missing. Returns the user's home
 * directory.
 */
async function requireUser(jail: JailedFiles, signal: AbortSignal): Promise<string> {
  const { name, uid, gid, home } = DEFAULT_USER;
  const users = await readTable(jail, "/etc/passwd", signal);
  const groups = await readTable(jail, "/etc/group", signal);
  const known = users.find((row) => Number(row[2]) === uid);
  const free = users.some((row) => row[0] === name) ? "holdfast" : name;
  if (!groups.some((row) => Number(row[2]) === gid)) {
    await writeTable(jail, "/etc/group", [...groups, [free, "x", String(gid), ""]], signal);
  }
  if (known !== undefined) return known[5]?.startsWith("/") ? known[5] : home;
  const rootRow = ["root", "x", "0", "0", "root", "/root", "/bin/sh"];
  const rows = users.length === 0 ? [rootRow] : users;
  const row = [free, "x", String(uid), String(gid), "", home, "/bin/sh"];
  await writeTable(jail, "/etc/passwd", [...rows, row], signal);
  return home;
}

async function readTable(jail: JailedFiles, path: string, signal: AbortSignal): Promise<string[][]> {
  if ((await statIfThere(jail, path, signal)) === null) return [];
  const text = (await readStart(jail, path, MAX_TABLE_BYTES, signal)).toString("utf8");
  return text
    .split("\n")
    .filter(Boolean)
    .map((line) => line.split(":"));
}

async function writeTable(
  jail: JailedFiles,
  path: string,
  rows: string[][],
  signal: AbortSignal,
): Promise<void> {
  const text = `${rows.map((row) => row.join(":")).join("\n")}\n`;
  const body = (async function* () {
    yield Buffer.from(text);
  })();
  await jail.write(path, body, { mode: 0o644, ...ROOT }, signal);
}
