import { newExecId, newProcessId, newSandboxId } from "@holdfast/contract";
import type { ExecRecord, ExecSpec, ProcessRecord, ProcessSpec, SandboxRecord } from "../ports/records.ts";

/** Returns the record of a sandbox that was just accepted. */
export const queuedSandbox = (changes: Partial<SandboxRecord> = {}): SandboxRecord => ({
  id: newSandboxId(),
  name: "one",
  nameHeld: true,
  phase: { name: "queued" },
  generation: 0,
  memorySince: 0,
  lease: { state: "none" },
  instance: null,
  spec: {
    image: "host",
    env: {},
    cwd: null,
    resources: { memoryMb: 64, cpus: 1, pids: 32 },
    lifecycle: {},
    labels: {},
  },
  createdAt: 0,
  lastActivityAt: 0,
  transitionedAt: 0,
  endedAt: null,
  owner: null,
  execsStarted: 0,
  forkedFrom: null,
  mounts: [],
  restarts: null,
  revision: 0,
  ...changes,
});

const commandSpec: ExecSpec = {
  argv: ["serve"],
  env: {},
  cwd: "",
  user: "",
  timeoutMs: null,
  stdin: null,
  tty: null,
  keepAwake: false,
  onWake: null,
};

export const someExec = (over: Partial<ExecRecord> = {}): ExecRecord => ({
  id: newExecId(),
  sandboxId: newSandboxId(),
  generation: 1,
  spec: commandSpec,
  digest: "",
  status: "running",
  exitCode: null,
  signal: null,
  cause: null,
  dispatched: "yes",
  outputEnd: 0,
  createdAt: 0,
  startedAt: 0,
  endedAt: null,
  ...over,
});

export const someProcess = (
  over: Partial<ProcessRecord> = {},
  spec: Partial<ProcessSpec> = {},
): ProcessRecord => ({
  id: newProcessId(),
  sandboxId: newSandboxId(),
  name: "web",
  spec: { command: commandSpec, restart: null, readyWhen: null, connectBy: null, ...spec },
  digest: "",
  run: 1,
  generation: 1,
  restarts: 0,
  order: null,
  seen: null,
  end: null,
  createdAt: 0,
  revision: 0,
  ...over,
});
