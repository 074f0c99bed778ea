import { createHash } from "node:crypto";
import { chmodSync, lchownSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DEFAULT_USER } from "@holdfast/contract";
import type { HostFiles } from "../machine/host-files.ts";

/**
 * A directory, file or symbolic link in the root of the `host` image. `id` is its owner's user and group id inside the
 * sandbox.
 */
type Entry = { path: string; mode: number; id: number } & (
  | { kind: "directory" }
  | { kind: "file"; content: Buffer }
  | { kind: "link"; target: string }
);

const directory = (path: string, mode = 0o755, id = 0): Entry => ({ kind: "directory", path, mode, id });
const link = (path: string, target: string): Entry => ({ kind: "link", path, target, mode: 0o777, id: 0 });
const file = (path: string, content: string | Buffer): Entry => ({
  kind: "file",
  path,
  content: Buffer.from(content),
  mode: 0o644,
  id: 0,
});

const lines = (...text: string[]): string => `${text.join("\n")}\n`;

/** Mount points for the runtime, and directories that programs expect. */
const directories: Entry[] = [
  ...[
    "dev",
    "proc",
    "sys",
    "usr",
    "etc",
    "home",
    "run",
    "var",
    "var/lib",
    "var/cache",
    "var/log",
    "mnt",
    "opt",
    "srv",
  ],
  ".holdfast",
  "etc/alternatives",
  "etc/ld.so.conf.d",
]
  .map((path) => directory(path))
  .concat(
    directory("root", 0o700),
    directory("tmp", 0o1777),
    directory("var/tmp", 0o1777),
    directory(DEFAULT_USER.home.slice(1), 0o755, DEFAULT_USER.uid),
    link("var/run", "../run"),
  );

const synthesized = (shell: string): Entry[] => [
  file(
    "etc/passwd",
    lines(
      `root:x:0:0:root:/root:${shell}`,
      `${DEFAULT_USER.name}:x:${DEFAULT_USER.uid}:${DEFAULT_USER.gid}::${DEFAULT_USER.home}:${shell}`,
      "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ),
  ),
  file(
    "etc/group",
    lines("root:x:0:", "tty:x:5:", `${DEFAULT_USER.name}:x:${DEFAULT_USER.gid}:`, "nogroup:x:65534:"),
  ),
  file("etc/hosts", lines("127.0.0.1 localhost", "::1 localhost")),
  file("etc/hostname", lines("sandbox")),
  file("etc/nsswitch.conf", lines("passwd: files", "group: files", "hosts: files dns", "services: files")),
  file("etc/resolv.conf", ""),
  file("etc/profile", lines("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")),
  file("etc/shells", lines("/bin/sh", "/bin/bash")),
  link("etc/mtab", "/proc/self/mounts"),
  link("etc/os-release", "../usr/lib/os-release"),
];

/** Lists all entries of the root, parents before their children. */
export function skeletonOf(host: HostFiles): Entry[] {
  return [
    ...directories,
    ...synthesized(host.shell),
    ...host.topLinks.map(([name, target]) => link(name, target)),
    ...host.topDirs.map((name) => directory(name)),
    ...host.files.map(([path, content]) => file(path, content)),
    ...host.alternatives.map(([name, target]) => link(`etc/alternatives/${name}`, target)),
  ];
}

export function fingerprintOf(entries: readonly Entry[], owner: { idBase: number }): string {
  const hash = createHash("sha256").update(`${owner.idBase}\n`);
  for (const entry of entries) {
    hash.update(`${entry.kind} ${entry.path} ${entry.mode} ${entry.id}\n`);
    if (entry.kind === "file") hash.update(entry.content);
    if (entry.kind === "link") hash.update(entry.target);
  }
  return hash.digest("hex").slice(0, 32);
}

/**
 * Writes the entries to a new directory. No sandbox has had access to this directory, so no path in it leads through a
 * hostile symbolic link.
 */
export function writeSkeleton(root: string, entries: readonly Entry[], idBase: number): void {
  mkdirSync(root, { recursive: true });
  for (const entry of [directory("."), ...entries]) {
    const path = join(root, entry.path);
    if (entry.kind === "directory") mkdirSync(path, { recursive: true });
    else if (entry.kind === "file") writeFileSync(path, entry.content);
    else symlinkSync(entry.target, path);
    lchownSync(path, idBase + entry.id, idBase + entry.id);
    if (entry.kind !== "link") chmodSync(path, entry.mode);
  }
}
