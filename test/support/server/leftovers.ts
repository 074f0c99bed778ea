import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Everything on this machine that belongs to sandboxes of one installation, found without the product's code. */
export function leftovers(installation: string, stateDir: string): string[] {
  return [
    ...processes(installation),
    ...mounts(installation, stateDir),
    ...cgroups(installation),
    ...directories(stateDir),
  ];
}

function processes(installation: string): string[] {
  const marker = `HOLDFAST_INSTALLATION=${installation}`;
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && read(`/proc/${name}/environ`).split("\0").includes(marker))
    .map((pid) => `process ${pid}`);
}

function mounts(installation: string, stateDir: string): string[] {
  return read("/proc/self/mountinfo")
    .split("\n")
    .filter((line) => line.includes(`holdfast-${installation}`) || line.includes(`${stateDir}/`))
    .map((line) => `mount ${line.split(" ")[4]}`);
}

function cgroups(installation: string): string[] {
  const roots = ["/sys/fs/cgroup", ...list("/sys/fs/cgroup").map((name) => join("/sys/fs/cgroup", name))];
  return roots
    .map((root) => join(root, `holdfast-${installation}`))
    .flatMap((path) => list(path).map((name) => join(path, name)))
    .filter((path) => list(path).includes("cgroup.procs"))
    .map((path) => `cgroup ${path}`);
}

const directories = (stateDir: string): string[] =>
  ["sandboxes", "drives", "runtime"].flatMap((name) =>
    list(join(stateDir, name)).map((id) => `directory ${name}/${id}`),
  );

function list(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
