import { posix } from "node:path";
import type { FileChange, FileKind } from "@holdfast/contract";
import { type FileAccess, KeeperRefusal, type Stat, type WriteOptions } from "../ports/index.ts";

export interface Node {
  kind: FileKind;
  mode: number;
  uid: number;
  gid: number;
  modifiedAt: number;
  content: Uint8Array;
  target: string;
}

const LINKS_MAX = 40;
const NOW = 1_700_000_000_000;

const errno = (name: string) => new KeeperRefusal("system", name, name);
const absent = () => errno("ENOENT");

/** A file tree in memory that behaves like a keeper's: symbolic links, parents, modes, owners and times. */
export class MemoryFiles implements FileAccess {
  readonly nodes = new Map<string, Node>([["/", node("directory", { mode: 0o755 })]]);
  /** All calls so far, by name and path. */
  readonly calls: string[] = [];
  /** The owner of new files. */
  owner = { uid: 1000, gid: 1000 };
  /** Called before every file call. */
  fault: (call: string, path: string) => void | Promise<void> = () => undefined;

  /** Adds an entry, with its missing parents. */
  put(path: string, kind: FileKind, facts: Partial<Node> = {}): this {
    for (const above of parentsOf(path))
      if (!this.nodes.has(above)) this.nodes.set(above, node("directory", { mode: 0o755 }));
    this.nodes.set(path, node(kind, facts));
    return this;
  }

  file(path: string, content: string | Uint8Array, facts: Partial<Node> = {}): this {
    return this.put(path, "file", { content: Buffer.from(content), ...facts });
  }

  text(path: string): string {
    return Buffer.from(this.nodes.get(path)?.content ?? []).toString();
  }

