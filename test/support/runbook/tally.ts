import { setTimeout as sleep } from "node:timers/promises";
import type { TestServer } from "./server.ts";

interface Answer {
  status: number;
  body: {
    id?: string;
    sandboxId?: string;
    sandbox_id?: string;
    code?: string;
    error?: { code: string; sandboxId?: string };
  };
}

const GIVE_UP_MS = 60_000;

/**
 * Creates and deletes by hand, and keeps its own books. A call that a dead server never answered is sent again to the next
 * one, a create under the same key: the books then know what became of it, whatever the server's counters say.
 */
export class Tally {
  readonly #server: TestServer;
  #keys = 0;
  /** Every id that was ever given out, and those whose absence was reported. */
  readonly created = new Set<string>();
  readonly destroyed = new Set<string>();
  /** Those that could not be started, as the caller was told. */
  readonly unlaunched = new Set<string>();
  /** What was refused, by code: none of it counts. */
  readonly refused = new Map<string, number>();

  constructor(server: TestServer) {
    this.#server = server;
  }

  /** The id, where there is a sandbox now. */
  async create(body: object, { wait }: { wait: boolean }): Promise<string | null> {
    this.#keys += 1;
    const { status, body: told } = await this.#call(`/v1/sandboxes?wait=${wait}`, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": `tally-${this.#keys}` },
      body: JSON.stringify(body),
    });
    if (status < 300 && told.id !== undefined) return this.#note(told.id);
    const code = told.error?.code ?? "none";
    const id = told.error?.sandboxId;
    if (code === "launch_failed" && id !== undefined) this.unlaunched.add(this.#note(id));
    // The name's holder, or what the key stands for: a sandbox that is, or was, there already.
    else if (HOLDERS.has(code) && id !== undefined) this.#note(id);
    else if (!REFUSALS.has(code)) throw new Error(`create: ${status} ${JSON.stringify(told)}`);
    this.refused.set(code, (this.refused.get(code) ?? 0) + 1);
    return null;
  }

  #note(id: string): string {
    this.created.add(id);
    return id;
  }

  /** Resolves when its absence was reported, by whichever of the two APIs is asked. */
  async destroy(id: string, api: "/api/sandbox" | "/v1/sandboxes"): Promise<void> {
    for (const end = Date.now() + GIVE_UP_MS; ; ) {
      const { status, body } = await this.#call(`${api}/${id}`, { method: "DELETE" });
      if (status === 200) break;
      if (status !== 202 || Date.now() > end)
        throw new Error(`delete ${id}: ${status} ${JSON.stringify(body)}`);
      await sleep(100);
    }
    this.destroyed.add(id);
  }

  /** Until a living server has answered it. */
  async #call(path: string, init: RequestInit): Promise<Answer> {
    for (const end = Date.now() + GIVE_UP_MS; ; ) {
      const answer = await this.#attempt(path, init);
      if (answer !== null && answer.status !== 503) return answer;
      if (Date.now() > end) throw new Error(`${path} has no answer: ${JSON.stringify(answer)}`);
      await sleep(50);
    }
  }

  async #attempt(path: string, init: RequestInit): Promise<Answer | null> {
    try {
      const response = await this.#server.fetch(path, init);
      return { status: response.status, body: (await response.json()) as Answer["body"] };
    } catch {
      return null;
    }
  }
}

const HOLDERS = new Set(["name_taken", "sandbox_gone", "sandbox_failed", "wrong_state"]);
const REFUSALS = new Set(["image_not_found"]);
