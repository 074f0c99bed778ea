/** What the store keeps. Times are milliseconds since the epoch. */
import type {
  AttemptId,
  Cause,
  Dispatched,
  Environment,
  ExecId,
  ExecStatus,
  Labels,
  Lifecycle,
  Resources,
  SandboxId,
  StopReason,
} from "@holdfast/contract";
import type { Instance } from "./ports.ts";

export interface SandboxSpec {
  image: string;
  env: Environment;
  cwd: string | null;
  resources: Resources;
  lifecycle: Lifecycle;
  labels: Labels;
}

/** The phase with the data that only this phase has. */
export type PhaseState =
  | { name: "queued" }
  | { name: "launching"; deadline: number }
  | { name: "running" }
  | { name: "deleting"; cause: Cause | null }
  | { name: "gone"; cause: Cause | null }
  | { name: "failed"; cause: Cause; keptUntil: number };

/**
 * The durable right to, and duty over, the processes of one instance. It is stored before the physical act that it
 * allows and given up only after absence was observed.
 */
export type Lease =
  | { state: "none" }
  | { state: "held"; generation: number; startupDeadline: number; hostBootId: string | null }
  | {
      state: "stop_needed";
      reason: StopReason;
      generation: number;
      attempts: number;
      nextAttemptAt: number;
      lastError: string | null;
    }
  | {
      state: "stopping";
      reason: StopReason;
      generation: number;
      attempts: number;
      attemptId: AttemptId;
      deadline: number;
    }
  | {
      state: "exhausted";
      reason: StopReason;
      generation: number;
      attempts: number;
      nextAttemptAt: number;
      lastError: string | null;
    }
  /** Its stored form could not be read. It is kept as it was, blocks launch and delete, and is shown. */
  | { state: "quarantined"; raw: string };

export interface SandboxRecord {
  id: SandboxId;
  name: string;
  /** Whether the name still belongs to it; given back by failure of the launch and by deletion. */
  nameHeld: boolean;
  phase: PhaseState;
  generation: number;
  lease: Lease;
  instance: Instance | null;
  spec: SandboxSpec;
  createdAt: number;
  lastActivityAt: number;
  /** Of the last change of phase; a proof counts only if it is newer. */
  transitionedAt: number;
  endedAt: number | null;
  /** Grows by one with every update. */
  revision: number;
}

export interface ExecSpec {
  argv: readonly string[];
  env: Environment;
  cwd: string;
  user: string;
  timeoutMs: number | null;
  /** Null: /dev/null. The text is kept so that a restart can give it to the command from where it had got. */
  stdin: { text: string; end: boolean } | null;
}

export interface ExecRecord {
  id: ExecId;
  sandboxId: SandboxId;
  generation: number;
  spec: ExecSpec;
  digest: string;
  status: ExecStatus;
  exitCode: number | null;
  signal: string | null;
  cause: Cause | null;
  dispatched: Dispatched;
  /** Cursor of the journal's end when the exec ended. */
  outputEnd: number;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
}
