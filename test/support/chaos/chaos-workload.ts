import { setTimeout as sleep } from "node:timers/promises";
import { type CreateSandbox, type Holdfast, HoldfastError, type Sandbox } from "@holdfast/sdk";
import { Random } from "../faults/random.ts";

/** Maximum duration of any SDK call, whatever fault is injected. */
const CALL_MAX_MS = 180_000;
const GIVE_UP_MS = 45_000;

/** A sandbox, with the state that its user knows. */
interface Known {
  box: Sandbox;
  /** Tokens printed once by commands that were reported as successful. */
  acknowledged: string[];
}

/** Simulated users who create sandboxes, run commands, transfer files and delete, regardless of faults. */
export class Workload {
  readonly #client: Holdfast;
  readonly #target: number;
  /** Maximum number of concurrent creates, so that the other workers continue while launches are slow. */
  readonly #creatorsMax: number;
  readonly #workers: number;
  readonly known = new Map<string, Known>();
  /** Number of outcomes by kind of call and error code. */
  readonly outcomes = new Map<string, Map<string, number>>();
  readonly problems: string[] = [];
  longestMs = 0;
  #tokens = 0;
  #creating = 0;

  constructor(client: Holdfast, { sandboxes, workers }: { sandboxes: number; workers: number }) {
    this.#client = client;
    this.#target = sandboxes;
    this.#workers = workers;
    this.#creatorsMax = Math.ceil(workers / 2);
  }

  async run(seed: number, over: AbortSignal): Promise<void> {
    const worker = async (_: unknown, i: number) => {
      const random = new Random(seed + i);
      while (!over.aborted) {
        await this.#turn(random);
        await sleep(random.between(0, 60));
      }
    };
    await Promise.all(Array.from({ length: this.#workers }, worker));
  }

  async #turn(random: Random): Promise<void> {
    const missing = this.#target - this.known.size - this.#creating;
    const mayCreate = missing > 0 && this.#creating < this.#creatorsMax;
    if (mayCreate && (this.known.size === 0 || random.chance(0.7))) return this.#create(random);
    if (this.known.size === 0) return;
    const known = random.pick([...this.known.values()]);
    const kind = random.pick(KINDS);
    if (kind === "delete" && missing > this.#target / 10) return;
    await this.#call(kind, known, () => this.#act(kind, known, random));
  }

  async #create(random: Random): Promise<void> {
    this.#creating += 1;
    await this.#call("create", null, async () => {
      const box = await this.#client.sandboxes.create(orderBy(random));
      this.known.set(box.id, { box, acknowledged: [] });
    });
    this.#creating -= 1;
  }

  /** Makes one call and expects a result or a typed error in bounded time. */
  async #call(kind: string, known: Known | null, act: () => Promise<unknown>): Promise<void> {
    const startedAt = performance.now();
    let code = "ok";
    try {
      await act();
    } catch (error) {
      code = this.#codeOf(kind, error);
      if (known !== null && GONE.has(code)) this.known.delete(known.box.id);
    }
    const ms = performance.now() - startedAt;
    this.longestMs = Math.max(this.longestMs, ms);
    if (ms > CALL_MAX_MS) this.problems.push(`a call of ${kind} took ${(ms / 1_000).toFixed(0)} s`);
    const tally = this.outcomes.get(kind) ?? new Map<string, number>();
    this.outcomes.set(kind, tally.set(code, (tally.get(code) ?? 0) + 1));
  }

  #codeOf(kind: string, error: unknown): string {
    if (error instanceof HoldfastError) {
      if (error.code === "unexpected_response" || error.code === "internal")
        this.problems.push(`${kind}: ${error.code}: ${error.message} ${error.body.slice(0, 500)}`);
      return error.code;
    }
    if (error instanceof Error && error.name === "TimeoutError") return "not waited for";
    this.problems.push(`${kind}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    return "untyped";
  }

  async #act(kind: (typeof KINDS)[number], known: Known, random: Random): Promise<unknown> {
    const { box } = known;
    switch (kind) {
      case "exec":
        return this.#exec(known);
      case "leave": {
        const signal = AbortSignal.timeout(random.between(5, 500));
        return box.exec("sleep 1", { signal });
      }
      case "start":
        return box.execs.start(`sleep ${random.between(1, 15)}; exit 3`);
      case "timeout":
        return box.exec("sleep 100", { timeoutMs: random.between(50, 2_000), giveUpAfterMs: GIVE_UP_MS });
      case "stream": {
        const run = await box.execs.start("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done");
        for await (const _ of run.output({ giveUpAfterMs: GIVE_UP_MS }));
        return;
      }
      case "files": {
        const text = `${random.next()}`;
        await box.files.write("/home/user/file", text);
        return box.files.readText("/home/user/file");
      }
      case "look":
        return random.pick([
          () => box.refresh(),
          () => box.verify(),
          () => box.events({ limit: 10 }),
          () => this.#client.sandboxes.list({ limit: 1_000 }),
          () => this.#client.stats(),
          () => this.#client.audit(),
          () => this.#client.cleanup(),
        ])();
      case "delete":
        this.known.delete(box.id);
        return box.delete();
      default:
        return kind satisfies never;
    }
  }

  /** A successful command printed the expected output, and its file is readable later. */
  async #exec({ box, acknowledged }: Known): Promise<void> {
    const token = `t${this.#tokens++}`;
    const result = await box.exec(`echo ${token} >> ~/ran && echo ${token}`, { giveUpAfterMs: GIVE_UP_MS });
    if (result.status !== "exited" || result.exitCode !== 0) return;
    acknowledged.push(token);
    // Output lost to a full disk or to removed files is reported as missing.
    if (result.cause === null && !result.truncated && result.stdout !== `${token}\n`)
      this.problems.push(`${box.id}: ${token} was to be printed; ${JSON.stringify(result)}`);
  }
}

const GONE = new Set(["sandbox_gone", "sandbox_not_found", "sandbox_failed"]);

const KINDS = [
  ...(["exec", "exec", "exec", "exec", "exec", "exec", "files", "files"] as const),
  ...(["look", "look", "start", "timeout", "leave", "stream", "delete", "delete"] as const),
];

const NAMES = ["ada", "grace", "barbara", "frances"];

function orderBy(random: Random): CreateSandbox {
  const lifecycle = {
    ...(random.chance(0.15) ? { ttlMs: random.between(5_000, 60_000) } : {}),
    ...(random.chance(0.3) ? { onMemoryLoss: "cold-start" as const } : {}),
    ...(random.chance(0.1) ? { disposable: true } : {}),
  };
  const resources = { memoryMb: 64, pids: 64, ...(random.chance(0.2) ? { diskMb: 40 } : {}) };
  const named = random.chance(0.05);
  const name = named ? { name: random.pick(NAMES), ifExists: random.pick(["return", "fail"] as const) } : {};
  return { ...name, resources, lifecycle };
}
