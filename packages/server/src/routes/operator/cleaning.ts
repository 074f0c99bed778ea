import { AuditReport, HoldfastError, SweepReport } from "@holdfast/contract";
import { raced } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { App, RouteContext } from "../../http/context.ts";
import { Cleanup } from "../../http/schemas.ts";
import { scrubJson } from "../../http/scrub-json.ts";

const tags = ["operators"];

/**
 * Audit and cleanup on request. Both are idempotent and continue if the caller disconnects. Their actions are also
 * stored as events.
 */
export function cleaningRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  /** A report quotes error messages of the host, which can contain host paths, so these paths are removed. */
  const withoutHostPaths = <Report>(report: Report): Report => scrubJson(report, scrub);
  const cleanUp = async (reply: FastifyReply, { dryRun = false }: Cleanup, emergency: boolean) =>
    withoutHostPaths(await raced(engine.cleanup({ dryRun, emergency }), callers.signal(reply.raw)));

  app.get(
    "/v1/audit",
    {
      schema: {
        operationId: "getAudit",
        summary: "Get the report of the last audit.",
        description: "The server runs an audit at start; 404 if that audit failed.",
        tags,
        response: { 200: AuditReport },
      },
      config: { errors: ["not_found"] },
    },
    async () => {
      const report = engine.lastAudit();
      if (report) return withoutHostPaths(report);
      throw new HoldfastError("not_found", {
        message: "No audit has completed yet; POST /v1/audit runs one.",
      });
    },
  );

  app.post(
    "/v1/audit",
    {
      schema: {
        operationId: "audit",
        summary: "Run an audit now: compare records with the host's actual state in both directions.",
        description:
          "Differences are handled as in the periodic audit: corrected at once, removed after a grace period, or left in place with the reason. Concurrent callers share one audit.",
        tags,
        response: { 200: AuditReport },
      },
    },
    async (_request, reply) => withoutHostPaths(await raced(engine.audit(), callers.signal(reply.raw))),
  );

  app.post(
    "/v1/cleanup",
    {
      schema: {
        operationId: "cleanup",
        summary: "Run the periodic cleanup now.",
        tags,
        body: Cleanup,
        response: { 200: SweepReport },
      },
      config: { optionalBody: true },
    },
    ({ body }, reply) => cleanUp(reply, body, false),
  );

  app.post(
    "/v1/cleanup/emergency",
    {
      schema: {
        operationId: "cleanupEmergency",
        summary:
          "Suspend idle sandboxes, run the cleanup, and delete every disposable sandbox that has no running exec.",
        tags,
        body: Cleanup,
        response: { 200: SweepReport },
      },
      config: { optionalBody: true },
    },
    ({ body }, reply) => cleanUp(reply, body, true),
  );
}
