import { type Cause, causeOf, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { DeadlinePassed, within } from "./clock.ts";
import { launchDeadlineMs } from "./launcher.ts";
import { LinkUnwanted } from "./link-holder.ts";
import { KeeperRefusal, type Link, LinkLost } from "./ports.ts";
import type { Prover } from "./prover.ts";
import type { Wakes } from "./wakes.ts";
import type { World } from "./world.ts";

const OUTCOME_MS = 5_000;

/**
 * The way every call on a sandbox takes. A sandbox that is being made is waited for, one that sleeps is woken; one that has
 * not been proven for a while, or does not look well, is proven first, so that what fails is told as the sandbox's state and not as the
 * caller's command.
 */
export class Gate {
  readonly #world: World;
  readonly #prover: Prover;
  readonly #wakes: () => Pick<Wakes, "awake">;

  constructor(world: World, prover: Prover, wakes: () => Pick<Wakes, "awake">) {
    this.#world = world;
    this.#prover = prover;
    this.#wakes = wakes;
  }

  /** The link of a sandbox that serves, or a typed error that says why it doesn't. Nothing has been dispatched yet. */
  async pass(cell: Cell, signal: AbortSignal): Promise<Link> {
    return this.passNow(cell) ?? (await this.#wait(cell, signal));
  }

  /** The same without waiting: null where there is something to wait for or to prove. */
  passNow(cell: Cell): Link | null {
    const link = cell.links?.current ?? null;
    if (link === null || cell.judge().status !== "ready") return null;
    const age = this.#world.clock.now() - (cell.health.provenAt ?? 0);
    if (age >= this.#world.numbers.proofFreshMs) return null;
    cell.touch();
    return link;
  }

  async #wait(cell: Cell, signal: AbortSignal): Promise<Link> {
    do {
      await this.#made(cell, signal);
      await this.#wakes().awake(cell, signal);
      // A wake that ended in a new launch is waited for like a first one.
      await this.#made(cell, signal);
      const served = this.passNow(cell);
      if (served !== null) return served;
      const proof = await this.#prover.prove(cell);
      const refusal = cell.refusal();
      if (refusal !== null) throw refusal;
      const link = cell.links?.current;
      if (cell.judge().status === "ready" && proof.ok && link) {
        cell.touch();
        return link;
      }
      // What fell asleep while it was proven is no worse for it.
    } while (cell.isAsleep);
    const { cause } = cell.judge();
    const message = `The sandbox does not serve: ${cause?.message ?? "it has no link"}`;
    throw new HoldfastError("sandbox_degraded", {
      sandboxId: cell.id,
      message,
      ...(cause ? { cause: errorOf(cause) } : {}),
    });
  }

  /** Resolves when it has been made, or refuses with why it never will be. */
  settled(cell: Cell, signal: AbortSignal): Promise<void> {
    return this.#made(cell, signal);
  }

  async #made(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#world;
    const settled = () => cell.record.phase.name !== "queued" && cell.record.phase.name !== "launching";
    if (!settled()) {
      // Longer than the launch's own deadlines, so that its outcome is what the caller hears.
      const ms = numbers.launchQueueMs + launchDeadlineMs(cell.record, numbers) + OUTCOME_MS;
      const limit = { ms, what: "waiting for the sandbox", signal };
      await within(clock, limit, (inner) => cell.until(settled, inner)).catch((error: unknown) => {
        signal.throwIfAborted();
        throw new HoldfastError("deadline", { sandboxId: cell.id, message: causeOf(error).message });
      });
    }
    const refusal = cell.refusal();
    if (refusal !== null) throw refusal;
  }
}

/** A stored cause as an error again, with all that lay beneath it. */
export function errorOf(cause: Cause): Error {
  const options = cause.cause === undefined ? {} : { cause: errorOf(cause.cause) };
  return Object.assign(new Error(cause.message, options), { code: cause.code });
}

/** The sentence at the root of a chain: the outer ones only say what could not be done because of it. */
export const rootMessage = (cause: Cause): string =>
  cause.cause === undefined ? cause.message : rootMessage(cause.cause);

/** What the keeper or the link said, in the words of the registry. */
export function translate(
  error: unknown,
  about: { sandboxId?: string; execId?: string; path?: string },
): unknown {
  const { path, ...ids } = about;
  if (error instanceof LinkUnwanted) {
    const message = "The sandbox is being ended or put to sleep, and takes no more calls.";
    return new HoldfastError("link_lost", { ...ids, dispatched: error.dispatched, message, cause: error });
  }
  if (error instanceof LinkLost) {
    return new HoldfastError("link_lost", {
      ...ids,
      dispatched: error.dispatched,
      message: `The link was lost: ${error.message}`,
      cause: error,
    });
  }
  if (error instanceof DeadlinePassed) {
    return new HoldfastError("deadline", { ...ids, dispatched: "unknown", message: error.message });
  }
  if (!(error instanceof KeeperRefusal)) return error;
  const code = BY_ERRNO[error.errno ?? ""] ?? BY_REASON[error.reason] ?? "internal";
  const message = path === undefined ? error.message : `${error.message}: ${path}`;
  return new HoldfastError(code, { ...ids, dispatched: "yes", message, cause: error });
}

const BY_REASON: Partial<Record<KeeperRefusal["reason"], HoldfastError["code"]>> = {
  no_such_exec: "exec_not_found",
  exec_conflict: "exec_conflict",
  exec_running: "wrong_state",
  limit: "too_many_execs",
  below_floor: "output_dropped",
  bad_cursor: "invalid_request",
  not_regular: "not_a_file",
  reserved_path: "forbidden_path",
  too_large: "too_large",
  /** Whatever else the kernel has against a path: the message has its words. */
  system: "file_conflict",
};

const BY_ERRNO: Record<string, HoldfastError["code"]> = {
  ENOENT: "file_not_found",
  ENOTDIR: "file_conflict",
  EISDIR: "file_conflict",
  EEXIST: "file_conflict",
  ENOTEMPTY: "file_conflict",
  EXDEV: "file_conflict",
  EBUSY: "file_conflict",
  ELOOP: "invalid_path",
  EINVAL: "invalid_path",
  ENAMETOOLONG: "invalid_path",
  EACCES: "permission_denied",
  EPERM: "permission_denied",
  EROFS: "permission_denied",
  ENOSPC: "disk_full",
  EDQUOT: "disk_full",
  EMFILE: "capacity",
  ENFILE: "capacity",
  ENOMEM: "capacity",
  EAGAIN: "capacity",
};
