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
} from "../api.ts";
import { HoldfastError, NotFoundError, type Where } from "../errors.ts";
import { eventsOf } from "../events.ts";
import { type Call, type Calls, pause } from "../transport/calls.ts";
import { backoff } from "../transport/retry.ts";
import type { CreateDrive, Drive as DriveInfo, Event, UpdateDrive } from "../types.generated.ts";
import { FilesOf } from "./files.ts";

/** The server's deadline for one attempt to create or remove a drive. */
const DRIVE_WAIT_MS = 60_000;
/** How long the client repeats the delete request for a drive that is not yet gone. */
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
    async get(ref, { signal, ...unknown } = {}) {
      const call = { method: "GET", path: pathOf(ref), idempotent: true, signal, unknown } as const;
      return new DriveHandle(calls, await calls.json<DriveInfo>(call));
    },
    list({ labels, limit, cursor, signal, ...unknown }: DriveFilter = {}) {
      const label = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
      const query = { label, limit, cursor };
      return calls.json({ method: "GET", path: "/v1/drives", query, idempotent: true, signal, unknown });
    },
    delete: (ref, options = {}) => untilGone(calls, ref, options, () => {}),
  };
}

/**
 * Adds a unique generated name to options without a name. If the response to the create request is lost, the request
 * can then be repeated: a drive with that name can only be the requested one, and is returned.
 */
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

  async refresh({ signal, ...unknown }: CallOptions = {}): Promise<DriveInfo> {
    const call = { method: "GET", path: pathOf(this.id), idempotent: true, signal, unknown } as const;
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
 * Repeats the delete until nothing of the drive is left, and passes each state to `learn`. A delete by id can be
 * repeated, because an id always refers to the same drive. A name may be reused, so a delete that begins with a name
 * continues with the id.
 */
async function untilGone(
  calls: Calls,
  ref: string,
  { force, signal, ...unknown }: DeleteDriveOptions,
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
      unknown,
    };
    left = await leftOf(calls, call, left !== null);
    if (left === null) return;
    learn(left);
    const delayMs = backoff(tries, Math.random());
    if (performance.now() + delayMs > giveUpAt) throw notYetGone(calls.where(call), left);
    await pause(delayMs, signal);
  }
}

/**
 * Sends a delete request. Returns the drive if something of it is left, and null if it is deleted. A "not found"
 * response counts as deleted if this request, or an earlier one, may already have deleted the drive. Otherwise the
 * drive did not exist, and "not found" is thrown.
 */
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
    message: `Drive ${info.name} is not deleted yet${info.cause === null ? "" : `: ${info.cause.message}`}.`,
    hint: "The server keeps trying.",
    retryable: true,
    dispatched: "yes",
    status: 202,
    body: JSON.stringify(info),
  });
