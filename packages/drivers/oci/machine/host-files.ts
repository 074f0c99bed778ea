import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";

/** What the `host` image takes over from the host besides /usr: the little without which programs in /usr don't run. */
export interface HostFiles {
  /** Top-level names that are links into /usr. */
  topLinks: [name: string, target: string][];
  /** The same names on hosts where they are directories of their own; shown like /usr. */
  topDirs: string[];
  /** What the dynamic linker needs, and tables that come with the C library. */
  files: [path: string, content: Buffer][];
  /** Which of several programs a name such as `awk` means. */
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

/** The directories of the host that every sandbox of the `host` image can read. */
export const shownDirs = ({ topDirs }: Pick<HostFiles, "topDirs">): string[] => [
  "/usr",
  ...topDirs.map((name) => `/${name}`),
];

function copied(root: string, path: string): [string, Buffer][] {
  const from = join(root, path);
  return existsSync(from) && lstatSync(from).isFile() ? [[path, readFileSync(from)]] : [];
}

/** Only those that lead into /usr lead anywhere inside; manual pages are left out. */
function alternative(root: string, name: string): [string, string][] {
  const path = join(root, "etc/alternatives", name);
  if (!lstatSync(path).isSymbolicLink()) return [];
  const target = readlinkSync(path);
  const useful = /^\/(usr|bin|sbin|lib)/.test(target) && !target.includes("/man/");
  return useful ? [[name, target]] : [];
}

const names = (dir: string): string[] => (existsSync(dir) ? readdirSync(dir).sort() : []);
