import { type FileAccess, KeeperRefusal, type Stat } from "@holdfast/engine";
import { identityOf } from "./drives.ts";
import type { Directory, Host, SimulatedInstance } from "./host.ts";
import { placeOf } from "./mounts.ts";

type Ask = <Answer>(work: () => Answer | Promise<Answer>, signal: AbortSignal) => Promise<Answer>;

/** File access to one sandbox's root, limited to what proofs and a small workload need. */
export function filesOf(
  ask: Ask,
  host: Host,
  { sandboxId }: Pick<SimulatedInstance, "sandboxId">,
  instance: SimulatedInstance | null,
): FileAccess {
  /** Waits while the keeper is stopped. The keeper finishes the file operation when it continues. */
  const running = async (): Promise<void> => {
    while (instance?.keeper.isStopped) await instance.resumed?.promise;
    if (instance?.alive === false) throw new KeeperRefusal("system", "input/output error", "EIO");
  };
  const directory = (): Directory => {
    const there = host.directories.get(sandboxId);
    if (there === undefined) throw new KeeperRefusal("system", "input/output error", "EIO");
    return there;
  };
  const find = (path: string): Uint8Array => {
    const data = directory().files.get(path);
    if (data === undefined) throw new KeeperRefusal("system", "no such file or directory", "ENOENT");
    return data;
  };
  /** Returns the stat of a path. At a mount point it is the stat of the drive's directory. */
  const look = (path: string): Stat => {
    const place = instance?.places.get(path);
    if (place === undefined) return statOf(find(path));
    const { point, directory, isAstray } = place;
    const other = { dev: "other", ino: path };
    const identity = directory === null || isAstray ? other : identityOf(directory, point?.subpath ?? "/");
    return { ...statOf(new Uint8Array()), kind: "directory", ...identity };
  };
  /** Writes a file: into the drive if one is mounted at the path, never into the directory under the mount. */
  const put = (path: string, data: Uint8Array): void => {
    const place = instance === null ? null : placeOf(instance, path);
    const driveId = place?.directory?.id ?? null;
    if (place !== null && (driveId === null || place.isAstray || place.point?.readOnly))
      throw new KeeperRefusal("system", "read-only file system", "EROFS");
    if (place?.directory?.state === "removed")
      throw new KeeperRefusal("system", "no such file or directory", "ENOENT");
    host.report({ type: "wrote", sandboxId, path, driveId });
    if (driveId === null) directory().files.set(path, data);
  };
  return {
    stat: (path, _options, signal) => ask(() => look(path), signal),
    list: (_path, { limit }, signal) =>
      ask(() => {
        const all = [...directory().files].map(([name, data]) => ({ name, stat: statOf(data) }));
        return { entries: all.slice(0, limit), truncated: all.length > limit };
      }, signal),
    read: (path, _range, signal) =>
      ask(() => {
        const data = find(path);
        return { stat: statOf(data), body: once(data) };
      }, signal),
    write: (path, body, _options, signal) =>
      ask(async () => {
        const parts: Uint8Array[] = [];
        for await (const part of body) parts.push(part);
        await running();
        if (host.diskIsFull) throw new KeeperRefusal("system", "no space left on device", "ENOSPC");
        const data = Buffer.concat(parts);
        put(path, data);
        instance?.keeper.step();
        return statOf(data);
      }, signal),
    mkdir: (_path, _options, signal) => ask(() => undefined, signal),
    remove: (path, _options, signal) =>
      ask(() => {
        find(path);
        directory().files.delete(path);
        instance?.keeper.step();
      }, signal),
    rename: (from, to, _options, signal) =>
      ask(() => {
        directory().files.set(to, find(from));
        directory().files.delete(from);
        instance?.keeper.step();
      }, signal),
    chmod: (_path, _mode, signal) => ask(() => undefined, signal),
    symlink: (_path, _target, _options, signal) => ask(() => undefined, signal),
    touch: (_path, _at, signal) => ask(() => undefined, signal),
    watch: (_path, _options, signal) => ask(() => nothing(), signal),
  };
}

const statOf = (data: Uint8Array): Stat => ({
  kind: "file",
  sizeBytes: data.length,
  mode: 0o644,
  uid: 1000,
  gid: 1000,
  modifiedAt: 0,
  dev: "1",
  ino: "3",
  target: "",
});

async function* nothing(): AsyncIterable<never> {}

async function* once(data: Uint8Array): AsyncIterable<Uint8Array> {
  yield data;
}
