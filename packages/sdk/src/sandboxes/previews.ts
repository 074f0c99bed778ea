import { randomBytes } from "node:crypto";
import type { CallOptions, PreviewOptions, Previews, TokenOptions } from "./api.ts";
import type { Calls } from "./calls.ts";
import { wasDoneBefore } from "./errors.ts";
import type {
  Preview,
  PreviewList,
  PreviewToken,
  PreviewTokenInfo,
  PreviewTokenList,
} from "./types.generated.ts";

export class PreviewsOf implements Previews {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/previews`;
  }

  /** Nobody else chooses a name that is made up here: the one that has it after a lost answer is the one that was asked for. */
  async create(port: number, { signal, ...wanted }: PreviewOptions = {}): Promise<Preview> {
    const name = wanted.name ?? `preview-${randomBytes(6).toString("hex")}`;
    const json = { ...wanted, name, port };
    try {
      return await this.#calls.json({ method: "POST", path: this.#base, json, idempotent: true, signal });
    } catch (error) {
      if (wanted.name !== undefined || !wasDoneBefore(error, "preview_exists")) throw error;
      return this.#again(name, { ttlMs: wanted.tokenTtlMs, signal });
    }
  }

  /** The token of the first answer is lost with it, and known to nobody. */
  async #again(name: string, options: TokenOptions): Promise<Preview> {
    const preview = await this.get(name, options);
    if (preview.public) return preview;
    const { token, url, pathUrl } = await this.createToken(name, options);
    return { ...preview, token, url, pathUrl };
  }

  async list({ signal }: CallOptions = {}): Promise<Preview[]> {
    const call = { method: "GET", path: this.#base, idempotent: true, signal } as const;
    return (await this.#calls.json<PreviewList>(call)).items;
  }

  get(idOrName: string, { signal }: CallOptions = {}): Promise<Preview> {
    return this.#calls.json({ method: "GET", path: this.#path(idOrName), idempotent: true, signal });
  }

  /** An id means the same preview for ever, so that an order to remove it can be repeated; a name may be given anew. */
  delete(idOrName: string, { signal }: CallOptions = {}): Promise<void> {
    return this.#remove(this.#path(idOrName), idOrName.startsWith("prv_"), signal);
  }

  createToken(idOrName: string, { signal, ttlMs }: TokenOptions = {}): Promise<PreviewToken> {
    const path = this.#path(idOrName, "tokens");
    return this.#calls.json({ method: "POST", path, json: { ttlMs }, idempotent: false, signal });
  }

  async tokens(idOrName: string, { signal }: CallOptions = {}): Promise<PreviewTokenInfo[]> {
    const call = { method: "GET", path: this.#path(idOrName, "tokens"), idempotent: true, signal } as const;
    return (await this.#calls.json<PreviewTokenList>(call)).items;
  }

  deleteToken(idOrName: string, tokenId: string, { signal }: CallOptions = {}): Promise<void> {
    return this.#remove(this.#path(idOrName, "tokens", tokenId), true, signal);
  }

  async #remove(path: string, idempotent: boolean, signal: AbortSignal | undefined): Promise<void> {
    try {
      await this.#calls.json({ method: "DELETE", path, idempotent, signal });
    } catch (error) {
      if (!wasDoneBefore(error, "preview_not_found")) throw error;
    }
  }

  #path(...parts: string[]): string {
    return [this.#base, ...parts.map(encodeURIComponent)].join("/");
  }
}
