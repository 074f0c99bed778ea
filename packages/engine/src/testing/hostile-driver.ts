import type { ExecId, Image, SandboxId } from "@holdfast/contract";
import {
  type Driver,
  type ExecOrder,
  type Found,
  type Images,
  type Instance,
  type JournalRecord,
  type KeeperExec,
  KeeperRefusal,
  type LaunchOrder,
  type Link,
  LinkLost,
  type Observation,
  type Stat,
} from "../ports.ts";

/** What can be made to go wrong. Each is consulted at the moment it would matter. */
export interface Faults {
  launch?: (order: LaunchOrder, signal: AbortSignal) => Promise<void>;
  /** After the instance exists, before the caller hears of it. */
  launchAnswer?: () => Promise<void>;
  stop?: () => Promise<void>;
  destroy?: () => Promise<void>;
  observe?: () => Observation | null;
  connect?: () => Promise<void>;
  recover?: () => Promise<void>;
  /** Who answers the hello, where it is not the keeper. */
  impostor?: () => string;
  /** Before the keeper takes a start, and after it has, before the answer. */
  start?: () => Promise<void>;
  startAnswer?: () => Promise<void>;
}

interface FakeExec {
  order: ExecOrder;
  known: KeeperExec;
  records: JournalRecord[];
}

/** One instance with its keeper, in memory. It outlives links, servers and driver objects, as a real one does. */
class FakeInstance {
  readonly generation: number;
  readonly pid: number;
  alive = true;
  root = true;
  readonly execs = new Map<ExecId, FakeExec>();
  readonly files = new Map<string, Uint8Array>();
  readonly links = new Set<FakeLink>();
  starts = 0;

  constructor(generation: number, pid: number) {
    this.generation = generation;
    this.pid = pid;
  }

  die(): void {
    this.alive = false;
    for (const link of [...this.links]) link.drop("the keeper is gone");
  }

  start(order: ExecOrder): { existed: boolean; exec: KeeperExec } {
    const there = this.execs.get(order.id);
    if (there) {
      if (there.order.digest !== order.digest) throw new KeeperRefusal("exec_conflict", "another command");
      return { existed: true, exec: { ...there.known } };
    }
    this.starts += 1;
    const known: KeeperExec = {
      id: order.id,
      state: "running",
      pid: 100 + this.starts,
      exitCode: -1,
      signal: 0,
      failure: "",
      startedAt: Date.now(),
      endedAt: 0,
      journalFloor: 0,
      journalEnd: 0,
      digest: order.digest,
    };
    this.execs.set(order.id, { order, known, records: [] });
    const [command, , token] = order.argv;
    if (command === "/.holdfast/keeper") queueMicrotask(() => this.end(order.id, 0, `${token}\n`));
    if (command === "exit") queueMicrotask(() => this.end(order.id, Number(order.argv[1]), ""));
    return { existed: false, exec: { ...known } };
  }

  end(id: ExecId, exitCode: number, output: string, state: KeeperExec["state"] = "exited"): void {
    const exec = this.execs.get(id);
    if (exec?.known.state !== "running") return;
    const data = Buffer.from(output);
    if (data.length > 0) exec.records.push({ stream: "stdout", at: Date.now(), cursor: data.length, data });
    exec.known = { ...exec.known, state, exitCode, endedAt: Date.now(), journalEnd: data.length };
    for (const link of this.links) link.tellEnd({ ...exec.known });
  }
}

class FakeLink implements Link {
  readonly keeper: Link["keeper"];
  readonly #instance: FakeInstance;
  readonly #faults: Faults;
  readonly #over = Promise.withResolvers<string>();
  #listeners: ((exec: KeeperExec) => void)[] = [];
  #open = true;

  constructor(instance: FakeInstance, faults: Faults) {
    this.#instance = instance;
    this.#faults = faults;
    this.keeper = { version: "fake", bootId: faults.impostor?.() ?? String(instance.pid), startedAt: 0 };
    instance.links.add(this);
  }

  get closed(): Promise<string> {
    return this.#over.promise;
  }
  get lastHeardAt(): number {
    return Date.now();
  }

