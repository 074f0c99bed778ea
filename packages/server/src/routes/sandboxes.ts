import { Type } from "@fastify/type-provider-typebox";
import {
  CreateSandbox,
  Proof,
  Sandbox,
  SandboxList,
  STATUSES,
  type Status,
  UpdateSandbox,
} from "@holdfast/contract";
import type { CreateOptions } from "@holdfast/engine";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { labelFilter, oneOfEach } from "../http/filters.ts";
import {
  IdempotencyHeaders,
  LabelQuery,
  Page,
  pageOf,
  RunningProcessList,
  SandboxRef,
} from "../http/schemas.ts";
import { acceptedFormat } from "../streams/output-format.ts";
import { PROGRESS_CONTENT, PROGRESS_FORMATS, sendProgress } from "../streams/progress-sender.ts";

const tags = ["sandboxes"];
const MAX_GRACE_MS = 60_000;
const MAX_WAIT_MS = 240_000;
/** Statuses of a sandbox that will become `ready` without a request. */
const BECOMING_READY: readonly Status[] = ["queued", "creating", "waking"];

export function sandboxRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.post(
    "/v1/sandboxes",
    {
      schema: {
        operationId: "createSandbox",
        summary: "Create a sandbox. Returns when the sandbox is proven ready.",
        description:
          "With an Accept header that names a stream type, the steps are streamed: the last record is a `sandbox` or an `error` and gives the outcome, because the HTTP status is sent earlier. A request rejected before the first step gets an ordinary error response. `wait=false` never streams. With `fromCheckpoint` the sandbox starts from the contents of a checkpoint, shown in `forkedFrom`. The drives in `mounts` are mounted and proven before the sandbox is ready.",
        tags,
        headers: IdempotencyHeaders,
        querystring: Type.Object({
          wait: Type.Optional(Type.Boolean({ default: true, description: "false: return 202 at once" })),
        }),
        body: CreateSandbox,
        response: { 200: Sandbox, 201: Sandbox, 202: Sandbox },
      },
      config: {
        content: { 200: PROGRESS_CONTENT },
        errors: [
          "image_not_found",
          "image_incapable",
          "checkpoint_not_found",
          "checkpoint_unusable",
          ...MOUNT_ERRORS,
          "name_taken",
          "idempotency_conflict",
          "too_many_sandboxes",
          "low_memory",
          "launches_suspended",
          "capacity",
          "launch_failed",
          "proof_failed",
          "deadline",
          "disk_full",
        ],
      },
    },
    async ({ body, query, headers, owner }, reply) => {
      const wait = query.wait ?? true;
      const idempotencyKey = headers["idempotency-key"];
      const options = { wait, idempotencyKey, owner, signal: callers.signal(reply.raw) };
      const format = wait ? acceptedFormat(headers.accept, PROGRESS_FORMATS) : null;
      if (format) {
        return sendProgress(reply, context, format, (onProgress) => create(body, { ...options, onProgress }));
      }
      const { sandbox, existed } = await create(body, options);
      const isBecomingReady = BECOMING_READY.includes(sandbox.status);
      return reply.code(existed && !isBecomingReady ? 200 : isBecomingReady ? 202 : 201).send(sandbox);
    },
  );

  const create = (input: CreateSandbox, options: CreateOptions) =>
    orMaybeDispatched(callers, engine.sandboxes.create(input, options));

  app.get(
    "/v1/sandboxes",
    {
      schema: {
        operationId: "listSandboxes",
        summary: "List sandboxes in creation order.",
        tags,
        querystring: Type.Object({
          status: Type.Optional(
            Type.Array(Type.String(), {
              description: `repeated or separated by commas: ${STATUSES.join(", ")}`,
            }),
          ),
          ...LabelQuery,
          ...Page,
        }),
        response: { 200: SandboxList },
      },
    },
    ({ query }) =>
      engine.sandboxes.list({
        ...pageOf(query),
        status: oneOfEach<Status>("status", query.status, STATUSES),
        labels: labelFilter(query.label),
      }),
  );

  app.get(
    "/v1/sandboxes/:ref",
    {
      schema: {
        operationId: "getSandbox",
        summary: "Get a sandbox: its status and the evidence for it.",
        tags,
        params: SandboxRef,
        response: { 200: Sandbox },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup"] },
    },
    ({ params }) => engine.sandboxes.get(params.ref),
  );

  app.patch(
    "/v1/sandboxes/:ref",
    {
      schema: {
        operationId: "updateSandbox",
        summary: "Change a sandbox's labels, environment or lifecycle.",
        description:
          "Absent fields stay unchanged; null removes a value. Environment changes apply to execs started later. Does not wake the sandbox. A new `ttlMs` counts from the sandbox's creation, `expiresInMs` from the update; an age that the sandbox has already reached is refused.",
        tags,
        params: SandboxRef,
        body: UpdateSandbox,
        response: { 200: Sandbox },
      },
      config: {
        errors: ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "wrong_state", "update_conflict"],
      },
    },
    ({ params, body }) => engine.sandboxes.update(params.ref, body),
  );

  app.delete(
    "/v1/sandboxes/:ref",
    {
      schema: {
        operationId: "deleteSandbox",
        summary:
          "Delete a sandbox, from any state. 200 when its absence has been observed, 202 while it is still stopping.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          graceMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: MAX_GRACE_MS,
              default: 0,
              description: "time between SIGTERM and SIGKILL; 0: SIGKILL at once",
            }),
          ),
          waitMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: MAX_WAIT_MS,
              description: "how long this call waits for the sandbox to be gone",
            }),
          ),
        }),
        response: { 200: Sandbox, 202: Sandbox },
      },
      config: { errors: ["sandbox_not_found", "wrong_state", "sandbox_gone"] },
    },
    async ({ params, query }, reply) => {
      const sandbox = await engine.sandboxes.remove(params.ref, {
        graceMs: query.graceMs ?? 0,
        waitMs: query.waitMs,
        signal: callers.signal(reply.raw),
      });
      return reply.code(sandbox.status === "terminated" ? 200 : 202).send(sandbox);
    },
  );

  app.post(
    "/v1/sandboxes/:ref/verify",
    {
      schema: {
        operationId: "verifySandbox",
        summary: "Prove the sandbox now, through the same path that calls use.",
        tags,
        params: SandboxRef,
        response: { 200: Proof },
      },
      config: { errors: [...SERVING_ERRORS] },
    },
    ({ params }, reply) => engine.sandboxes.verify(params.ref, callers.signal(reply.raw)),
  );

  app.get(
    "/v1/sandboxes/:ref/ps",
    {
      schema: {
        operationId: "listRunningProcesses",
        summary:
          "List the running OS processes of a sandbox, as its keeper sees them. Named processes are at …/processes.",
        tags,
        params: SandboxRef,
        response: { 200: RunningProcessList },
      },
      config: { errors: [...SERVING_ERRORS] },
    },
    async ({ params }, reply) => ({
      items: await engine.sandboxes.processes(params.ref, callers.signal(reply.raw)),
    }),
  );
}

/** Error codes that any call into a sandbox can return, including those of waking it. */
export const SERVING_ERRORS = [
  "sandbox_not_found",
  "pending_cleanup",
  "sandbox_gone",
  "sandbox_failed",
  "wrong_state",
  "too_many_held",
  "low_memory",
  "wake_failed",
  "wake_timeout",
  "capacity",
  "launches_suspended",
  "sandbox_degraded",
  "link_lost",
  "deadline",
] as const;

/** Error codes that mounting a drive can return. */
export const MOUNT_ERRORS = [
  "drive_not_found",
  "drive_deleting",
  "drive_degraded",
  "mount_conflict",
  "mount_refused",
  "mount_failed",
] as const;
