import {
  type CreatePreview,
  HoldfastError,
  isName,
  type PreviewId,
  type PreviewInfo,
  type PreviewTokenInfo,
  type SandboxId,
  type TokenId,
} from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { PreviewApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { type NewEvent, StoreConflict } from "../ports/index.ts";
import type { PreviewHeaders, PreviewRecord, TokenRecord } from "../ports/records.ts";
import { previewIdOf } from "./preview-id.ts";
import { isSigned, signToken, tokenIdIn } from "./preview-token.ts";
import { PublicPorts } from "./public-ports.ts";

/**
 * A preview with its open connections, grouped by token: when a token ends, its connections are cut. Connections whose
 * requests named a public preview are grouped under `public`, so that deleting another preview of the same port leaves
 * them open.
 */
interface OpenPreview {
  record: PreviewRecord;
  readonly open: Map<TokenId | "public", AbortController>;
}

/**
 * Decides who may reach a port without an API key. A preview opens one port of one sandbox. Its tokens are checked
 * against its record at every request, so revoking a token takes effect with the next request and cuts its open
 * connections at once. All records are kept in memory, because every request of a page needs one; a change is stored
 * before it takes effect in memory.
 */
export class Previews implements PreviewApi {
  readonly #context: EngineContext;
  readonly #registry: SandboxRegistry;
  readonly #previews = new Map<PreviewId, OpenPreview>();
  readonly #tokens = new Map<TokenId, PreviewId>();
  /** Connections to public ports whose requests named no preview. */
  readonly #ports = new PublicPorts();
  /** Runs changes of one sandbox's previews one after the other, because each change builds on the one before. */
  readonly #changes: KeyedSerialQueue<SandboxId>;

  constructor(context: EngineContext, registry: SandboxRegistry) {
    this.#context = context;
    this.#changes = new KeyedSerialQueue({ limit: context.numbers.changesWaiting });
    this.#registry = registry;
  }

  async load(): Promise<void> {
    for (const record of await this.#context.store.previews()) this.#remember(record);
  }

  async create(
    ref: string,
    input: CreatePreview,
    { token = true, headers }: { token?: boolean; headers?: PreviewHeaders | undefined } = {},
  ) {
    const live = await this.#registry.find(ref);
    return this.#change(live, async () => {
      const { clock, ids, numbers } = this.#context;
      const refusal = live.refusal();
      if (refusal !== null && live.record.phase.name !== "paused") throw refusal;
      // Expired previews are removed, and their names become free.
      const [expired, current] = this.#splitExpired(live.id);
      if (current.length >= numbers.previewsPerSandbox)
        throw new HoldfastError("too_many_previews", { sandboxId: live.id });
      const now = clock.now();
      const name = input.name ?? ids.name();
      // The preview's id is computed from its name, and the store would overwrite an existing preview with the same id.
      // So a name in use is rejected first.
      if (current.some((each) => each.name === name)) throw nameTaken(live.id, name);
      const record: PreviewRecord = {
        id: previewIdOf(this.#context.store.secret, live.id, name),
        sandboxId: live.id,
        name,
        port: input.port,
        public: input.public ?? false,
        createdAt: now,
        expiresAt: input.ttlMs === undefined ? null : now + input.ttlMs,
        ...(headers === undefined ? {} : { headers }),
        tokens: [],
      };
      const made = record.public || !token ? null : this.#newToken(record, input.tokenTtlMs);
      const whole = made === null ? record : { ...record, tokens: [made] };
      await this.#store(whole, `Port ${record.port} is open as preview ${record.name}.`, expired);
      return { preview: viewOf(whole), token: made === null ? null : this.#sign(whole, made) };
    });
  }

  async list(ref: string): Promise<PreviewInfo[]> {
    const live = await this.#registry.find(ref);
    return this.#of(live.id).map(({ record }) => viewOf(record));
  }

  async get(ref: string, name: string): Promise<PreviewInfo> {
    return viewOf((await this.#find(ref, name)).record);
  }

  async update(
    ref: string,
    name: string,
    changes: Parameters<PreviewApi["update"]>[2],
  ): Promise<PreviewInfo> {
    const live = await this.#registry.find(ref);
    return this.#change(live, async () => {
      const { record } = await this.#find(live.id, name);
      const now = this.#context.clock.now();
      const { port = record.port, ttlMs } = changes;
      const expiresAt = ttlMs === undefined ? record.expiresAt : ttlMs === null ? null : now + ttlMs;
      // Tokens are signed for one port, so a new port invalidates them.
      const tokens = port === record.port ? record.tokens : [];
      const headers = changes.headers ?? record.headers;
      const next: PreviewRecord = {
        ...{ ...record, port, public: changes.public ?? record.public, expiresAt, tokens },
        ...(headers === undefined ? {} : { headers }),
      };
      await this.#store(next, null);
      return viewOf(next);
    });
  }

  async remove(ref: string, name: string): Promise<void> {
    const live = await this.#registry.find(ref);
    await this.#change(live, async () => {
      const { record } = await this.#find(live.id, name);
      const message = `Preview ${record.name} of port ${record.port} was removed.`;
      const events = [this.#event(record, "preview.removed", message)];
      await this.#context.store.commit({ changes: [{ kind: "preview.remove", id: record.id }], events });
      this.#forget(record.id);
      this.#cutClosedPorts();
    });
  }

  async createToken(ref: string, name: string, { ttlMs }: { ttlMs?: number | undefined }) {
    const live = await this.#registry.find(ref);
    return this.#change(live, async () => {
      const { record } = await this.#find(live.id, name);
      const now = this.#context.clock.now();
      // Expired tokens are removed.
      const current = record.tokens.filter(({ expiresAt }) => expiresAt > now);
      if (current.length >= this.#context.numbers.tokensPerPreview)
        throw new HoldfastError("too_many_previews", { sandboxId: live.id });
      const made = this.#newToken(record, ttlMs);
      const next = { ...record, tokens: [...current, made] };
      await this.#store(next, null);
      return { info: this.#tokenView(made), token: this.#sign(next, made) };
    });
  }

  async tokens(ref: string, name: string): Promise<PreviewTokenInfo[]> {
    const { record } = await this.#find(ref, name);
    return record.tokens.map((token) => this.#tokenView(token));
  }

  async token(ref: string, name: string, id: string): Promise<string> {
    const { record } = await this.#find(ref, name);
    const known = record.tokens.find((each) => each.id === id);
    if (known === undefined) throw new HoldfastError("preview_not_found", { sandboxId: record.sandboxId });
    return this.#sign(record, known);
  }

  async removeToken(ref: string, name: string, id: string): Promise<void> {
    const live = await this.#registry.find(ref);
    await this.#change(live, async () => {
      const { record } = await this.#find(live.id, name);
      const tokens = record.tokens.filter((token) => token.id !== id);
      if (tokens.length === record.tokens.length)
        throw new HoldfastError("preview_not_found", { sandboxId: live.id });
      await this.#store({ ...record, tokens }, null);
    });
  }

  /** Returns the access that a token gives. Unknown, expired and forged tokens get the same error. */
  admit(token: string) {
    const id = tokenIdIn(token);
    const preview = id === null ? undefined : this.#previews.get(this.#tokens.get(id) ?? ("" as PreviewId));
    const known = preview?.record.tokens.find((each) => each.id === id);
    const { secret } = this.#context.store;
    // An unknown token is compared with a dummy, so that the response time does not reveal that it is unknown.
    const isRight = isSigned(secret, token, preview?.record ?? NO_PREVIEW, known ?? NO_TOKEN);
    if (!isRight || preview === undefined || known === undefined) throw new HoldfastError("preview_denied");
    const { record } = preview;
    if (this.#isExpired(record) || known.expiresAt <= this.#context.clock.now())
      throw new HoldfastError("preview_denied");
    return { ...grantOf(record), expiresAt: known.expiresAt, signal: signalOf(preview, known.id) };
  }

  admitPublic(id: PreviewId) {
    const preview = this.#previews.get(id);
    return preview === undefined || !this.#isOpen(preview) ? null : publicGrant(preview);
  }

  admitPublicPort(sandboxId: SandboxId, port: number) {
    const open = this.#of(sandboxId).filter(
      (preview) => preview.record.port === port && this.#isOpen(preview),
    );
    const newest = open.at(-1);
    if (newest === undefined) return null;
    const ends = open.map(({ record }) => record.expiresAt ?? Number.POSITIVE_INFINITY);
    const last = Math.max(...ends);
    const expiresAt = last === Number.POSITIVE_INFINITY ? null : last;
    return { ...grantOf(newest.record), expiresAt, signal: this.#ports.signal(sandboxId, port) };
  }

  /** Whether the preview is public, so that everyone may use it. */
  #isOpen({ record }: OpenPreview): boolean {
    return record.public && !this.#isExpired(record);
  }

  headersOf(id: PreviewId): PreviewHeaders {
    const record = this.#previews.get(id)?.record;
    return (record === undefined || this.#isExpired(record) ? undefined : record.headers) ?? NO_HEADERS;
  }

  byId(id: string): PreviewInfo | null {
    const preview = this.#previews.get(id as PreviewId);
    return preview === undefined || this.#isExpired(preview.record) ? null : viewOf(preview.record);
  }

  /** Cuts the connections of expired tokens and previews, and forgets the previews of deleted sandboxes. */
  maintain(): void {
    const now = this.#context.clock.now();
    for (const [id, { record, open }] of this.#previews) {
      if (this.#registry.live(record.sandboxId) === undefined) this.#forget(id);
      for (const [token, controller] of open) {
        const known = record.tokens.find((each) => each.id === token);
        const isExpired = this.#isExpired(record) || (token !== "public" && (known?.expiresAt ?? 0) <= now);
        if (isExpired) this.#cut(open, token, controller);
      }
    }
    this.#cutClosedPorts();
  }

  /** Cuts the connections to ports that are no longer public. */
  #cutClosedPorts(): void {
    this.#ports.cutUnless((sandboxId, port) =>
      this.#of(sandboxId).some((preview) => preview.record.port === port && this.#isOpen(preview)),
    );
  }

  #isExpired({ sandboxId, expiresAt }: PreviewRecord): boolean {
    const isPast = expiresAt !== null && expiresAt <= this.#context.clock.now();
    return isPast || this.#registry.live(sandboxId) === undefined;
  }

  #newToken({ expiresAt }: PreviewRecord, ttlMs = this.#context.numbers.previewTokenMs): TokenRecord {
    const { clock, ids } = this.#context;
    const createdAt = clock.now();
    return {
      id: ids.token(),
      createdAt,
      expiresAt: Math.min(createdAt + ttlMs, expiresAt ?? Number.POSITIVE_INFINITY),
    };
  }

  #sign(record: PreviewRecord, token: TokenRecord): string {
    return signToken(this.#context.store.secret, record, token);
  }

  #tokenView({ id, createdAt, expiresAt }: TokenRecord): PreviewTokenInfo {
    const expired = expiresAt <= this.#context.clock.now();
    return { id, createdAt: iso(createdAt), expiresAt: iso(expiresAt), expired };
  }

  async #find(ref: string, name: string): Promise<OpenPreview> {
    const { id: sandboxId } = await this.#registry.find(ref);
    const found = this.#of(sandboxId).find(({ record }) => record.name === name || record.id === name);
    if (found !== undefined) return found;
    const shown = isName(name) ? name : name.slice(0, 80);
    const message = `The sandbox has no preview ${JSON.stringify(shown)}.`;
    throw new HoldfastError("preview_not_found", { sandboxId, message });
  }

  #splitExpired(sandboxId: SandboxId): [expired: PreviewRecord[], live: PreviewRecord[]] {
    const records = this.#of(sandboxId).map(({ record }) => record);
    return [
      records.filter((record) => this.#isExpired(record)),
      records.filter((record) => !this.#isExpired(record)),
    ];
  }

  #of(sandboxId: SandboxId): OpenPreview[] {
    return [...this.#previews.values()].filter(({ record }) => record.sandboxId === sandboxId);
  }

  /** Stores a record and removes the `expired` ones. */
  async #store(
    record: PreviewRecord,
    created: string | null,
    expired: readonly PreviewRecord[] = [],
  ): Promise<void> {
    const removed = expired.map(({ id }) => ({ kind: "preview.remove", id }) as const);
    const events = created === null ? [] : [this.#event(record, "preview.created", created)];
    try {
      await this.#context.store.commit({ changes: [...removed, { kind: "preview.put", record }], events });
    } catch (error) {
      if (!(error instanceof StoreConflict) || error.reason !== "preview_exists") throw error;
      throw nameTaken(record.sandboxId, record.name);
    }
    for (const { id } of expired) this.#forget(id);
    this.#remember(record);
    this.#cutClosedPorts();
  }

  #event(record: PreviewRecord, type: NewEvent["type"], message: string): NewEvent {
    const { sandboxId, name, port } = record;
    const data = { preview: name, port, public: record.public };
    return { at: this.#context.clock.now(), type, sandboxId, message, data };
  }

  /**
   * Updates the preview in memory. Revokes tokens that are no longer in the record, and cuts their connections. If the
   * port has changed, cuts the connections to the old port.
   */
  #remember(record: PreviewRecord): void {
    const before = this.#previews.get(record.id);
    const open: OpenPreview["open"] = before?.open ?? new Map();
    const isMoved = before !== undefined && before.record.port !== record.port;
    for (const [token, preview] of this.#tokens) if (preview === record.id) this.#tokens.delete(token);
    for (const { id } of record.tokens) this.#tokens.set(id, record.id);
    for (const [token, controller] of open) {
      const isKept = token === "public" ? record.public : record.tokens.some(({ id }) => id === token);
      if (isMoved || !isKept) this.#cut(open, token, controller);
    }
    this.#previews.set(record.id, { record, open });
  }

  #forget(id: PreviewId): void {
    const preview = this.#previews.get(id);
    if (preview === undefined) return;
    this.#previews.delete(id);
    for (const { id: token } of preview.record.tokens) this.#tokens.delete(token);
    for (const [token, controller] of preview.open) this.#cut(preview.open, token, controller);
  }

  #cut(open: OpenPreview["open"], token: TokenId | "public", controller: AbortController): void {
    open.delete(token);
    controller.abort(new HoldfastError("preview_denied"));
  }

  #change<Result>(live: LiveSandbox, act: () => Promise<Result>): Promise<Result> {
    return this.#changes.run(live.id, act);
  }
}

