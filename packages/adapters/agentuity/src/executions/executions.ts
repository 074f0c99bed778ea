import { type Static, Type } from "@fastify/type-provider-typebox";
import { fieldsOf, refuseFields } from "@holdfast/adapter-shared";
import { type Exec, isHoldfastError, isTerminal, type Status } from "@holdfast/contract";
import type { App } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, succeeded } from "../adapter-context.ts";
import { durationIn } from "../durations.ts";
import { AGENTUITY_EXECUTE } from "../errors.ts";
import { FilesIn, takeFilesIn } from "../files/files-in.ts";
import { executeShape, executionShape } from "../shapes.ts";
import { linksFor } from "../view-for-request.ts";
import { Command, refuseStreams, Streams } from "./command-request.ts";
import { executionIdOf, isJob } from "./exec-ids.ts";
import { execsOf } from "./exec-list.ts";
import { startCommand } from "./start-command.ts";

const ExecuteRequest = Type.Object({
  command: Command,
  files: Type.Optional(FilesIn),
  timeout: Type.Optional(Type.String()),
  stream: Type.Optional(Streams),
});
const KNOWN = fieldsOf(ExecuteRequest);

const InExecution = Type.Object({ execution: Type.String({ minLength: 1, maxLength: 64 }) });
const WaitQuery = Type.Object({ wait: Type.Optional(Type.String()) });
export const LimitQuery = Type.Object({ limit: Type.Optional(Type.Integer({ minimum: 1 })) });
const LISTED = 100;
const LISTED_MAX = 1_000;
export const limitOf = ({ limit = LISTED }: Static<typeof LimitQuery>): number => Math.min(limit, LISTED_MAX);

/** Statuses of a sandbox that must be woken before a call can use it. */
const ASLEEP: readonly Status[] = ["standby", "waking"];

/** Routes that start a command and return its state and outcome. */
export function executionRoutes(app: App, context: AdapterContext): void {
  const { engine, callers, numbers, lost, views } = context;

  app.register(async (scope) => {
    takeFilesIn(scope as App, context);
    executeRoute(scope as App);
  });

  function executeRoute(scope: App): void {
    scope.post(
      "/sandbox/:id/execute",
      { schema: { params: InSandbox, body: ExecuteRequest }, config: { dialect: AGENTUITY_EXECUTE } },
      async (request, reply) => {
        const { params, body, owner } = request;
        const signal = callers.signal(reply.raw);
        refuseFields("execute", body, KNOWN);
        refuseStreams("execute.stream", body.stream);
        const { id, status } = await engine.sandboxes.get(params.id);
        const order = await lost.idFor(["execute", owner, id, body], reply.raw, signal);
        const exec = await startCommand(context, id, {
          id: executionIdOf(order),
          argv: body.command,
          files: body.files ?? [],
          timeoutMs: body.timeout ? durationIn("body/timeout", body.timeout) : undefined,
          expectsReader: true,
          signal,
        });
        const data = executeShape(exec, linksFor(request, context.links, body.stream));
        return { ...succeeded(data), ...(ASLEEP.includes(status) ? { autoResumed: true } : {}) };
      },
    );
  }

  /**
   * Waits until the command has ended or the wait has timed out. After a timeout the client sends the request again.
   */
  app.get(
    "/sandbox/execution/:execution",
    { schema: { params: InExecution, querystring: WaitQuery } },
    async (request, reply) => {
      const { params, query } = request;
      const asked = query.wait ? durationIn("query/wait", query.wait) : 0;
      const waitMs = Math.min(asked, numbers.execWaitMaxMs);
      const signal = callers.signal(reply.raw);
      if (waitMs > 0) await engine.execs.wait(params.execution, { waitMs, signal });
      const exec = await engine.execs.get(params.execution);
      if (isTerminal(exec.status)) await readSandboxAfterEnd(exec);
      return succeeded(executionShape(exec, linksFor(request, context.links)));
    },
  );

  /**
   * Reads the sandbox after its command has ended. This read deletes a one-shot sandbox, because the client has now
   * learned that the command has ended. An error is only logged: the sandbox may already be deleted.
   */
  async function readSandboxAfterEnd({ sandboxId }: Exec): Promise<void> {
    try {
      await views.get(sandboxId);
    } catch (error) {
      if (!isHoldfastError(error)) throw error;
      context.log.debug({ sandbox: sandboxId, err: error }, "failed to read the sandbox of an execution");
    }
  }

  app.get(
    "/sandbox/sandboxes/:id/executions",
    { schema: { params: InSandbox, querystring: LimitQuery } },
    async (request) => {
      const { params, query } = request;
      const wanted = { limit: limitOf(query), isWanted: (id: string) => !isJob(id) };
      const execs = await execsOf(engine.execs, params.id, wanted);
      const links = linksFor(request, context.links);
      return succeeded({ executions: execs.map((exec) => executionShape(exec, links)) });
    },
  );
}
