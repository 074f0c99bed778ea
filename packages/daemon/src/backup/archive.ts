import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Readable } from "node:stream";
import { HoldfastError } from "@holdfast/contract";

/**
 * Options of GNU tar that preserve everything about a sandbox's files. Owners are stored as numbers, because user names
 * differ between hosts.
 */
const KEEP = ["--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
const COMPLAINT_BYTES = 2_000;

/** Packs a directory to which no process writes. The stream fails if the archive is incomplete. */
export function pack(directory: string, names: readonly string[], onEnd: () => Promise<void>): Readable {
  const args = ["--create", ...KEEP, "--sparse", "--one-file-system", "-C", directory, "--", ...names];
  const child = spawn("tar", args, { stdio: ["ignore", "pipe", "pipe"] });
  const complaint = complaintOf(child.stderr);
  const { stdout } = child;
  stdout.once("close", () => child.kill("SIGKILL"));
  child.once("error", (error) => stdout.destroy(missingTar(error)));
  child.once("close", (code) => {
    void onEnd();
    if (code !== 0 && !stdout.destroyed) stdout.destroy(new Error(`tar ended with ${code}: ${complaint()}`));
  });
  return stdout;
}

/** Unpacks an archive into an empty directory that only root can enter. */
export async function unpack(
  archive: AsyncIterable<Uint8Array>,
  directory: string,
  signal: AbortSignal,
): Promise<void> {
  const args = ["--extract", ...KEEP, "--same-owner", "--preserve-permissions", "-C", directory];
  const child = spawn("tar", args, { stdio: ["pipe", "ignore", "pipe"], signal, killSignal: "SIGKILL" });
  const complaint = complaintOf(child.stderr);
  const ended = once(child, "close") as Promise<[number | null]>;
  ended.catch(() => undefined);
  child.stdin.on("error", () => undefined);
  try {
    for await (const chunk of archive) {
      if (child.exitCode !== null) break;
      if (!child.stdin.write(chunk)) await Promise.race([once(child.stdin, "drain"), ended]);
    }
    child.stdin.end();
    const [code] = await ended;
    if (code === 0) return;
    const message = `The archive can't be unpacked: ${complaint()}`;
    throw new HoldfastError(/No space left/.test(message) ? "disk_full" : "invalid_request", { message });
  } catch (error) {
    child.kill("SIGKILL");
    if ((error as NodeJS.ErrnoException).code === "ENOENT") throw missingTar(error);
    throw error;
  }
}

function complaintOf(stderr: Readable): () => string {
  let text = "";
  stderr.setEncoding("utf8").on("data", (chunk: string) => {
    text = (text + chunk).slice(0, COMPLAINT_BYTES);
  });
  return () => text.trim().split("\n")[0] ?? "";
}

const missingTar = (cause: unknown): HoldfastError =>
  new HoldfastError("not_supported", {
    message: "Exports and imports need GNU tar, which this host does not have.",
    cause,
  });
