/**
 * What the engine needs of the world. It knows nothing else: time, ids, the database, whatever runs instances and the
 * link into them all come through here, so that the same engine runs on a machine and in the simulator.
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
  PreviewId,
  ProcessId,
  SandboxId,
  TokenId,
} from "@holdfast/contract";
import type { Driver, Drives, Images, Journals } from "./driver-port.ts";
import type { Store } from "./store-port.ts";

export * from "./driver-port.ts";
export * from "./link-port.ts";
export * from "./store-port.ts";

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls `then` in `ms`, unless what it returned is called before. */
  after(ms: number, then: () => void): () => void;
  /** Resolves after `ms`; rejects with the signal's reason when it is aborted first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Aborts `ms` from now; `clear` lets the timer go. */
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
  preview(): PreviewId;
  token(): TokenId;
  process(): ProcessId;
  /** A made-up name for a sandbox or drive whose creator gave none. */
  name(): string;
  /** Uniform in [0, 1), for jitter. */
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

/** Where messages about alerts go. */
export interface Notifier {
  /**
   * Resolves when it was taken, and rejects with why not, in words without secrets. The same id may come again: a server that
   * dies after it was taken does not know that.
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
  drives: Drives;
  images: Images;
  journals: Journals;
  /** Null where nobody is to be told. */
  notifier: Notifier | null;
}
