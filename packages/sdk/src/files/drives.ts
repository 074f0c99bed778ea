import { randomBytes } from "node:crypto";
import type {
  CallOptions,
  DeleteDriveOptions,
  Drive,
  DriveFilter,
  Drives,
  EventFilter,
  Files,
  Page,
} from "./api.ts";
import { type Call, type Calls, pause } from "./calls.ts";
import { HoldfastError, NotFoundError, type Where } from "./errors.ts";
import { eventsOf } from "./events.ts";
import { FilesOf } from "./files.ts";
import { backoff } from "./retry.ts";
import type { CreateDrive, Drive as DriveInfo, Event, UpdateDrive } from "./types.generated.ts";

/** What the server gives one try at making or removing a drive. */
const DRIVE_WAIT_MS = 60_000;
/** How long a delete is asked for in all. */
const DELETE_PATIENCE_MS = 120_000;

const pathOf = (ref: string): string => `/v1/drives/${encodeURIComponent(ref)}`;

export function drivesOf(calls: Calls): Drives {
  const create = async ({ signal, ...wanted }: CreateDrive & CallOptions): Promise<Drive> => {
    const call = { method: "POST", path: "/v1/drives", json: wanted, idempotent: true } as const;
    return new DriveHandle(calls, await calls.json<DriveInfo>({ ...call, waitMs: DRIVE_WAIT_MS, signal }));
  };
  return {
    create: (options = {}) => create(options.name === undefined ? nameless(options) : options),
    getOrCreate: (options) => create({ ...options, ifExists: "return" }),
    async get(ref, { signal } = {}) {
      const call = { method: "GET", path: pathOf(ref), idempotent: true, signal } as const;
      return new DriveHandle(calls, await calls.json<DriveInfo>(call));
    },
    list({ labels, limit, cursor, signal }: DriveFilter = {}) {
      const label = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
      const query = { label, limit, cursor };
      return calls.json({ method: "GET", path: "/v1/drives", query, idempotent: true, signal });
    },
    delete: (ref, options = {}) => untilGone(calls, ref, options, () => {}),
  };
}

/** Nobody else chooses this name, so that the one that has it after a lost answer is the one that was asked for. */
const nameless = (options: CreateDrive & CallOptions): CreateDrive & CallOptions => ({
  ...options,
  name: `drive-${randomBytes(8).toString("hex")}`,
  ifExists: "return",
});

class DriveHandle implements Drive {
  readonly #calls: Calls;
  #info: DriveInfo;
  readonly files: Files;

  constructor(calls: Calls, info: DriveInfo) {
    this.#calls = calls;
    this.#info = info;
    this.files = new FilesOf(calls, pathOf(info.id));
  }

  get id(): string {
    return this.#info.id;
  }
  get name(): string {
    return this.#info.name;
  }
  get info(): DriveInfo {
    return this.#info;
  }

  async refresh({ signal }: CallOptions = {}): Promise<DriveInfo> {
    const call = { method: "GET", path: pathOf(this.id), idempotent: true, signal } as const;
    this.#info = await this.#calls.json(call);
    return this.#info;
  }

  async update({ signal, ...changes }: UpdateDrive & CallOptions): Promise<DriveInfo> {
    const call = { method: "PATCH", path: pathOf(this.id), json: changes, idempotent: true, signal } as const;
    this.#info = await this.#calls.json(call);
    return this.#info;
  }

  events(filter: EventFilter = {}): Promise<Page<Event>> {
    return eventsOf(this.#calls).list({ ...filter, drive: this.id });
  }

  delete(options: DeleteDriveOptions = {}): Promise<void> {
    return untilGone(this.#calls, this.id, options, (info) => {
      this.#info = info;
    });
  }
}

/**
 * Asks until nothing of it is left, and tells what it learns. An id means the same drive for ever, so that an order to delete
 * it can be repeated; a name may be given anew, so that what was begun by name goes on by id.
 */
async function untilGone(
  calls: Calls,
  ref: string,
  { force, signal }: DeleteDriveOptions,
  learn: (info: DriveInfo) => void,
): Promise<void> {
  const giveUpAt = performance.now() + DELETE_PATIENCE_MS;
  let left: DriveInfo | null = null;
  for (let tries = 1; ; tries++) {
    const target: string = left?.id ?? ref;
    const call: Call = {
      method: "DELETE",
      path: pathOf(target),
      query: { force },
      idempotent: target.startsWith("drv_"),
      waitMs: DRIVE_WAIT_MS,
      signal,
    };
    left = await leftOf(calls, call, left !== null);
    if (left === null) return;
    learn(left);
    const delayMs = backoff(tries, Math.random());
    if (performance.now() + delayMs > giveUpAt) throw notYetGone(calls.where(call), left);
    await pause(delayMs, signal);
  }
}

/** Null where nothing is; one that is not there any more, after an order that was or may have been heard, is as gone as this wants it. */
async function leftOf(calls: Calls, call: Call, wasHeard: boolean): Promise<DriveInfo | null> {
  try {
    return (await calls.json<DriveInfo | undefined>(call)) ?? null;
  } catch (error) {
    if (!(error instanceof NotFoundError) || error.code !== "drive_not_found") throw error;
    if (!wasHeard && error.dispatched === "no") throw error;
    return null;
  }
}

const notYetGone = (where: Where, info: DriveInfo): HoldfastError =>
  new HoldfastError({
    ...where,
    code: "deadline",
    message: `Drive ${info.name} is not gone yet${info.cause === null ? "" : `: ${info.cause.message}`}.`,
    hint: "The server goes on trying.",
    retryable: true,
    dispatched: "yes",
    status: 202,
    body: JSON.stringify(info),
  });
