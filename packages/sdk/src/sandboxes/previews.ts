import { randomBytes } from "node:crypto";
import type { CallOptions, PreviewOptions, Previews, TokenOptions } from "../api.ts";
import { wasDoneBefore } from "../errors.ts";
import type { Call, Calls } from "../transport/calls.ts";
import type {
  Preview,
  PreviewList,
  PreviewToken,
  PreviewTokenInfo,
  PreviewTokenList,
} from "../types.generated.ts";

export class PreviewsOf implements Previews {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/previews`;
  }

  /**
   * Creates a preview, under a unique generated name if the caller gave none. If the response is lost, the request can
   * be repeated: a preview with the generated name can only be the requested one.
   */
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

  /**
   * Returns a preview whose create response was lost. Creates a new token for it, because the token in the lost
   * response cannot be retrieved.
   */
  async #again(name: string, options: TokenOptions): Promise<Preview> {
    const preview = await this.get(name, { signal: options.signal });
    if (preview.public) return preview;
    const { token, url, pathUrl } = await this.createToken(name, options);
    return { ...preview, token, url, pathUrl };
  }

  async list({ signal, ...unknown }: CallOptions = {}): Promise<Preview[]> {
    const call = { method: "GET", path: this.#base, idempotent: true, signal, unknown } as const;
    return (await this.#calls.json<PreviewList>(call)).items;
  }

  get(idOrName: string, { signal, ...unknown }: CallOptions = {}): Promise<Preview> {
    return this.#calls.json({ method: "GET", path: this.#path(idOrName), idempotent: true, signal, unknown });
  }

  /**
   * Deletes a preview. A delete by id can be repeated, because an id always refers to the same preview; a name may be
   * reused.
   */
  delete(idOrName: string, { signal, ...unknown }: CallOptions = {}): Promise<void> {
    return this.#remove(this.#path(idOrName), idOrName.startsWith("prv_"), { signal, unknown });
  }

  createToken(idOrName: string, { signal, ttlMs, ...unknown }: TokenOptions = {}): Promise<PreviewToken> {
    const path = this.#path(idOrName, "tokens");
    return this.#calls.json({ method: "POST", path, json: { ttlMs }, idempotent: false, signal, unknown });
  }

  async tokens(idOrName: string, { signal, ...unknown }: CallOptions = {}): Promise<PreviewTokenInfo[]> {
    const call = {
      method: "GET",
      path: this.#path(idOrName, "tokens"),
      idempotent: true,
      signal,
      unknown,
    } as const;
    return (await this.#calls.json<PreviewTokenList>(call)).items;
  }

  deleteToken(idOrName: string, tokenId: string, { signal, ...unknown }: CallOptions = {}): Promise<void> {
    return this.#remove(this.#path(idOrName, "tokens", tokenId), true, { signal, unknown });
  }

  async #remove(path: string, idempotent: boolean, given: Pick<Call, "signal" | "unknown">): Promise<void> {
    try {
      await this.#calls.json({ method: "DELETE", path, idempotent, ...given });
    } catch (error) {
      if (!wasDoneBefore(error, "preview_not_found")) throw error;
    }
  }

  #path(...parts: string[]): string {
    return [this.#base, ...parts.map(encodeURIComponent)].join("/");
  }
}
