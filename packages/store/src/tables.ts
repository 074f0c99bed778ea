/** The database as its queries see it. JSON is stored as text, times are milliseconds since the epoch. */
import type { Generated } from "kysely";

export interface SandboxTable {
  /** The order of creation. */
  position: Generated<number>;
  id: string;
  name: string;
  name_held: number;
  phase: string;
  /** JSON: what only this phase has. */
  phase_data: string;
  generation: number;
  memory_since: number;
  /** JSON, or whatever was found there by a reader that could make nothing of it. */
  lease: string;
  /** JSON. */
  instance: string | null;
  /** JSON. */
  spec: string;
  created_at: number;
  last_activity_at: number;
  transitioned_at: number;
  ended_at: number | null;
  owner: string | null;
  execs_started: number;
  /** JSON. */
  forked_from: string | null;
  /** JSON. */
  mounts: string;
  /** JSON. */
  restarts: string | null;
  revision: number;
}

export interface ExecTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  generation: number;
  /** JSON. */
  spec: string;
  digest: string;
  status: string;
  exit_code: number | null;
  signal: string | null;
  /** JSON. */
  cause: string | null;
  dispatched: string;
  output_end: number;
  created_at: number;
  started_at: number | null;
  /** Null exactly as long as there is no outcome. */
  ended_at: number | null;
}

export interface CheckpointTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: what is told of it. */
  summary: string;
  /** JSON: what only a fork needs; may be large. */
  content: string;
  created_at: number;
}

export interface PreviewTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: all else. */
  content: string;
}

export interface ProcessTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: what was asked for. */
  spec: string;
  digest: string;
  /** JSON: how far it has come. */
  state: string;
  created_at: number;
  revision: number;
}

export interface DriveTable {
  position: Generated<number>;
  id: string;
  name: string;
  phase: string;
  size_mb: number | null;
  /** JSON. */
  labels: string;
  owner: string | null;
  created_at: number;
  revision: number;
}

export interface EventTable {
  seq: Generated<number>;
  at: number;
  type: string;
  sandbox_id: string | null;
  exec_id: string | null;
  drive_id: string | null;
  generation: number | null;
  message: string;
  /** JSON. */
  data: string;
}

export interface AlertTable {
  position: Generated<number>;
  id: string;
  key: string;
  /** JSON: what it is about, its figures and its words. */
  content: string;
  fired_at: number;
  /** Null as long as it fires. */
  cleared_at: number | null;
}

export interface DeliveryTable {
  position: Generated<number>;
  id: string;
  alert_id: string;
  state: string;
  /** JSON: the alert as it was then. */
  alert: string;
  attempts: number;
  created_at: number;
  next_attempt_at: number | null;
  delivered_at: number | null;
  last_error: string | null;
}

export interface CounterTable {
  name: string;
  value: number;
}

export interface IdempotencyTable {
  scope: string;
  key: string;
  fingerprint: string;
  /** The id of what was made. */
  target: string;
  created_at: number;
}

export interface KeyTable {
  /** SHA-256 of the secret, hex. The secret itself is nowhere. */
  hash: string;
  name: string;
  last_four: string;
  created_at: number;
}

export interface MetaTable {
  key: string;
  value: string;
}

export interface Tables {
  sandboxes: SandboxTable;
  execs: ExecTable;
  checkpoints: CheckpointTable;
  processes: ProcessTable;
  drives: DriveTable;
  previews: PreviewTable;
  alerts: AlertTable;
  deliveries: DeliveryTable;
  events: EventTable;
  counters: CounterTable;
  idempotency: IdempotencyTable;
  api_keys: KeyTable;
  meta: MetaTable;
}
