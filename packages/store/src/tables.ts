/**
 * The types of the database's tables, as queries use them. JSON is stored as text, and times are stored as milliseconds
 * since the epoch.
 */
import type { Generated } from "kysely";

export interface SandboxTable {
  /** Creation order. */
  position: Generated<number>;
  id: string;
  name: string;
  name_held: number;
  phase: string;
  /** JSON: the fields of the record that exist only in its present phase. */
  phase_data: string;
  generation: number;
  memory_since: number;
  /** JSON. A lease that could not be read is stored again as the text that was found. */
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
  /** When the exec ended; null while it has no outcome. */
  ended_at: number | null;
}

export interface CheckpointTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: the part of the checkpoint that the API returns. */
  summary: string;
  /** JSON: the part that only a fork needs; it may be large. */
  content: string;
  created_at: number;
}

export interface PreviewTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: all other fields. */
  content: string;
}

export interface ProcessTable {
  position: Generated<number>;
  id: string;
  sandbox_id: string;
  name: string;
  /** JSON: the spec as requested. */
  spec: string;
  digest: string;
  /** JSON: the current state. */
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
  /** JSON: subject, values and message. */
  content: string;
  fired_at: number;
  /** When the alert cleared; null while it is active. */
  cleared_at: number | null;
}

export interface DeliveryTable {
  position: Generated<number>;
  id: string;
  alert_id: string;
  state: string;
  /** JSON: the alert at the time of the delivery's creation. */
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
  /** Id of the created resource. */
  target: string;
  created_at: number;
}

export interface KeyTable {
  /** SHA-256 of the secret, in hex. The secret itself is not stored. */
  hash: string;
  name: string;
  last_four: string;
  created_at: number;
}

interface MetaTable {
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
