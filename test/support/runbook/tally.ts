import { setTimeout as sleep } from "node:timers/promises";
import type { TestServer } from "../server/test-server.ts";

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
 * Creates and deletes sandboxes and counts the results itself. A call that a dead server never answered is sent again
 * to the next one, a create under the same key, so that its outcome is known independently of the server's counters.
 */
export class Tally {
  readonly #server: TestServer;
  #keys = 0;
  /** Every id that was ever returned, and those whose absence was reported. */
  readonly created = new Set<string>();
  readonly destroyed = new Set<string>();
  /** Sandboxes that could not be started, according to the responses. */
  readonly unlaunched = new Set<string>();
  /** Number of refused creates, by error code; they count nowhere else. */
  readonly refused = new Map<string, number>();

  constructor(server: TestServer) {
    this.#server = server;
  }

  /** Creates a sandbox; returns its id if there is one now. */
  async create(body: object, { wait }: { wait: boolean }): Promise<string | null> {
    this.#keys += 1;
    const { status, body: answer } = await this.#call(`/v1/sandboxes?wait=${wait}`, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": `tally-${this.#keys}` },
      body: JSON.stringify(body),
    });
    if (status < 300 && answer.id !== undefined) return this.#note(answer.id);
    const code = answer.error?.code ?? "none";
    const id = answer.error?.sandboxId;
    if (code === "launch_failed" && id !== undefined) this.unlaunched.add(this.#note(id));
    // The error names the holder of the name, or the sandbox that was created under the key.
    else if (HOLDERS.has(code) && id !== undefined) this.#note(id);
    else if (!REFUSALS.has(code)) throw new Error(`create: ${status} ${JSON.stringify(answer)}`);
    this.refused.set(code, (this.refused.get(code) ?? 0) + 1);
    return null;
  }

  #note(id: string): string {
    this.created.add(id);
    return id;
  }

  /** Deletes a sandbox through one of the two APIs; resolves when its absence was reported. */
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

  /** Repeats the request until a living server has answered it. */
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
