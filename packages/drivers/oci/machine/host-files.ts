import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";

/** Parts of the host that the `host` image contains besides /usr: the minimum that the programs in /usr need to run. */
export interface HostFiles {
  /** Top-level names, such as `bin`, that are symbolic links into /usr on this host. */
  topLinks: [name: string, target: string][];
  /** Top-level names, such as `bin`, that are directories on this host. Sandboxes see them like /usr, read-only. */
  topDirs: string[];
  /** Files that the dynamic linker needs, and tables that the C library reads, such as /etc/services. */
  files: [path: string, content: Buffer][];
  /** Symbolic links of /etc/alternatives, which choose the program behind a name such as `awk`. */
  alternatives: [name: string, target: string][];
  shell: string;
}

const TOP_NAMES = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
const COPIED = ["etc/ld.so.cache", "etc/ld.so.conf", "etc/services", "etc/protocols"];

export function readHostFiles(root = "/"): HostFiles {
  const present = TOP_NAMES.filter((name) => existsSync(join(root, name)));
  const isLink = (name: string) => lstatSync(join(root, name)).isSymbolicLink();
  const conf = names(join(root, "etc/ld.so.conf.d")).map((name) => `etc/ld.so.conf.d/${name}`);
  return {
    topLinks: present.filter(isLink).map((name) => [name, readlinkSync(join(root, name))]),
    topDirs: present.filter((name) => !isLink(name)),
    files: [...COPIED, ...conf].flatMap((path) => copied(root, path)),
    alternatives: names(join(root, "etc/alternatives")).flatMap((name) => alternative(root, name)),
    shell: existsSync(join(root, "usr/bin/bash")) ? "/bin/bash" : "/bin/sh",
  };
}

/** Host directories that every sandbox of the `host` image can read. */
export const shownDirs = ({ topDirs }: Pick<HostFiles, "topDirs">): string[] => [
  "/usr",
  ...topDirs.map((name) => `/${name}`),
];

function copied(root: string, path: string): [string, Buffer][] {
  const from = join(root, path);
  return existsSync(from) && lstatSync(from).isFile() ? [[path, readFileSync(from)]] : [];
}

/**
 * Reads one symbolic link of /etc/alternatives. Skips manual pages, and links whose target does not exist inside
 * sandboxes.
 */
function alternative(root: string, name: string): [string, string][] {
  const path = join(root, "etc/alternatives", name);
  if (!lstatSync(path).isSymbolicLink()) return [];
  const target = readlinkSync(path);
  const useful = /^\/(usr|bin|sbin|lib)/.test(target) && !target.includes("/man/");
  return useful ? [[name, target]] : [];
}

const names = (dir: string): string[] => (existsSync(dir) ? readdirSync(dir).sort() : []);
