import type { SandboxPort } from "../api.ts";
import type { Calls } from "../transport/calls.ts";

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

  /**
   * Rejects paths that lead outside the port's own path. Clients resolve `..` before they send a request, so such a
   * path could reach API calls with the API key.
   */
  #below(path: string): string {
    const asked = this.#base + (path.startsWith("/") ? path : `/${path}`);
    const { pathname, search } = new URL(asked, "http://localhost");
    if (pathname.startsWith(`${this.#base}/`)) return pathname + search;
    throw new TypeError(`The path ${JSON.stringify(path)} leads outside the port.`);
  }
}
