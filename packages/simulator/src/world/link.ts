import type { ExecId, Numbers } from "@holdfast/contract";
import {
  type ExecOrder,
  type KeeperExec,
  KeeperRefusal,
  type KeepPolicy,
  type KeptRun,
  type Link,
  LinkLost,
} from "@holdfast/engine";
import { filesOf } from "./files.ts";
import type { Host, SimulatedInstance } from "./host.ts";
import { ROOT } from "./host.ts";
import { never, type Process } from "./process.ts";
import type { RequestKind } from "./requests.ts";

/** What was sent lies in a buffer for so long at most. */
const LATE_MS = 10_000;

type Liveness = Pick<Numbers, "heartbeatMs" | "linkDeadMs">;

/**
 * A byte stream between one server and one keeper. Requests arrive in the order they were sent, answers come in any. A
 * link can be dropped, or fall silent: then nothing comes any more and nobody is told, until the server's own heartbeat
 * gives it up. What was sent before may still reach the keeper afterwards.
 */
export class SimulatedLink implements Link {
  readonly keeper: Link["keeper"];
  readonly files: Link["files"];
  readonly #host: Host;
  readonly #instance: SimulatedInstance;
  readonly server: Process;
  readonly #liveness: Liveness;
  readonly #over = Promise.withResolvers<string>();
  readonly #openedAt: number;
  #why: string | null = null;
  #listeners: ((exec: KeeperExec) => void)[] = [];
  #startListeners: ((exec: KeeperExec) => void)[] = [];
  /** Since when nothing has come; null while it is heard. */
  #silentSince: number | null = null;
  #isHalfOpen = false;
  #lastArrival = 0;
  #lost = new Set<(error: LinkLost) => void>();

