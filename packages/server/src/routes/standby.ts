/**
 * Pause, resume, standby, wake and restart. Each call responds when the requested state is reached, and can be
 * repeated.
 */
import { type ErrorCode, Sandbox } from "@holdfast/contract";
import type { SandboxApi } from "@holdfast/engine";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { SandboxRef } from "../http/schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

interface Verb {
  operationId: string;
  summary: string;
  description?: string;
  errors: readonly ErrorCode[];
  run(sandboxes: SandboxApi, ref: string, signal: AbortSignal): Promise<Sandbox>;
}

const VERBS: Readonly<Record<"pause" | "resume" | "standby" | "wake" | "restart", Verb>> = {
  pause: {
    operationId: "pauseSandbox",
    summary: "Freeze a sandbox in memory until it is resumed.",
    description:
      "No process in the sandbox runs while it is paused, and calls into it are refused with 409 `wrong_state`. Does nothing if the sandbox is already paused.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.pause(ref, signal),
  },
  resume: {
    operationId: "resumeSandbox",
    summary: "Resume a paused sandbox. Returns when the sandbox is proven.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.resume(ref, signal),
  },
  standby: {
    operationId: "standbySandbox",
    summary: "Suspend a sandbox to standby. Returns when it no longer uses memory.",
    description:
      "`standbyKind` of the sandbox says what is kept: `memory` (and files), or `files` only. The next call wakes the sandbox. Waits up to 5 s for calls in progress, among them callers that wait for the end of an exec, and is then 409 `sandbox_busy`. If the suspension fails or is cancelled, the sandbox keeps serving.",
    errors: [...SERVING_ERRORS, "sandbox_busy", "standby_cancelled", "standby_failed", "disk_full"],
    run: (sandboxes, ref, signal) => sandboxes.standby(ref, signal),
  },
  wake: {
    operationId: "wakeSandbox",
    summary: "Wake a sandbox from standby. Returns when the sandbox is proven.",
    description:
      "Any call into a sandbox in standby wakes it too. Does nothing if the sandbox is already awake.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.wake(ref, signal),
  },
  restart: {
    operationId: "restartSandbox",
    summary: "Restart a sandbox on the same files. Returns when the sandbox is proven.",
    description:
      "Stops the running instance first, if there is one: its memory is lost, and running commands end as `lost`. Also recovers a `failed` sandbox whose files are kept.",
    errors: [...SERVING_ERRORS, "too_many_sandboxes", "disk_full", "launch_failed"],
    run: (sandboxes, ref, signal) => sandboxes.restart(ref, signal),
  },
};

export function standbyRoutes(app: App, { engine, callers }: RouteContext): void {
  for (const [name, { errors, run, ...about }] of Object.entries(VERBS)) {
    app.post(
      `/v1/sandboxes/:ref/${name}`,
      {
        schema: { ...about, tags: ["sandboxes"], params: SandboxRef, response: { 200: Sandbox } },
        config: { errors },
      },
      ({ params }, reply) =>
        orMaybeDispatched(callers, run(engine.sandboxes, params.ref, callers.signal(reply.raw))),
    );
  }
}
