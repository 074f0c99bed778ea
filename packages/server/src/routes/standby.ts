/** The ways of a sandbox to sleep and back. Each answers when what it asks for is true, and may be asked for again. */
import { type ErrorCode, Sandbox } from "@holdfast/contract";
import type { SandboxApi } from "@holdfast/engine";
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { SandboxRef } from "../schemas.ts";
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
    summary: "Freeze a sandbox in memory, until it is resumed.",
    description:
      "Nothing in it runs on, and calls into it are refused with 409 `wrong_state` meanwhile. A paused one is fine.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.pause(ref, signal),
  },
  resume: {
    operationId: "resumeSandbox",
    summary: "Let a paused sandbox go on; answers when it is proven.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.resume(ref, signal),
  },
  standby: {
    operationId: "standbySandbox",
    summary: "Put a sandbox to sleep; answers when nothing of it is in memory.",
    description:
      "`standbyKind` of the sandbox says what is kept: `memory`, or `files` only. The next call wakes it. What fails or is cancelled leaves it awake and serving.",
    errors: [...SERVING_ERRORS, "standby_cancelled", "standby_failed", "disk_full"],
    run: (sandboxes, ref, signal) => sandboxes.standby(ref, signal),
  },
  wake: {
    operationId: "wakeSandbox",
    summary: "Wake a sandbox from standby; answers when it is proven.",
    description: "What any call into it does by itself. One that is awake is fine.",
    errors: SERVING_ERRORS,
    run: (sandboxes, ref, signal) => sandboxes.wake(ref, signal),
  },
  restart: {
    operationId: "restartSandbox",
    summary: "Start a sandbox anew on the same files; answers when it is proven.",
    description:
      "Its instance is ended first, where it has one; what was in its memory is lost, and commands under way end as `lost`. Also the way back for one that `failed` and whose files are kept.",
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
