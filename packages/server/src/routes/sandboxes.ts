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
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { labelFilter, oneOfEach } from "../filters.ts";
import { acceptedFormat } from "../output-format.ts";
import { PROGRESS_CONTENT, PROGRESS_FORMATS, sendProgress } from "../progress-sender.ts";
import { IdempotencyHeaders, LabelQuery, Page, pageOf, RunningProcessList, SandboxRef } from "../schemas.ts";

const tags = ["sandboxes"];
const MAX_GRACE_MS = 60_000;
const MAX_WAIT_MS = 240_000;
/** On the way to serving. */
const UNDER_WAY: readonly Status[] = ["queued", "creating", "waking"];

export function sandboxRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.post(
    "/v1/sandboxes",
    {
      schema: {
        operationId: "createSandbox",
        summary: "Create a sandbox; answers when it is proven ready.",
        description:
          "An Accept header that names a stream type streams the steps instead: the last record is a `sandbox` or an `error`, and its type decides, since the status was sent before. What is refused before there is anything to tell is an ordinary error response. `wait=false` never streams. With `fromCheckpoint` it begins with what a checkpoint keeps, and `forkedFrom` says so. What is in `mounts` is mounted, and part of the proof, before it is ready.",
        tags,
        headers: IdempotencyHeaders,
        querystring: Type.Object({
          wait: Type.Optional(Type.Boolean({ default: true, description: "false: answer 202 at once" })),
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
      const isUnderWay = UNDER_WAY.includes(sandbox.status);
      return reply.code(existed && !isUnderWay ? 200 : isUnderWay ? 202 : 201).send(sandbox);
    },
  );

  const create = (input: CreateSandbox, options: CreateOptions) =>
    orMaybeDispatched(callers, engine.sandboxes.create(input, options));

  app.get(
    "/v1/sandboxes",
    {
      schema: {
        operationId: "listSandboxes",
        summary: "List sandboxes in the order of their creation.",
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
        summary: "A sandbox: its status, and the evidence for it.",
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
          "What is not named stays, and null removes. The environment is that of execs that start from now on. Wakes nobody; a new `ttlMs` counts from the creation.",
        tags,
        params: SandboxRef,
        body: UpdateSandbox,
        response: { 200: Sandbox },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "wrong_state", "capacity"] },
    },
    ({ params, body }) => engine.sandboxes.update(params.ref, body),
  );

  app.delete(
    "/v1/sandboxes/:ref",
    {
      schema: {
        operationId: "deleteSandbox",
        summary:
          "Delete a sandbox, from any state. 200 once its absence was observed, 202 while it still stops.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          graceMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: MAX_GRACE_MS,
              default: 0,
              description: "between TERM and KILL; 0: KILL at once",
            }),
          ),
          waitMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: MAX_WAIT_MS,
              description: "how long this call waits for the end",
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
        summary: "Prove the sandbox now, through the path that callers use.",
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
        summary: "What runs inside, as its keeper sees it. Named processes are at …/processes.",
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

/** What any call into a sandbox can meet, that of waking it for the call included. */
export const SERVING_ERRORS = [
  "sandbox_not_found",
  "pending_cleanup",
  "sandbox_gone",
  "sandbox_failed",
  "wrong_state",
  "too_many_held",
  "low_memory",
  "wake_timeout",
  "capacity",
  "launches_suspended",
  "sandbox_degraded",
  "link_lost",
  "deadline",
] as const;

/** What keeps a drive from being mounted. */
export const MOUNT_ERRORS = [
  "drive_not_found",
  "drive_deleting",
  "drive_degraded",
  "mount_conflict",
  "mount_refused",
  "mount_failed",
] as const;
