/**
 * Routes for the commands with which an existing runbook handles stuck and leaked sandboxes. Paths, names and bodies
 * are exactly those in the runbook. The data comes from the same engine calls as `/v1`, and these routes make no
 * decisions.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { HoldfastError, isHoldfastError, type Sandbox } from "@holdfast/contract";
import { raced, type SandboxApi } from "@holdfast/engine";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { MAX_LIMIT, readSandboxStory, scrubJson } from "@holdfast/server/adapter";
import type { FastifyReply } from "fastify";
import { RUNBOOK } from "./errors.ts";
import {
  cleanupShape,
  deletedShape,
  RunbookCleanup,
  RunbookDeleted,
  RunbookList,
  RunbookLogs,
  RunbookResources,
  RunbookSandbox,
  RunbookStats,
  resourcesShape,
  sandboxShape,
  statsShape,
} from "./shapes.ts";

const MOUNTED_AT = "/api/sandbox";
const tags = ["runbook"];
const DEFAULT_LINES = 200;

const InSandbox = Type.Object({
  id: Type.String({ minLength: 1, maxLength: 64, description: "id or name of a sandbox" }),
});
const errors = ["sandbox_not_found", "pending_cleanup"] as const;

export function runbookRoutes(app: App, context: RouteContext): void {
  for (const routes of [lookingRoutes, endingRoutes])
    app.register(async (scope) => routes(scope as App, context), { prefix: MOUNTED_AT });
}

/** Read-only routes. None of them wakes a sandbox. */
function lookingRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  app.get(
    "/stats",
    {
      schema: {
        operationId: "runbookStats",
        summary: "Get exact counts, under the runbook's names.",
        tags,
        response: { 200: RunbookStats },
      },
      config: { dialect: RUNBOOK },
    },
    async () => statsShape(await engine.stats()),
  );

  app.get(
    "/list",
    {
      schema: {
        operationId: "runbookList",
        summary: "List all live sandboxes with their age and purpose.",
        tags,
        response: { 200: RunbookList },
      },
      config: { dialect: RUNBOOK },
    },
    async () => {
      const now = Date.now();
      const all = await everySandbox(engine.sandboxes);
      return all.map((sandbox) => sandboxShape(sandbox, now)).filter((item) => item !== null);
    },
  );

  app.get(
    "/:id",
    {
      schema: {
        operationId: "runbookGet",
        summary: "Get one live sandbox.",
        description: "A sandbox named `stats`, `list` or `cleanup` can only be addressed by its id.",
        tags,
        params: InSandbox,
        response: { 200: RunbookSandbox },
      },
      config: { dialect: RUNBOOK, errors },
    },
    async ({ params }) => {
      const sandbox = await engine.sandboxes.get(params.id);
      const shown = sandboxShape(sandbox, Date.now());
      if (shown !== null) return shown;
      const message = `Sandbox ${sandbox.id} was deleted${sandbox.endedAt === null ? "" : ` at ${sandbox.endedAt}`}.`;
      throw new HoldfastError("sandbox_not_found", { sandboxId: sandbox.id, message });
    },
  );

  app.get(
    "/:id/logs",
    {
      schema: {
        operationId: "runbookLogs",
        summary: "Get the latest events and output of a sandbox, and the time of its last activity.",
        tags,
        params: InSandbox,
        querystring: Type.Object({
          limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, default: DEFAULT_LINES })),
        }),
        response: { 200: RunbookLogs },
      },
      config: { dialect: RUNBOOK, errors },
    },
    async ({ params, query }, reply): Promise<RunbookLogs> => {
      const { id } = await engine.sandboxes.get(params.id);
      const limit = query.limit ?? DEFAULT_LINES;
      const story = await readSandboxStory(engine, id, { limit }, callers.signal(reply.raw));
      const lines = story.lines.map(({ at, kind, text, execId }) => ({
        ...{ at, kind, exec_id: execId },
        text: kind === "event" ? scrub(text) : text,
      }));
      return { id, last_activity_at: story.lastActivityAt, lines };
    },
  );

  app.get(
    "/:id/resources",
    {
      schema: {
        operationId: "runbookResources",
        summary: "Get the resource usage of a sandbox, including sandboxes that are in standby or failed.",
        tags,
        params: InSandbox,
        response: { 200: RunbookResources },
      },
      config: { dialect: RUNBOOK, errors: [...errors, "sandbox_gone"] },
    },
    async ({ params }, reply) =>
      resourcesShape(await engine.sandboxes.resources(params.id, callers.signal(reply.raw))),
  );
}

