import { type Static, Type } from "@fastify/type-provider-typebox";
import { HoldfastError, UpdateSandbox } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import { orMaybeDispatched } from "../../callers.ts";
import type { App } from "../../context.ts";
import { checker } from "../checked.ts";
import { executionIdOf, orderOfStdin } from "./exec-ids.ts";
import { takeFilesIn, writeAll } from "./files-in.ts";
import { exposePort } from "./open-port.ts";
import { InSandbox, OrgQuery, type Parts, succeeded } from "./parts.ts";
import { SandboxRequest, sandboxRequest } from "./sandbox-request.ts";
import { exitCodeOf, type Shown, STATUS, sandboxShape } from "./shapes.ts";
import { startCommand } from "./start-command.ts";
import { linksFor, toldTo } from "./told.ts";

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

/** Sandboxes from their beginning to their end. */
export function sandboxRoutes(app: App, parts: Parts): void {
  const { engine, callers, numbers, views } = parts;

  app.register(async (scope) => {
    takeFilesIn(scope as App, parts);
    createRoute(scope as App, parts);
  });

  /** The sandbox, once it is what is waited for, or as it is when the wait is over. */
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
        const message = "The sandbox was destroyed; ask for it with includeDeleted.";
        throw new HoldfastError("sandbox_not_found", { sandboxId: shown.sandbox.id, message });
      }
      const known: Shown = isDeleted ? { ...shown, status: "deleted" } : shown;
      return succeeded(sandboxShape(known, toldTo(request, parts)));
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
    const message = "The sandbox is still being destroyed; that goes on by itself.";
    throw new HoldfastError("deadline", { sandboxId: id, dispatched: "yes", message });
  });

  /** The one answer without `data`. */
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

  /** What others have set is nobody's to read: it is told what this call has set. */
  app.patch(
    "/sandbox/env/:id",
    { schema: { params: InSandbox, body: EnvRequest } },
    async ({ params, body }) => {
      await engine.sandboxes.update(params.id, checkUpdate(body, "The environment can't be had"));
      const set = Object.entries(body.env).filter(([, value]) => value !== null);
      return succeeded({ env: Object.fromEntries(set) });
    },
  );
}

function createRoute(app: App, parts: Parts): void {
  const { engine, callers, lost, views } = parts;

  app.post(
    "/sandbox",
    { schema: { body: SandboxRequest }, config: { optionalBody: true } },
    async (request, reply) => {
      const { body, owner } = request;
      const signal = callers.signal(reply.raw);
      const order = await lost.idFor(["create", owner, body], reply.raw, signal);
      const executionId = body.command && executionIdOf(stdinOrder(body) ?? order);
      const asked = sandboxRequest(body, { aliases: parts.imageAliases, executionId });
      const options = { wait: true, owner, idempotencyKey: `agentuity-${order}`, signal };
      const { sandbox } = await orMaybeDispatched(callers, engine.sandboxes.create(asked, options));
      const started = await orMaybeDispatched(callers, begun(request, sandbox.id, executionId, signal));
      const { status, preview } = await views.get(sandbox.id);
      const url = preview === null ? {} : { url: toldTo(request, parts).portUrl(preview) };
      return reply.code(201).send(succeeded({ sandboxId: sandbox.id, status, ...url, ...started }));
    },
  );

  /** What a new sandbox begins with. One that can't begin is of no use to who asked for it, and is not left behind. */
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
      const exec = await startCommand(parts, sandboxId, {
        id: executionId,
        argv: command.exec,
        files: [...files, ...(command.files ?? [])],
        openStdin: stdinOrder(request.body) !== null,
        signal,
      });
      return { executionId: exec.id, ...linksFor(request, parts.links, stream)(exec) };
    } catch (error) {
      // Whoever left may come back for it: the client repeats a create whose answer it did not get.
      if (!signal.aborted) await discard(sandboxId, signal);
      throw error;
    }
  }

  async function discard(sandboxId: string, signal: AbortSignal): Promise<void> {
    try {
      await engine.sandboxes.remove(sandboxId, { graceMs: 0, waitMs: 0, signal });
    } catch (error) {
      parts.log.warn({ sandbox: sandboxId, err: error }, "a sandbox that could not begin was not deleted");
    }
  }
}

/** The order that a stream of stdin was made for is that of the command which reads it. */
function stdinOrder({ stream, command }: SandboxRequest): string | null {
  const id = stream?.stdin;
  if (id === undefined || id === "ignore") return null;
  const order = command === undefined ? null : orderOfStdin(id);
  if (order !== null) return order;
  throw new HoldfastError("invalid_request", {
    message: "body/stream/stdin must be a stream that was made here, for the command that comes with it.",
  });
}
