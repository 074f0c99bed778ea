/**
 * The ports of the engine. Time, ids, the database, the driver and the links are reached only through them, so that the
 * same engine runs on a machine and in the simulator.
 */
import type {
  Alert,
  AlertId,
  AttemptId,
  CheckpointId,
  DeliveryId,
  DriveId,
  ExecId,
  InstallationId,
  ProcessId,
  SandboxId,
  TokenId,
} from "@holdfast/contract";
import type { Driver } from "./driver.ts";
import type { Store } from "./store.ts";

export * from "./capabilities.ts";
export * from "./driver.ts";
export * from "./link.ts";
export * from "./store.ts";

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls `then` after `ms`. The returned function cancels the call. */
  after(ms: number, then: () => void): () => void;
  /** Resolves after `ms`. If the signal aborts first, rejects with the signal's reason. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Returns a signal that aborts after `ms`; `clear` cancels the timer. */
  deadline(ms: number, why: string): { signal: AbortSignal; clear(): void };
}

export interface Ids {
  sandbox(): SandboxId;
  exec(): ExecId;
  attempt(): AttemptId;
  checkpoint(): CheckpointId;
  drive(): DriveId;
  alert(): AlertId;
  delivery(): DeliveryId;
  token(): TokenId;
  process(): ProcessId;
  /** Generates a name for a sandbox or drive that was created without one. */
  name(): string;
  /** Returns a random number, uniform in [0, 1), for jitter. */
  random(): number;
}

type Fields = Record<string, unknown>;
export interface Log {
  debug(fields: Fields, message: string): void;
  info(fields: Fields, message: string): void;
  warn(fields: Fields, message: string): void;
  error(fields: Fields, message: string): void;
  child(fields: Fields): Log;
}

/** Delivers messages about alerts. */
export interface Notifier {
  /**
   * Resolves when the receiver has accepted the message; otherwise rejects with a reason that contains no secrets. The
   * same id may be delivered twice, because a server that dies right after a delivery does not record its success.
   */
  deliver(message: AlertMessage, signal: AbortSignal): Promise<void>;
}

export interface AlertMessage {
  id: DeliveryId;
  createdAt: number;
  alert: Alert;
}

export interface Ports {
  installation: InstallationId;
  clock: Clock;
  ids: Ids;
  log: Log;
  store: Store;
  driver: Driver;
  /** Null if no receiver is configured. */
  notifier: Notifier | null;
  /** Labels that every sandbox should have. A diagnosis reports the labels that a sandbox lacks. Default: none. */
  expectedLabels?: readonly string[];
}
