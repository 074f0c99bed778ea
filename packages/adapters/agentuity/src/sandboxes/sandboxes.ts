import { type Static, Type } from "@fastify/type-provider-typebox";
import { checker } from "@holdfast/adapter-shared";
import { HoldfastError, UpdateSandbox } from "@holdfast/contract";
import type { App } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";
import { type AdapterContext, InSandbox, OrgQuery, succeeded } from "../adapter-context.ts";
import { executionIdOf, orderOfStdin } from "../executions/exec-ids.ts";
import { startCommand } from "../executions/start-command.ts";
import { takeFilesIn, writeAll } from "../files/files-in.ts";
import { exitCodeOf, type Shown, STATUS, sandboxShape } from "../shapes.ts";
import { linksFor, viewForRequest } from "../view-for-request.ts";
import { exposePort } from "./open-port.ts";
import { SandboxRequest, sandboxRequest } from "./sandbox-request.ts";

const WaitQuery = Type.Object({
  ...OrgQuery,
  waitForStatus: Type.Optional(Type.String()),
  waitMs: Type.Optional(Type.Integer({ minimum: 0 })),
});
const GetQuery = Type.Object({
  ...WaitQuery.properties,
  includeDeleted: Type.Optional(Type.Boolean()),
});
const EnvRequest = Type.Object({ env: Type.Record(Type.String(), Type.Union([Type.String(), Type.Null()])) });

const checkUpdate = checker(UpdateSandbox);

/** Routes of sandboxes, from create to delete. */
export function sandboxRoutes(app: App, context: AdapterContext): void {
  const { engine, callers, numbers, views } = context;

  app.register(async (scope) => {
    takeFilesIn(scope as App, context);
    createRoute(scope as App, context);
  });

  /** Returns the sandbox when it reaches the awaited status, or its current state when the wait times out. */
  function waited(ref: string, query: Static<typeof WaitQuery>, signal: AbortSignal): Promise<Shown> {
    const wanted = query.waitForStatus?.split(",").map((status) => status.trim()) ?? [];
    const waitMs = wanted.length === 0 ? 0 : Math.min(query.waitMs ?? 0, numbers.execWaitMaxMs);
    return waitMs === 0 ? views.get(ref) : views.when(ref, wanted, waitMs, signal);
  }

  app.get(
    "/sandbox/:id",
    { schema: { params: InSandbox, querystring: GetQuery } },
    async (request, reply) => {
      const { params, query } = request;
      const shown = await waited(params.id, query, callers.signal(reply.raw));
      const isDeleted = shown.sandbox.status === "terminated" && shown.details.mode !== "oneshot";
      if (isDeleted && !query.includeDeleted) {
        const message = "The sandbox was destroyed; use includeDeleted to get it.";
        throw new HoldfastError("sandbox_not_found", { sandboxId: shown.sandbox.id, message });
      }
      const known: Shown = isDeleted ? { ...shown, status: "deleted" } : shown;
      return succeeded(sandboxShape(known, viewForRequest(request, context)));
    },
  );

  app.get(
    "/sandbox/status/:id",
    { schema: { params: InSandbox, querystring: WaitQuery } },
    async ({ params, query }, reply) => {
      const shown = await waited(params.id, query, callers.signal(reply.raw));
      return succeeded({ sandboxId: shown.sandbox.id, status: shown.status, ...exitCodeOf(shown) });
    },
  );

  app.delete("/sandbox/:id", { schema: { params: InSandbox } }, async ({ params }, reply) => {
    const options = { graceMs: 0, signal: callers.signal(reply.raw) };
    const { id, status } = await orMaybeDispatched(callers, engine.sandboxes.remove(params.id, options));
    if (status === "terminated") return { success: true };
    const message = "The sandbox is still being destroyed; this continues in the background.";
    throw new HoldfastError("deadline", { sandboxId: id, dispatched: "yes", message });
  });

  /** The response to a pause is the only one without `data`. */
  app.post(
    "/sandbox/:id/pause",
    { schema: { params: InSandbox }, config: { optionalBody: true } },
    async ({ params }, reply) => {
      const order = engine.sandboxes.standby(params.id, callers.signal(reply.raw));
      const { id, status, checkpoint } = await orMaybeDispatched(callers, order);
      return {
        success: true,
        sandboxId: id,
        status: STATUS[status],
        ...(checkpoint === null ? {} : { checkpointId: checkpoint.id }),
      };
    },
  );

  app.post(
    "/sandbox/:id/resume",
    { schema: { params: InSandbox }, config: { optionalBody: true } },
    async ({ params }, reply) => {
      const signal = callers.signal(reply.raw);
      const { id, status } = await engine.sandboxes.get(params.id);
      const order =
        status === "paused" ? engine.sandboxes.resume(id, signal) : engine.sandboxes.wake(id, signal);
      await orMaybeDispatched(callers, order);
      return { success: true };
    },
  );

  /**
   * The response contains only the environment variables that this request set. Variables that other callers set may be
   * secret.
   */
  app.patch(
    "/sandbox/env/:id",
    { schema: { params: InSandbox, body: EnvRequest } },
    async ({ params, body }) => {
      await engine.sandboxes.update(params.id, checkUpdate(body, "The environment is not valid"));
      const set = Object.entries(body.env).filter(([, value]) => value !== null);
      return succeeded({ env: Object.fromEntries(set) });
    },
  );
}

