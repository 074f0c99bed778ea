import type { ExecId, Numbers } from "@holdfast/contract";
import {
  type ExecOrder,
  type KeeperExec,
  KeeperRefusal,
  type Link,
  LinkLost,
  type SupervisedRun,
  type SupervisePolicy,
} from "@holdfast/engine";
import type { RequestKind } from "../schedule/fault-targets.ts";
import { filesOf } from "./files.ts";
import type { Host, SimulatedInstance } from "./host.ts";
import { ROOT } from "./host.ts";
import { never, type Process } from "./process.ts";

/** Maximum time for which data that was sent may stay in a buffer before it arrives. */
const LATE_MS = 10_000;

type Liveness = Pick<Numbers, "heartbeatMs" | "linkDeadMs">;

/**
 * A byte stream between one server and one keeper. Requests arrive in order, answers in any order. A link can be
 * dropped, which both sides notice. It can also become silent: then nothing arrives any more, and neither side notices
 * until the server's heartbeat gives up the link. Data sent before that may still reach the keeper later.
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
  /** When the link became silent; null while the link is healthy. */
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

  /** When data last arrived. A healthy link receives at least the answers to its own pings. */
  get lastReceivedAt(): number {
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

  /** Makes the link silent: nothing arrives any more, not even a FIN. */
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

  /**
   * Delivers an event from the keeper. An event that was already sent is delivered even if the server gives up the link
   * meanwhile.
   */
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

  /**
   * Sends one request. Simulates the transmission of the request, the keeper's work, the transmission of the answer,
   * and every failure of these three.
   */
  #ask<Answer>(
    kind: RequestKind,
    signal: AbortSignal,
    carry: () => Answer | Promise<Answer>,
  ): Promise<Answer> {
    if (!this.server.mayCall()) return never();
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

  /** Decides at random whether a silent link still delivers a request to the keeper, and when. */
  async #arrivesLate(flag: boolean | undefined): Promise<boolean> {
    const { random, time } = this.#host;
    if (!(flag ?? random.chance(0.5))) return false;
    if (random.chance(0.5)) await time.pause(random.between(0, LATE_MS));
    return true;
  }

  /** Waits until the request arrives at the keeper. Requests arrive in the order in which they were sent. */
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

  superviseExec(order: ExecOrder, policy: SupervisePolicy, signal: AbortSignal) {
    return this.#ask("start", signal, () => this.#instance.keeper.keep(order, policy));
  }

  listSupervised(signal: AbortSignal): Promise<SupervisedRun[]> {
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

  /** Does nothing. Simulated journals never drop output, so the keeper does not have to hold any. */
  async holdExec(): Promise<boolean> {
    return true;
  }

  forgetExec(id: ExecId, { keepJournal }: { keepJournal: boolean }, signal: AbortSignal): Promise<void> {
    return this.#ask("forget", signal, () => this.#instance.keeper.forget(id, keepJournal));
  }

  setDeadline(remainingMs: number | null, signal: AbortSignal): Promise<void> {
    return this.#ask("ping", signal, () => this.#instance.keeper.setDeadline(remainingMs));
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