/** Dummies: an unknown token is compared with these, so that the comparison takes as long as for a known token. */
const NO_TOKEN: TokenRecord = { id: "" as TokenId, createdAt: 0, expiresAt: 0 };
const NO_PREVIEW: PreviewRecord = {
  id: "" as PreviewId,
  sandboxId: "" as SandboxId,
  name: "",
  port: 1,
  public: false,
  createdAt: 0,
  expiresAt: 0,
  tokens: [],
};

const NO_HEADERS: PreviewHeaders = { request: {}, response: {} };

const nameTaken = (sandboxId: SandboxId, name: string): HoldfastError =>
  new HoldfastError("preview_exists", { sandboxId, message: `The sandbox already has a preview ${name}.` });

const grantOf = ({ id, sandboxId, port, headers = NO_HEADERS }: PreviewRecord) => ({
  previewId: id,
  ...{ sandboxId, port, headers },
});

const publicGrant = (preview: OpenPreview) => ({
  ...grantOf(preview.record),
  expiresAt: preview.record.expiresAt,
  signal: signalOf(preview, "public"),
});

function signalOf({ open }: OpenPreview, token: TokenId | "public"): AbortSignal {
  const controller = open.get(token) ?? new AbortController();
  open.set(token, controller);
  return controller.signal;
}

const viewOf = ({
  id,
  name,
  sandboxId,
  port,
  createdAt,
  expiresAt,
  ...record
}: PreviewRecord): PreviewInfo => ({
  id,
  name,
  sandboxId,
  port,
  public: record.public,
  createdAt: iso(createdAt),
  expiresAt: iso(expiresAt),
});
