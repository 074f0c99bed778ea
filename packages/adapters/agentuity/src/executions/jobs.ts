import { type Static, Type } from "@fastify/type-provider-typebox";
import { fieldsOf, refuseFields } from "@holdfast/adapter-shared";
import { type Exec, HoldfastError, isTerminal } from "@holdfast/contract";
import type { App } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, succeeded } from "../adapter-context.ts";
import { jobShape } from "../shapes.ts";
import { linksFor } from "../view-for-request.ts";
import { Command, refuseStreams, Streams } from "./command-request.ts";
import { isJob, jobIdOf } from "./exec-ids.ts";
import { execsOf } from "./exec-list.ts";
import { LimitQuery, limitOf } from "./executions.ts";
import { startCommand } from "./start-command.ts";

const JobRequest = Type.Object({ command: Command, streams: Type.Optional(Streams) });
const KNOWN = fieldsOf(JobRequest);
const InJob = Type.Object({ ...InSandbox.properties, job: Type.String({ minLength: 1, maxLength: 64 }) });
const StopQuery = Type.Object({ force: Type.Optional(Type.Boolean()) });

/**
 * How long a stop waits for the job to end. If the job has not ended by then, the response contains its current state.
 */
const STOP_WAIT_MS = 10_000;

/**
 * Jobs are background commands. A running job lets its sandbox go to standby, and continues after the wake. Only if the
 * sandbox's standby keeps files without memory does a job keep the sandbox awake, because standby would end the job.
 */
export function jobRoutes(app: App, context: AdapterContext): void {
  const { engine, callers, lost } = context;

  app.post(
    "/sandbox/sandboxes/:id/jobs",
    { schema: { params: InSandbox, body: JobRequest } },
    async (request, reply) => {
      const { params, body, owner } = request;
      const signal = callers.signal(reply.raw);
      refuseFields("job", body, KNOWN);
      refuseStreams("job.streams", body.streams);
      const { id, standbyKind } = await engine.sandboxes.get(params.id);
      const order = await lost.idFor(["job", owner, id, body], reply.raw, signal);
      const job = await startCommand(context, id, {
        id: jobIdOf(order),
        argv: body.command,
        files: [],
        // If the standby of this sandbox keeps only files and no memory, it would end the job, so the job prevents
        // standby.
        keepAwake: standbyKind === "files",
        // Usually no client follows the output of a job from the start.
        expectsReader: false,
        signal,
      });
      return reply.code(201).send(succeeded(jobShape(job, linksFor(request, context.links, body.streams))));
    },
  );

  app.get(
    "/sandbox/sandboxes/:id/jobs",
    { schema: { params: InSandbox, querystring: LimitQuery } },
    async (request) => {
      const { params, query } = request;
      const jobs = await execsOf(engine.execs, params.id, { limit: limitOf(query), isWanted: isJob });
      const links = linksFor(request, context.links);
      return succeeded({ jobs: jobs.map((job) => jobShape(job, links)) });
    },
  );

  async function found({ id, job }: Static<typeof InJob>): Promise<Exec> {
    const { id: sandboxId } = await engine.sandboxes.get(id);
    const message = `There is no job ${JSON.stringify(job)} in the sandbox.`;
    const missing = new HoldfastError("exec_not_found", { sandboxId, message });
    if (!isJob(job)) throw missing;
    const exec = await engine.execs.get(job);
    if (exec.sandboxId !== sandboxId) throw missing;
    return exec;
  }

  app.get("/sandbox/sandboxes/:id/jobs/:job", { schema: { params: InJob } }, async (request) =>
    succeeded(jobShape(await found(request.params), linksFor(request, context.links))),
  );

  app.delete(
    "/sandbox/sandboxes/:id/jobs/:job",
    { schema: { params: InJob, querystring: StopQuery } },
    async (request, reply) => {
      const signal = callers.signal(reply.raw);
      const job = await found(request.params);
      const links = linksFor(request, context.links);
      if (!isTerminal(job.status)) await stop(job, request.query.force ?? false, signal);
      return succeeded(jobShape(await engine.execs.get(job.id), links));
    },
  );

  async function stop({ id, status }: Exec, force: boolean, signal: AbortSignal): Promise<void> {
    if (force || status === "queued") {
      await engine.execs.cancel(id, signal);
      return;
    }
    await engine.execs.signal(id, "SIGTERM", signal);
    await engine.execs.wait(id, { waitMs: STOP_WAIT_MS, signal });
  }
}
