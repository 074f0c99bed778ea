import { newSandboxId } from "@holdfast/contract";
import type { SandboxRecord } from "../records.ts";

/** A sandbox as it is when it was just accepted. */
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
