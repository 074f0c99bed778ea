import { HoldfastError } from "@holdfast/contract";
import { KeeperRefusal } from "@holdfast/engine";
import type { JailedFiles } from "@holdfast/keeper";

/** ELF machine number (`e_machine`) of each supported architecture. */
const MACHINES: Partial<Record<NodeJS.Architecture, number>> = { x64: 62, arm64: 183 };
const PT_INTERP = 3;
const HEAD_BYTES = 4_096;
const EXECUTABLE = 0o111;

const incapable = (why: string): HoldfastError =>
  new HoldfastError("image_incapable", { message: `The image cannot run commands: ${why}.` });

/**
 * Reads the path of a program's dynamic loader. Returns "" if the program needs none, and null if it is not a program
 * for this machine.
 */
function loaderOf(head: Buffer, machine: number): string | null {
  const isElf64 = head.length >= 64 && head.readUInt32BE(0) === 0x7f454c46 && head[4] === 2;
  if (!isElf64 || head.readUInt16LE(18) !== machine) return null;
  const table = Number(head.readBigUInt64LE(32));
  const size = head.readUInt16LE(54);
  for (let i = 0; i < head.readUInt16LE(56); i++) {
    const at = table + i * size;
    if (at + 40 > head.length) return "";
    if (head.readUInt32LE(at) !== PT_INTERP) continue;
    const from = Number(head.readBigUInt64LE(at + 8));
    const length = Number(head.readBigUInt64LE(at + 32));
    return head.toString("latin1", from, from + length).replace(/\0.*$/s, "");
  }
  return "";
}

/**
 * Checks that an image has what every exec needs: a shell for this machine, and the shell's loader. The files are
 * looked up in a jail, as a process in a sandbox would see them.
 */
export async function checkImage(jail: JailedFiles, signal: AbortSignal): Promise<void> {
  const machine = MACHINES[process.arch];
  const shell = await statIfThere(jail, "/bin/sh", signal);
  if (shell === null) throw incapable("there is no /bin/sh");
  if (shell.kind !== "file" || (shell.mode & EXECUTABLE) === 0) throw incapable("/bin/sh is not executable");
  if (machine === undefined) return;
  const loader = loaderOf(await readStart(jail, "/bin/sh", HEAD_BYTES, signal), machine);
  if (loader === null) throw incapable(`/bin/sh is not a program for ${process.arch}`);
  if (loader !== "" && (await statIfThere(jail, loader, signal)) === null) {
    throw incapable(`/bin/sh needs ${loader}, which does not exist in it`);
  }
}

/** Stats a path; symbolic links are resolved inside the jail. Returns null if nothing exists at the path. */
export async function statIfThere(jail: JailedFiles, path: string, signal: AbortSignal, follow = true) {
  try {
    return await jail.stat(path, { follow }, signal);
  } catch (error) {
    if (error instanceof KeeperRefusal && ["ENOENT", "ENOTDIR", "ELOOP"].includes(error.errno ?? ""))
      return null;
    throw error;
  }
}

export async function readStart(
  jail: JailedFiles,
  path: string,
  length: number,
  signal: AbortSignal,
): Promise<Buffer> {
  const { body } = await jail.read(path, { offset: 0, length }, signal);
  const chunks: Uint8Array[] = [];
  for await (const chunk of body) chunks.push(Buffer.from(chunk));
  return Buffer.concat(chunks);
}
