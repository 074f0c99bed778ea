import { type Static, Type } from "@fastify/type-provider-typebox";
import { type Exec, HoldfastError, isTerminal } from "@holdfast/contract";
import type { App } from "../../context.ts";
import { fieldsOf, refuseFields } from "../refusals.ts";
import { isJob, jobIdOf } from "./exec-ids.ts";
import { execsOf } from "./exec-list.ts";
import { LimitQuery, limitOf } from "./executions.ts";
import { InSandbox, type Parts, succeeded } from "./parts.ts";
import { Command, refuseStreams, Streams } from "./sandbox-request.ts";
import { jobShape } from "./shapes.ts";
import { startCommand } from "./start-command.ts";
import { linksFor } from "./told.ts";

const JobRequest = Type.Object({ command: Command, streams: Type.Optional(Streams) });
const KNOWN = fieldsOf(JobRequest);
const InJob = Type.Object({ ...InSandbox.properties, job: Type.String({ minLength: 1, maxLength: 64 }) });
const StopQuery = Type.Object({ force: Type.Optional(Type.Boolean()) });

/** How long one that was asked to end is waited for; it is answered as it is then. */
const STOP_WAIT_MS = 10_000;

/** Commands that run beside everything else: a sandbox sleeps with them, and they go on when it wakes. */
export function jobRoutes(app: App, parts: Parts): void {
  const { engine, callers, lost } = parts;

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
      const job = await startCommand(parts, id, {
        id: jobIdOf(order),
        argv: body.command,
        files: [],
        // Where sleep keeps files only, it is the end of whatever does not keep the sandbox from it.
        keepAwake: standbyKind === "files",
        signal,
      });
      return reply.code(201).send(succeeded(jobShape(job, linksFor(request, parts.links, body.streams))));
    },
  );

  app.get(
    "/sandbox/sandboxes/:id/jobs",
    { schema: { params: InSandbox, querystring: LimitQuery } },
    async (request) => {
      const { params, query } = request;
      const jobs = await execsOf(engine.execs, params.id, { limit: limitOf(query), isWanted: isJob });
      const links = linksFor(request, parts.links);
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
    succeeded(jobShape(await found(request.params), linksFor(request, parts.links))),
  );

  app.delete(
    "/sandbox/sandboxes/:id/jobs/:job",
    { schema: { params: InJob, querystring: StopQuery } },
    async (request, reply) => {
      const signal = callers.signal(reply.raw);
      const job = await found(request.params);
      const links = linksFor(request, parts.links);
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