  drop(why: string): void {
    this.#open = false;
    this.#instance.links.delete(this);
    this.#over.resolve(why);
  }
  close(): void {
    this.drop("closed");
  }
  tellEnd(exec: KeeperExec): void {
    for (const listener of this.#listeners) listener(exec);
  }
  onExecEnd(listener: (exec: KeeperExec) => void): void {
    this.#listeners.push(listener);
  }

  #check(): FakeInstance {
    if (!this.#open) throw new LinkLost("the link is closed", "unknown");
    return this.#instance;
  }

  async ping(): Promise<void> {
    this.#check();
  }
  async startExec(order: ExecOrder) {
    this.#check();
    if (!order.id.startsWith("proof-")) await this.#faults.start?.();
    const answer = this.#check().start(order);
    if (!order.id.startsWith("proof-")) await this.#faults.startAnswer?.();
    this.#check();
    return answer;
  }
  async readExec(id: ExecId, { cursor }: { cursor: number }) {
    const exec = this.#check().execs.get(id);
    if (!exec) throw new KeeperRefusal("no_such_exec", "unknown");
    await new Promise((resolve) => setImmediate(resolve));
    const records = exec.records.filter((record) => record.cursor > cursor);
    const end = exec.records.at(-1)?.cursor ?? 0;
    return { records, next: end, floor: 0, end, more: exec.known.state === "running" };
  }
  async writeStdin(_id: ExecId, { offset, data }: { offset: number; data: Uint8Array }) {
    this.#check();
    return { accepted: offset + data.length };
  }
  async signalExec(): Promise<void> {
    this.#check();
  }
  async cancelExec(id: ExecId): Promise<void> {
    this.#check().end(id, -1, "", "cancelled");
  }
  async listExecs() {
    return [...this.#check().execs.values()].map(({ known }) => ({ ...known }));
  }
  async forgetExec(id: ExecId): Promise<void> {
    this.#check().execs.delete(id);
  }
  async probe() {
    this.#check();
    return { root: { dev: "1", ino: "2" }, livedMs: 1, processes: 1 };
  }
  async processes() {
    this.#check();
    return [];
  }

  readonly files: Link["files"] = {
    stat: async (path) => this.#stat(path),
    list: async () => ({ entries: [], truncated: false }),
    read: async (path) => {
      const data = this.#check().files.get(path);
      if (!data) throw new KeeperRefusal("system", "no such file", "ENOENT");
      return { stat: this.#stat(path), body: one(data) };
    },
    write: async (path, body) => {
      const parts: Uint8Array[] = [];
      for await (const part of body) parts.push(part);
      this.#check().files.set(path, Buffer.concat(parts));
      return this.#stat(path);
    },
    mkdir: async () => undefined,
    remove: async (path) => {
      this.#check().files.delete(path);
    },
    rename: async () => undefined,
    chmod: async () => undefined,
  };

  #stat(path: string): Stat {
    const sizeBytes = this.#check().files.get(path)?.length ?? 0;
    return {
      kind: "file",
      sizeBytes,
      mode: 0o644,
      uid: 1000,
      gid: 1000,
      modifiedAt: 0,
      dev: "1",
      ino: "3",
      target: "",
    };
  }
}

async function* one(data: Uint8Array): AsyncIterable<Uint8Array> {
  yield data;
}

/** A world of instances that obeys until a fault says otherwise. */
export class HostileDriver implements Driver {
  readonly name = "hostile";
  readonly instances = new Map<SandboxId, FakeInstance>();
  /** Directories and the like, which outlive the processes. */
  readonly files = new Set<SandboxId>();
  faults: Faults = {};
  launches = 0;
  #pids = 10;

  async capacity() {
    const gigabyte = 1 << 30;
    return {
      cpus: 2,
      memoryTotalBytes: gigabyte,
      memoryFreeBytes: gigabyte,
      diskTotalBytes: gigabyte,
      diskFreeBytes: gigabyte,
    };
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    this.launches += 1;
    this.files.add(order.sandboxId);
    await this.faults.launch?.(order, signal);
    this.#pids += 1;
    const instance = new FakeInstance(order.generation, this.#pids);
    this.instances.set(order.sandboxId, instance);
    await this.faults.launchAnswer?.();
    return this.#reference(order.sandboxId, instance);
  }

  #reference(sandboxId: SandboxId, { generation, pid }: FakeInstance): Instance {
    return { sandboxId, generation, pid, startTime: String(pid), hostBootId: "boot", keeperVersion: "fake" };
  }

  async recover(instance: Instance): Promise<Instance | null> {
    await this.faults.recover?.();
    const there = this.instances.get(instance.sandboxId);
    return there?.alive ? this.#reference(instance.sandboxId, there) : null;
  }

  async connect(instance: Instance): Promise<Link> {
    await this.faults.connect?.();
    const there = this.instances.get(instance.sandboxId);
    if (!there?.alive) throw new Error("nobody listens");
    return new FakeLink(there, this.faults);
  }

  async observe(ids: readonly SandboxId[]): Promise<Map<SandboxId, Observation>> {
    return new Map(ids.map((id) => [id, this.faults.observe?.() ?? this.#see(id)]));
  }

  #see(id: SandboxId): Observation {
    const there = this.instances.get(id);
    if (!there?.alive) return { seen: "absent", at: Date.now(), leftovers: [] };
    const problems = there.root ? [] : [{ code: "root_unmounted", message: "the root is not mounted" }];
    const root = there.root ? { dev: "1", ino: "2" } : null;
    return {
      seen: "present",
      at: Date.now(),
      pid: there.pid,
      startTime: String(there.pid),
      state: "running",
      root,
      oomKills: 0,
      problems,
    };
  }

  async list(): Promise<Found[]> {
    const ids = new Set([...this.files, ...this.instances.keys()]);
    return [...ids].map((sandboxId) => ({ sandboxId, things: ["directory"] }));
  }

  async freeze(): Promise<void> {}
  async thaw(): Promise<void> {}

  async stop(id: SandboxId): Promise<Observation> {
    await this.faults.stop?.();
    this.instances.get(id)?.die();
    return this.#see(id);
  }

  async destroy(id: SandboxId): Promise<void> {
    await this.faults.destroy?.();
    this.instances.delete(id);
    this.files.delete(id);
  }

  async close(): Promise<void> {}
}

export const oneImage: Images = {
  list: async () => [host],
  get: async (name) => (name === host.name ? host : null),
  import: async () => host,
  remove: async () => undefined,
};
const host: Image = {
  name: "host",
  kind: "host",
  fingerprint: "f",
  createdAt: new Date(0).toISOString(),
  sizeBytes: 0,
  files: 0,
};
