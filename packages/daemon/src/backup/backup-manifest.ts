import { createHash } from "node:crypto";
import {
  closeSync,
  createReadStream,
  existsSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";
import type { DriveId, InstallationId, SandboxId } from "@holdfast/contract";

export const MANIFEST_FILE = "backup.json";
const FORMAT = 1;

/** Files of a backup whose checksums are compared before the backup is restored. */
const PLAIN_FILES = ["holdfast.db", "admin.key", "ids.json"];

interface FileSum {
  path: string;
  size: number;
  sha256: string;
}

export interface SandboxInBackup {
  id: SandboxId;
  name: string;
  phase: string;
  diskMb: number | null;
  /** Whether the backup contains the memory of the sandbox. Memory is copied only if the sandbox was in standby. */
  memory: boolean;
  sizeBytes: number;
}

export interface DriveInBackup {
  id: DriveId;
  name: string;
  sizeBytes: number;
}

/** Describes a backup. The manifest is written last: a directory without a manifest is not a backup. */
interface BackupManifest {
  format: typeof FORMAT;
  version: string;
  installation: InstallationId;
  takenAt: number;
  sandboxes: SandboxInBackup[];
  drives: DriveInBackup[];
  skipped: { kind: "sandbox" | "drive"; id: string; name: string; reason: string }[];
  files: FileSum[];
}

export async function writeManifest(
  directory: string,
  content: Omit<BackupManifest, "format" | "files">,
): Promise<void> {
  const files: FileSum[] = [];
  for (const path of PLAIN_FILES) {
    if (existsSync(join(directory, path))) files.push({ path, ...(await sumOf(join(directory, path))) });
  }
  const manifest: BackupManifest = { format: FORMAT, ...content, files };
  writeDurably(join(directory, MANIFEST_FILE), `${JSON.stringify(manifest, null, 2)}\n`);
}

/**
 * Reads the manifest of a backup and compares the checksums of the files that it lists. Returns null if there is no
 * manifest.
 */
export async function readManifest(directory: string): Promise<BackupManifest | null> {
  const path = join(directory, MANIFEST_FILE);
  if (!existsSync(path)) return null;
  const manifest = JSON.parse(readFileSync(path, "utf8")) as BackupManifest;
  if (manifest.format !== FORMAT)
    throw new Error(`${path} has format ${manifest.format}, which this version of Holdfast does not know.`);
  for (const { path: file, size, sha256 } of manifest.files) {
    const found = existsSync(join(directory, file)) ? await sumOf(join(directory, file)) : null;
    if (found?.size !== size || found.sha256 !== sha256)
      throw new Error(`The backup is damaged: ${join(directory, file)} is not the file that was backed up.`);
  }
  return manifest;
}

async function sumOf(path: string): Promise<{ size: number; sha256: string }> {
  const hash = createHash("sha256");
  let size = 0;
  for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
    hash.update(chunk);
    size += chunk.length;
  }
  return { size, sha256: hash.digest("hex") };
}

/** Writes a file. When this function returns, the complete file is on disk under its name. */
export function writeDurably(path: string, text: string): void {
  const draft = `${path}.new`;
  const file = openSync(draft, "w", 0o600);
  try {
    writeSync(file, text);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(draft, path);
  const directory = openSync(dirname(path), "r");
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}