/** Routes that change something: they delete a sandbox or run a cleanup. */
function endingRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  app.delete(
    "/:id",
    {
      schema: {
        operationId: "runbookDelete",
        summary:
          "Delete a sandbox, from any state. 200 when its absence has been observed, 202 while it is still stopping.",
        tags,
        params: InSandbox,
        response: { 200: RunbookDeleted, 202: RunbookDeleted },
      },
      config: { dialect: RUNBOOK, errors: [...errors, "wrong_state"] },
    },
    async ({ params }, reply) => {
      const options = { graceMs: 0, signal: callers.signal(reply.raw) };
      const deleted = await engine.sandboxes.remove(params.id, options).then(deletedShape, isGone(params.id));
      const last_error = deleted.last_error === null ? null : scrub(deleted.last_error);
      return reply.code(deleted.status === "terminated" ? 200 : 202).send({ ...deleted, last_error });
    },
  );

  const cleanUp = async (reply: FastifyReply, body: Static<typeof CleanupBody>, emergency: boolean) => {
    const order = { dryRun: body.dry_run ?? false, emergency };
    const report = await raced(engine.cleanup(order), callers.signal(reply.raw));
    return scrubJson(cleanupShape(report), scrub);
  };

  app.post(
    "/cleanup",
    {
      schema: {
        operationId: "runbookCleanup",
        summary: "Run the periodic cleanup now.",
        tags,
        body: CleanupBody,
        response: { 200: RunbookCleanup },
      },
      config: { dialect: RUNBOOK, optionalBody: true },
    },
    ({ body }, reply) => cleanUp(reply, body, false),
  );

  app.post(
    "/cleanup/emergency",
    {
      schema: {
        operationId: "runbookCleanupEmergency",
        summary:
          "Suspend idle sandboxes, run the cleanup, and delete every disposable sandbox that has no running exec.",
        tags,
        body: CleanupBody,
        response: { 200: RunbookCleanup },
      },
      config: { dialect: RUNBOOK, optionalBody: true },
    },
    ({ body }, reply) => cleanUp(reply, body, true),
  );
}

const CleanupBody = Type.Object(
  {
    dry_run: Type.Optional(
      Type.Boolean({ default: false, description: "report what would be done without changing anything" }),
    ),
  },
  { $id: "RunbookCleanupOrder", title: "RunbookCleanupOrder", additionalProperties: false },
);

/**
 * Handles an error of a delete. The engine throws `sandbox_gone` after it has deleted a sandbox without a readable
 * record, so that error is converted to the response of a successful delete. All other errors are rethrown.
 */
const isGone =
  (id: string) =>
  (error: unknown): RunbookDeleted => {
    if (!isHoldfastError(error) || error.code !== "sandbox_gone") throw error;
    return {
      id: error.sandboxId ?? id,
      status: "terminated",
      attempts: 0,
      next_attempt_at: null,
      last_error: null,
    };
  };

/** Returns the sandboxes of all pages of Holdfast's list, because the list for runbooks is not paginated. */
async function everySandbox(sandboxes: SandboxApi): Promise<Sandbox[]> {
  const all: Sandbox[] = [];
  for (let cursor: string | undefined; ; ) {
    const { items, nextCursor } = await sandboxes.list({ cursor, limit: MAX_LIMIT });
    all.push(...items);
    if (nextCursor === null) return all;
    cursor = nextCursor;
  }
}