function createRoute(app: App, context: AdapterContext): void {
  const { engine, callers, lost, views } = context;

  app.post(
    "/sandbox",
    { schema: { body: SandboxRequest }, config: { optionalBody: true } },
    async (request, reply) => {
      const { body, owner } = request;
      const signal = callers.signal(reply.raw);
      const order = await lost.idFor(["create", owner, body], reply.raw, signal);
      const executionId = body.command && executionIdOf(stdinOrder(body) ?? order);
      const asked = sandboxRequest(body, { aliases: context.imageAliases, executionId });
      const idempotencyKey = `agentuity-${order}`;
      const options = { wait: true, owner, beyondHost: true, idempotencyKey, signal };
      const { sandbox } = await orMaybeDispatched(callers, engine.sandboxes.create(asked, options));
      const started = await orMaybeDispatched(callers, begun(request, sandbox.id, executionId, signal));
      const { status, preview } = await views.get(sandbox.id);
      const url = preview === null ? {} : { url: viewForRequest(request, context).portUrl(preview) };
      return reply.code(201).send(succeeded({ sandboxId: sandbox.id, status, ...url, ...started }));
    },
  );

  /**
   * Does the rest of a create request: exposes the port, writes the files and starts the command. If a step fails,
   * deletes the sandbox, because the caller got an error and cannot use it.
   */
  async function begun(
    request: FastifyRequest<{ Body: SandboxRequest }>,
    sandboxId: string,
    executionId: string | undefined,
    signal: AbortSignal,
  ) {
    const { command, files = [], stream, network } = request.body;
    try {
      if (network?.port) await exposePort(engine.previews, sandboxId, network.port);
      if (command === undefined || executionId === undefined) {
        await writeAll(engine.files, sandboxId, files, signal);
        return {};
      }
      const exec = await startCommand(context, sandboxId, {
        id: executionId,
        argv: command.exec,
        files: [...files, ...(command.files ?? [])],
        openStdin: stdinOrder(request.body) !== null,
        expectsReader: true,
        signal,
      });
      return { executionId: exec.id, ...linksFor(request, context.links, stream)(exec) };
    } catch (error) {
      // If the caller disconnected, the sandbox is kept: the client repeats a create after a lost response, and then
      // uses it.
      if (!signal.aborted) await discard(sandboxId, signal);
      throw error;
    }
  }

  async function discard(sandboxId: string, signal: AbortSignal): Promise<void> {
    try {
      await engine.sandboxes.remove(sandboxId, { graceMs: 0, waitMs: 0, signal });
    } catch (error) {
      context.log.warn({ sandbox: sandboxId, err: error }, "failed to delete a sandbox whose setup failed");
    }
  }
}

/** Returns the id suffix of the stdin stream that the sandbox's command reads; null if the command reads none. */
function stdinOrder({ stream, command }: SandboxRequest): string | null {
  const id = stream?.stdin;
  if (id === undefined || id === "ignore") return null;
  const order = command === undefined ? null : orderOfStdin(id);
  if (order !== null) return order;
  throw new HoldfastError("invalid_request", {
    message: "body/stream/stdin must be a stream created for this command.",
  });
}