  async stat(path: string, { follow }: { follow: boolean }): Promise<Stat> {
    await this.#called("stat", path);
    return statOf(this.#at(this.#resolved(path, follow)));
  }

  async list(path: string, { limit }: { limit: number }) {
    await this.#called("list", path);
    const place = this.#resolved(path, true);
    if (this.#at(place).kind !== "directory") throw errno("ENOTDIR");
    const entries = [...this.nodes]
      .filter(([each]) => each !== "/" && posix.dirname(each) === place)
      .map(([each, found]) => ({ name: posix.basename(each), stat: statOf(found) }));
    return { entries: entries.slice(0, limit), truncated: entries.length > limit };
  }

  async read(path: string, range: { offset: number; length: number | null }) {
    await this.#called("read", path);
    const found = this.#at(this.#resolved(path, true));
    if (found.kind !== "file") throw new KeeperRefusal("not_regular", "not a regular file");
    const end = range.length === null ? undefined : range.offset + range.length;
    return { stat: statOf(found), body: this.#body(path, found.content.subarray(range.offset, end)) };
  }

  async *#body(path: string, content: Uint8Array): AsyncGenerator<Uint8Array, void, undefined> {
    for (let at = 0; at < content.length; at += PIECE_BYTES) {
      await this.#called("piece", path);
      yield content.subarray(at, at + PIECE_BYTES);
    }
  }

  async write(path: string, body: AsyncIterable<Uint8Array>, options: WriteOptions): Promise<Stat> {
    await this.#called("write", path);
    const pieces: Uint8Array[] = [];
    for await (const piece of body) pieces.push(piece);
    const place = this.#placed(this.#resolved(path, true), options);
    const old = this.nodes.get(place);
    if (old?.kind === "directory") throw errno("EISDIR");
    const { uid = old?.uid ?? this.owner.uid, gid = old?.gid ?? this.owner.gid } = options;
    const { mode = old?.mode ?? 0o644 } = options;
    const made = node("file", { content: Buffer.concat(pieces), mode, uid, gid });
    this.nodes.set(place, made);
    return statOf(made);
  }

  async mkdir(path: string, options: WriteOptions): Promise<void> {
    await this.#called("mkdir", path);
    const place = this.#placed(this.#resolved(path, true), options);
    const there = this.nodes.get(place);
    if (there !== undefined && !(options.parents && there.kind === "directory")) throw errno("EEXIST");
    if (there === undefined) this.#make(place, options.mode ?? 0o755, options);
  }

  async remove(path: string, { recursive }: { recursive: boolean }): Promise<void> {
    await this.#called("remove", path);
    const place = this.#resolved(path, false);
    this.#at(place);
    const below = [...this.nodes.keys()].filter((each) => each.startsWith(`${place}/`));
    if (below.length > 0 && !recursive) throw errno("ENOTEMPTY");
    for (const each of [place, ...below]) this.nodes.delete(each);
  }

  async rename(): Promise<void> {
    throw errno("ENOSYS");
  }

  async chmod(path: string, mode: number): Promise<void> {
    await this.#called("chmod", path);
    this.#at(this.#resolved(path, true)).mode = mode;
  }

  async symlink(path: string, target: string, options: WriteOptions): Promise<void> {
    await this.#called("symlink", path);
    const place = this.#placed(this.#resolved(path, false), options);
    if (this.nodes.has(place)) throw errno("EEXIST");
    this.nodes.set(place, node("symlink", { target, mode: 0o777, ...this.#ownerOf(options) }));
  }

  async touch(path: string, modifiedAt: number): Promise<void> {
    await this.#called("touch", path);
    this.#at(this.#resolved(path, false)).modifiedAt = modifiedAt;
  }

  async watch(_path: string, _options: object, _signal: AbortSignal): Promise<AsyncIterable<FileChange>> {
    throw errno("ENOSYS");
  }

  async #called(call: string, path: string): Promise<void> {
    this.calls.push(`${call} ${path}`);
    await this.fault(call, path);
  }

  #at(place: string): Node {
    const found = this.nodes.get(place);
    if (found === undefined) throw absent();
    return found;
  }

  /** Resolves the symbolic links of a path. The last component is resolved only if `follow` is set. */
  #resolved(path: string, follow: boolean, links = 0): string {
    if (links > LINKS_MAX) throw errno("ELOOP");
    if (path === "/") return path;
    const place = posix.join(this.#resolved(posix.dirname(path), true, links + 1), posix.basename(path));
    const found = this.nodes.get(place);
    if (found?.kind !== "symlink" || !follow) return place;
    return this.#resolved(posix.resolve(posix.dirname(place), found.target), true, links + 1);
  }

  /**
   * Makes sure that a path can be created: creates its missing parents if `options.parents` is set, and otherwise
   * throws if a parent is missing. Returns the path.
   */
  #placed(place: string, options: WriteOptions): string {
    for (const above of parentsOf(place)) {
      const there = this.nodes.get(above);
      if (there === undefined && options.parents !== true) throw absent();
      if (there === undefined) this.#make(above, 0o755, options);
      else if (there.kind !== "directory") throw errno("ENOTDIR");
    }
    return place;
  }

  #make(place: string, mode: number, options: WriteOptions): void {
    this.nodes.set(place, node("directory", { mode, ...this.#ownerOf(options) }));
  }

  #ownerOf({ uid, gid }: WriteOptions): { uid: number; gid: number } {
    return { uid: uid ?? this.owner.uid, gid: gid ?? this.owner.gid };
  }
}

const PIECE_BYTES = 65_536;

const node = (kind: FileKind, facts: Partial<Node>): Node => {
  const mode = kind === "symlink" ? 0o777 : 0o644;
  return {
    kind,
    mode,
    uid: 1000,
    gid: 1000,
    modifiedAt: NOW,
    content: new Uint8Array(),
    target: "",
    ...facts,
  };
};

const statOf = ({ content, ...rest }: Node): Stat => ({
  ...rest,
  sizeBytes: rest.kind === "symlink" ? rest.target.length : content.length,
  dev: "1",
  ino: "1",
});

/** Returns the parents of a path, from the root down. */
const parentsOf = (path: string): string[] =>
  path === "/" ? [] : [...parentsOf(posix.dirname(path)), posix.dirname(path)];