  constructor(
    host: Host,
    instance: SimulatedInstance,
    options: { server: Process; liveness: Liveness; bootId: string },
  ) {
    this.#host = host;
    this.#instance = instance;
    this.server = options.server;
    this.#liveness = options.liveness;
    this.#openedAt = host.time.elapsed;
    this.keeper = { version: "simulated", bootId: options.bootId, startedAt: 0 };
    this.files = filesOf((work, signal) => this.#ask("file", signal, work), host, instance, instance);
    instance.links.add(this);
  }

  get closed(): Promise<string> {
    return this.#over.promise;
  }

  /** A healthy link hears at least the answers to its own pings. */
  get lastHeardAt(): number {
    const { time } = this.#host;
    const upTo = this.#silentSince ?? time.elapsed;
    const beats = Math.floor((upTo - this.#openedAt) / this.#liveness.heartbeatMs);
    return time.wallAt(this.#openedAt + beats * this.#liveness.heartbeatMs);
  }

  drop(why: string): void {
    if (this.#why !== null) return;
    this.#why = why;
    this.#instance.links.delete(this);
    for (const lose of [...this.#lost]) lose(new LinkLost(why, "unknown"));
    this.#over.resolve(why);
  }

  close(): void {
    this.drop("closed by this side");
  }

  /** Nothing comes any more, and no FIN either. */
  goHalfOpen(): void {
    this.#isHalfOpen = true;
    this.fallSilent();
  }

  fallSilent(): void {
    if (this.#silentSince !== null || this.#why !== null) return;
    this.#silentSince = this.#host.time.elapsed;
    const since = this.#silentSince;
    const { linkDeadMs } = this.#liveness;
    this.#host.time.after(
      linkDeadMs,
      () => {
        if (this.#silentSince === since) this.drop(`nothing came over the link for ${linkDeadMs / 1000} s`);
      },
      this.server,
    );
  }

  hearAgain(): void {
    if (!this.#isHalfOpen) this.#silentSince = null;
  }

  /** An event from the keeper. One that was under way arrives even where the link is given up meanwhile. */
  hearEnd(exec: KeeperExec): void {
    if (!this.server.alive || this.#isHalfOpen) return;
    for (const listener of this.#listeners) listener({ ...exec });
  }

  onExecEnd(listener: (exec: KeeperExec) => void): void {
    this.#listeners.push(listener);
  }

  hearStart(exec: KeeperExec): void {
    if (!this.server.alive || this.#isHalfOpen) return;
    for (const listener of this.#startListeners) listener({ ...exec });
  }

  onExecStart(listener: (exec: KeeperExec) => void): void {
    this.#startListeners.push(listener);
  }

  /** One request: its way there, what the keeper does, the way back, and all that can happen to it in between. */
  #ask<Answer>(
    kind: RequestKind,
    signal: AbortSignal,
    carry: () => Answer | Promise<Answer>,
  ): Promise<Answer> {
    if (!this.server.asks()) return never();
    if (this.#why !== null) return Promise.reject(new LinkLost(this.#why, "no"));
    if (signal.aborted) return Promise.reject(signal.reason);
    return new Promise<Answer>((resolve, reject) => {
      const settle = (give: () => void) => {
        signal.removeEventListener("abort", aborted);
        this.#lost.delete(lost);
        if (this.server.alive) give();
      };
      const aborted = () => settle(() => reject(signal.reason));
      const lost = (error: LinkLost) => settle(() => reject(error));
      signal.addEventListener("abort", aborted, { once: true });
      this.#lost.add(lost);
      this.#travel(kind, carry).then(
        (answer) => settle(() => resolve(answer)),
        (error: unknown) => settle(() => reject(error)),
      );
    });
  }

  async #travel<Answer>(kind: RequestKind, carry: () => Answer | Promise<Answer>): Promise<Answer> {
    const { faults, time } = this.#host;
    const fault = faults.take("link", kind);
    if (fault?.kind === "request-lost") {
      this.drop("the link broke with a request on its way");
      return never();
    }
    if (fault?.kind === "link-half-open") this.goHalfOpen();
    await this.#arrive();
    if (this.#isHalfOpen && !(await this.#arrivesLate(fault?.flag))) return never();
    while (this.#instance.keeper.isStopped && this.#instance.alive) await this.#instance.resumed?.promise;
    if (!this.#instance.alive) return never();
    if (fault?.kind === "request-refused")
      throw new KeeperRefusal("system", "resource temporarily unavailable", "EAGAIN");
    const answer = await carry();
    if (this.#isHalfOpen) return never();
    if (fault?.kind === "answer-lost") this.drop("the link broke with an answer on its way");
    const ms = fault?.kind === "answer-late" ? fault.ms : this.#host.latency();
    if (ms > 0) await time.pause(ms);
    return this.#instance.alive ? answer : never();
  }

  /** Whether a silent link still carries something to the keeper, and when, is a matter of luck. */
  async #arrivesLate(flag: boolean | undefined): Promise<boolean> {
    const { random, time } = this.#host;
    if (!(flag ?? random.chance(0.5))) return false;
    if (random.chance(0.5)) await time.pause(random.between(0, LATE_MS));
    return true;
  }

  /** In the order they were sent. */
  async #arrive(): Promise<void> {
    const { time } = this.#host;
    this.#lastArrival = Math.max(this.#lastArrival, time.elapsed + this.#host.latency());
    if (this.#lastArrival > time.elapsed) await time.pause(this.#lastArrival - time.elapsed);
  }

  ping(signal: AbortSignal): Promise<void> {
    return this.#ask("ping", signal, () => undefined);
  }

  startExec(order: ExecOrder, signal: AbortSignal) {
    const kind = order.id.startsWith("proof-") ? "probe" : "start";
    return this.#ask(kind, signal, () => this.#instance.keeper.start(order));
  }

  keepExec(order: ExecOrder, policy: KeepPolicy, signal: AbortSignal) {
    return this.#ask("start", signal, () => this.#instance.keeper.keep(order, policy));
  }

  listKept(signal: AbortSignal): Promise<KeptRun[]> {
    return this.#ask("list", signal, () => this.#instance.keeper.kept());
  }

  readExec(id: ExecId, from: { cursor: number; maxBytes: number; waitMs: number }, signal: AbortSignal) {
    return this.#ask("read", signal, async () => {
      const { keeper } = this.#instance;
      const { slice, isNews } = keeper.read(id, from.cursor);
      if (isNews || from.waitMs <= 0) return slice;
      const { promise, resolve } = Promise.withResolvers<void>();
      const stop = keeper.onNews(id, resolve);
      const cancel = this.#host.time.after(from.waitMs, resolve);
      await promise;
      stop();
      cancel();
      return keeper.read(id, from.cursor).slice;
    });
  }

  writeStdin(id: ExecId, chunk: { offset: number; data: Uint8Array; end: boolean }, signal: AbortSignal) {
    return this.#ask("stdin", signal, () => ({ accepted: this.#instance.keeper.stdin(id, chunk) }));
  }

  signalExec(id: ExecId, signal: number, abort: AbortSignal): Promise<void> {
    return this.#ask("cancel", abort, () => this.#instance.keeper.signal(id, signal));
  }

  cancelExec(id: ExecId, signal: AbortSignal): Promise<void> {
    return this.#ask("cancel", signal, () => this.#instance.keeper.cancel(id));
  }

  listExecs(signal: AbortSignal): Promise<KeeperExec[]> {
    return this.#ask("list", signal, () => this.#instance.keeper.list());
  }

  forgetExec(id: ExecId, { keepJournal }: { keepJournal: boolean }, signal: AbortSignal): Promise<void> {
    return this.#ask("forget", signal, () => this.#instance.keeper.forget(id, keepJournal));
  }

  resizeExec(_id: ExecId, _size: unknown, signal: AbortSignal): Promise<void> {
    return this.#ask("ping", signal, () => undefined);
  }

  probe(signal: AbortSignal) {
    return this.#ask("probe", signal, () => ({ root: ROOT, livedMs: 0, processes: 1 }));
  }

  processes(signal: AbortSignal) {
    return this.#ask("ping", signal, () => this.#instance.keeper.processes());
  }
}
