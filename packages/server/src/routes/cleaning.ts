import { AuditReport, HoldfastError, SweepReport } from "@holdfast/contract";
import type { FastifyReply } from "fastify";
import { whileHeard } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { Cleanup } from "../schemas.ts";
import { scrubbed } from "../scrubbed.ts";

const tags = ["operators"];

/**
 * Records compared with reality, and cleaning, by someone's order. Both are idempotent and go on when their caller
 * leaves; what they did is in the events as well.
 */
export function cleaningRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  /** Reports quote errors of the host: its paths are nobody's business here either. */
  const told = <Report>(report: Report): Report => scrubbed(report, scrub);
  const cleanUp = async (reply: FastifyReply, { dryRun = false }: Cleanup, emergency: boolean) =>
    told(await whileHeard(engine.cleanup({ dryRun, emergency }), callers.signal(reply.raw)));

  app.get(
    "/v1/audit",
    {
      schema: {
        operationId: "getAudit",
        summary: "The last audit.",
        description: "There is one once the server has started; 404 where that could not be made.",
        tags,
        response: { 200: AuditReport },
      },
      config: { errors: ["not_found"] },
    },
    async () => {
      const report = engine.lastAudit();
      if (report) return told(report);
      throw new HoldfastError("not_found", { message: "No audit was made yet; POST /v1/audit makes one." });
    },
  );

  app.post(
    "/v1/audit",
    {
      schema: {
        operationId: "audit",
        summary: "Compare records with reality now, both ways.",
        description:
          "What differs is dealt with as it always is: corrected at once, removed after its grace, or left with the reason. Callers at the same time share one audit.",
        tags,
        response: { 200: AuditReport },
      },
    },
    async (_request, reply) => told(await whileHeard(engine.audit(), callers.signal(reply.raw))),
  );

  app.post(
    "/v1/cleanup",
    {
      schema: {
        operationId: "cleanup",
        summary: "Clean now what the sweeps would clean in time.",
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
          "Put to standby what is idle, then clean, and delete every disposable sandbox that has no exec under way.",
        tags,
        body: Cleanup,
        response: { 200: SweepReport },
      },
      config: { optionalBody: true },
    },
    ({ body }, reply) => cleanUp(reply, body, true),
  );
}
