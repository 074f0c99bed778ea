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
import type { PreviewApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { type NewEvent, StoreConflict } from "./ports.ts";
import { isSigned, signToken, tokenIdIn } from "./preview-token.ts";
import type { PreviewRecord, TokenRecord } from "./records.ts";
import type { World } from "./world.ts";

export interface PreviewParts {
  find(ref: string): Promise<Cell>;
  cell(id: SandboxId): Cell | undefined;
}

/** What is open under one preview: whatever came in by a token goes when that does. */
interface Doors {
  record: PreviewRecord;
  readonly open: Map<TokenId | "public", AbortController>;
}

/**
 * Who may reach a port without a key. A preview opens one port of one sandbox: its tokens are checked against its record at every
 * request, so that taking one back holds from the next request on, and what came in by it is cut at once. All records are in
 * memory, because every request of a page asks for one; the store has them first.
 */
export class Previews implements PreviewApi {
  readonly #world: World;
  readonly #parts: PreviewParts;
  readonly #doors = new Map<PreviewId, Doors>();
  readonly #tokens = new Map<TokenId, PreviewId>();
  /** Changes of one sandbox's previews one after the other: each is made of what the last one left. */
  readonly #turns = new Map<SandboxId, Promise<unknown>>();

  constructor(world: World, parts: PreviewParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async load(): Promise<void> {
    for (const record of await this.#world.store.previews()) this.#remember(record);
  }

  async create(ref: string, input: CreatePreview, { token = true } = {}) {
    const cell = await this.#parts.find(ref);
    return this.#inTurn(cell, async () => {
      const { clock, ids, numbers } = this.#world;
      const refusal = cell.refusal();
      if (refusal !== null && cell.record.phase.name !== "paused") throw refusal;
      // Those that are over make room, and give up their names.
      const [over, live] = this.#parted(cell.id);
      if (live.length >= numbers.previewsPerSandbox)
        throw new HoldfastError("too_many_previews", { sandboxId: cell.id });
      const now = clock.now();
      const record: PreviewRecord = {
        id: ids.preview(),
        sandboxId: cell.id,
        name: input.name ?? ids.name(),
        port: input.port,
        public: input.public ?? false,
        createdAt: now,
        expiresAt: input.ttlMs === undefined ? null : now + input.ttlMs,
        tokens: [],
      };
      const made = record.public || !token ? null : this.#newToken(record, input.tokenTtlMs);
      const whole = made === null ? record : { ...record, tokens: [made] };
      await this.#store(whole, `Port ${record.port} is open as preview ${record.name}.`, over);
      return { preview: viewOf(whole), token: made === null ? null : this.#sign(whole, made) };
    });
  }

  async list(ref: string): Promise<PreviewInfo[]> {
    const cell = await this.#parts.find(ref);
    return this.#of(cell.id).map(({ record }) => viewOf(record));
  }

  async get(ref: string, name: string): Promise<PreviewInfo> {
    return viewOf((await this.#find(ref, name)).record);
  }

  async update(
    ref: string,
    name: string,
    changes: Parameters<PreviewApi["update"]>[2],
  ): Promise<PreviewInfo> {
    const cell = await this.#parts.find(ref);
    return this.#inTurn(cell, async () => {
      const { record } = await this.#find(cell.id, name);
      const now = this.#world.clock.now();
      const { port = record.port, ttlMs } = changes;
      const expiresAt = ttlMs === undefined ? record.expiresAt : ttlMs === null ? null : now + ttlMs;
      // What its tokens were signed for is another port then.
      const tokens = port === record.port ? record.tokens : [];
      const next = { ...record, port, public: changes.public ?? record.public, expiresAt, tokens };
      await this.#store(next, null);
      return viewOf(next);
    });
  }

  async remove(ref: string, name: string): Promise<void> {
    const cell = await this.#parts.find(ref);
    await this.#inTurn(cell, async () => {
      const { record } = await this.#find(cell.id, name);
      const message = `Preview ${record.name} of port ${record.port} was removed.`;
      const events = [this.#event(record, "preview.removed", message)];
      await this.#world.store.commit({ changes: [{ kind: "preview.remove", id: record.id }], events });
      this.#forget(record.id);
    });
  }

  async createToken(ref: string, name: string, { ttlMs }: { ttlMs?: number | undefined }) {
    const cell = await this.#parts.find(ref);
    return this.#inTurn(cell, async () => {
      const { record } = await this.#find(cell.id, name);
      const now = this.#world.clock.now();
      // Those that are over make room.
      const live = record.tokens.filter(({ expiresAt }) => expiresAt > now);
      if (live.length >= this.#world.numbers.tokensPerPreview)
        throw new HoldfastError("too_many_previews", { sandboxId: cell.id });
      const made = this.#newToken(record, ttlMs);
      const next = { ...record, tokens: [...live, made] };
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
    const cell = await this.#parts.find(ref);
    await this.#inTurn(cell, async () => {
      const { record } = await this.#find(cell.id, name);
      const tokens = record.tokens.filter((token) => token.id !== id);
      if (tokens.length === record.tokens.length)
        throw new HoldfastError("preview_not_found", { sandboxId: cell.id });
      await this.#store({ ...record, tokens }, null);
    });
  }

  /** Nothing tells a token that never was from one that is over, or another's. */
  admit(token: string) {
    const id = tokenIdIn(token);
    const doors = id === null ? undefined : this.#doors.get(this.#tokens.get(id) ?? ("" as PreviewId));
    const known = doors?.record.tokens.find((each) => each.id === id);
    const { secret } = this.#world.store;
    // Also where there is nothing to compare it with, so that it takes as long as any other.
    const isRight = isSigned(secret, token, doors?.record ?? NOBODYS, known ?? NO_TOKEN);
    if (!isRight || doors === undefined || known === undefined) throw new HoldfastError("preview_denied");
    const { record } = doors;
    if (this.#isOver(record) || known.expiresAt <= this.#world.clock.now())
      throw new HoldfastError("preview_denied");
    return { ...grantOf(record), expiresAt: known.expiresAt, signal: signalOf(doors, known.id) };
  }

  admitPublic(sandboxId: SandboxId, port: number) {
    const doors = this.#of(sandboxId).find(
      ({ record }) => record.public && record.port === port && !this.#isOver(record),
    );
    if (doors === undefined) return null;
    return { ...grantOf(doors.record), expiresAt: doors.record.expiresAt, signal: signalOf(doors, "public") };
  }

  byId(id: string): PreviewInfo | null {
    const doors = this.#doors.get(id as PreviewId);
    return doors === undefined || this.#isOver(doors.record) ? null : viewOf(doors.record);
  }

  /** Cuts what came in by what is over now, and forgets those of sandboxes that are gone. */
  tend(): void {
    const now = this.#world.clock.now();
    for (const [id, { record, open }] of this.#doors) {
      if (this.#parts.cell(record.sandboxId) === undefined) this.#forget(id);
      for (const [token, controller] of open) {
        const known = record.tokens.find((each) => each.id === token);
        const isOver = this.#isOver(record) || (token !== "public" && (known?.expiresAt ?? 0) <= now);
        if (isOver) this.#shut(open, token, controller);
      }
    }
  }

  #isOver({ sandboxId, expiresAt }: PreviewRecord): boolean {
    const isPast = expiresAt !== null && expiresAt <= this.#world.clock.now();
    return isPast || this.#parts.cell(sandboxId) === undefined;
  }

  #newToken({ expiresAt }: PreviewRecord, ttlMs = this.#world.numbers.previewTokenMs): TokenRecord {
    const { clock, ids } = this.#world;
    const createdAt = clock.now();
    return {
      id: ids.token(),
      createdAt,
      expiresAt: Math.min(createdAt + ttlMs, expiresAt ?? Number.POSITIVE_INFINITY),
    };
  }

  #sign(record: PreviewRecord, token: TokenRecord): string {
    return signToken(this.#world.store.secret, record, token);
  }

  #tokenView({ id, createdAt, expiresAt }: TokenRecord): PreviewTokenInfo {
    const expired = expiresAt <= this.#world.clock.now();
    return { id, createdAt: iso(createdAt), expiresAt: iso(expiresAt), expired };
  }

  async #find(ref: string, name: string): Promise<Doors> {
    const { id: sandboxId } = await this.#parts.find(ref);
    const found = this.#of(sandboxId).find(({ record }) => record.name === name || record.id === name);
    if (found !== undefined) return found;
    const shown = isName(name) ? name : name.slice(0, 80);
    const message = `The sandbox has no preview ${JSON.stringify(shown)}.`;
    throw new HoldfastError("preview_not_found", { sandboxId, message });
  }

  #parted(sandboxId: SandboxId): [over: PreviewRecord[], live: PreviewRecord[]] {
    const records = this.#of(sandboxId).map(({ record }) => record);
    return [
      records.filter((record) => this.#isOver(record)),
      records.filter((record) => !this.#isOver(record)),
    ];
  }

  #of(sandboxId: SandboxId): Doors[] {
    return [...this.#doors.values()].filter(({ record }) => record.sandboxId === sandboxId);
  }

  /** Keeps a record, in the place of those that are `over`. */
  async #store(
    record: PreviewRecord,
    created: string | null,
    over: readonly PreviewRecord[] = [],
  ): Promise<void> {
    const removed = over.map(({ id }) => ({ kind: "preview.remove", id }) as const);
    const events = created === null ? [] : [this.#event(record, "preview.created", created)];
    try {
      await this.#world.store.commit({ changes: [...removed, { kind: "preview.put", record }], events });
    } catch (error) {
      if (!(error instanceof StoreConflict) || error.reason !== "preview_exists") throw error;
      const message = `The sandbox has a preview ${record.name}.`;
      throw new HoldfastError("preview_exists", { sandboxId: record.sandboxId, message });
    }
    for (const { id } of over) this.#forget(id);
    this.#remember(record);
  }

  #event(record: PreviewRecord, type: NewEvent["type"], message: string): NewEvent {
    const { sandboxId, name, port } = record;
    const data = { preview: name, port, public: record.public };
    return { at: this.#world.clock.now(), type, sandboxId, message, data };
  }

  /** What is not among its tokens any more opens nothing, and what it had let in, or to another port, is cut. */
  #remember(record: PreviewRecord): void {
    const before = this.#doors.get(record.id);
    const open: Doors["open"] = before?.open ?? new Map();
    const isMoved = before !== undefined && before.record.port !== record.port;
    for (const [token, preview] of this.#tokens) if (preview === record.id) this.#tokens.delete(token);
    for (const { id } of record.tokens) this.#tokens.set(id, record.id);
    for (const [token, controller] of open) {
      const isKept = token === "public" ? record.public : record.tokens.some(({ id }) => id === token);
      if (isMoved || !isKept) this.#shut(open, token, controller);
    }
    this.#doors.set(record.id, { record, open });
  }

  #forget(id: PreviewId): void {
    const doors = this.#doors.get(id);
    if (doors === undefined) return;
    this.#doors.delete(id);
    for (const { id: token } of doors.record.tokens) this.#tokens.delete(token);
    for (const [token, controller] of doors.open) this.#shut(doors.open, token, controller);
  }

  #shut(open: Doors["open"], token: TokenId | "public", controller: AbortController): void {
    open.delete(token);
    controller.abort(new HoldfastError("preview_denied"));
  }

  #inTurn<Result>(cell: Cell, act: () => Promise<Result>): Promise<Result> {
    const turn = (this.#turns.get(cell.id) ?? Promise.resolve()).then(act);
    const settled = turn.then(
      () => undefined,
      () => undefined,
    );
    this.#turns.set(cell.id, settled);
    void settled.then(() => {
      if (this.#turns.get(cell.id) === settled) this.#turns.delete(cell.id);
    });
    return turn;
  }
}

/** What a token that nobody knows is compared with. */
const NO_TOKEN: TokenRecord = { id: "" as TokenId, createdAt: 0, expiresAt: 0 };
const NOBODYS: PreviewRecord = {
  id: "" as PreviewId,
  sandboxId: "" as SandboxId,
  name: "",
  port: 1,
  public: false,
  createdAt: 0,
  expiresAt: 0,
  tokens: [],
};

const grantOf = ({ id, sandboxId, port }: PreviewRecord) => ({ previewId: id, sandboxId, port });

function signalOf({ open }: Doors, token: TokenId | "public"): AbortSignal {
  const controller = open.get(token) ?? new AbortController();
  open.set(token, controller);
  return controller.signal;
}

const iso = (time: number): string => new Date(time).toISOString();

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
  expiresAt: expiresAt === null ? null : iso(expiresAt),
});
