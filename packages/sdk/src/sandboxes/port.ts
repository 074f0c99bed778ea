import type { SandboxPort } from "./api.ts";
import type { Calls } from "./calls.ts";

export class PortOf implements SandboxPort {
  readonly #calls: Calls;
  readonly #base: string;
  readonly number: number;

  constructor(calls: Calls, sandboxId: string, number: number) {
    this.#calls = calls;
    this.number = number;
    this.#base = `/v1/sandboxes/${sandboxId}/ports/${number}`;
  }

  async fetch(path: string, init: Omit<RequestInit, "redirect"> = {}): Promise<Response> {
    return this.#calls.fetch(this.#below(path), init);
  }

  url(path = "/"): string {
    return this.#calls.where({ method: "GET", path: this.#below(path) }).url;
  }

  /** Dots in a path lead upwards before it is sent: out of the port, to calls of the API, with the key. */
  #below(path: string): string {
    const asked = this.#base + (path.startsWith("/") ? path : `/${path}`);
    const { pathname, search } = new URL(asked, "http://localhost");
    if (pathname.startsWith(`${this.#base}/`)) return pathname + search;
    throw new TypeError(`The path ${JSON.stringify(path)} leads out of the port.`);
  }
}
