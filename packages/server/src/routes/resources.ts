import { Type } from "@fastify/type-provider-typebox";
import { Diagnosis, NUMBERS, ResourceReport, UsageList } from "@holdfast/contract";
import type { App, RouteContext } from "../context.ts";
import { SandboxRef } from "../schemas.ts";
import { scrubbed } from "../scrubbed.ts";

const tags = ["sandboxes"];
const ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "deadline"] as const;

/** What sandboxes use, and what is the matter with them. All of it is seen from outside: nobody is woken or asked. */
export function resourceRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  app.get(
    "/v1/resources",
    {
      schema: {
        operationId: "listUsage",
        summary: "What every live sandbox uses, as last measured.",
        tags: ["operators"],
        response: { 200: UsageList },
      },
    },
    // Causes quote errors of the host: its paths are nobody's business.
    async () => scrubbed(engine.sandboxes.usage(), scrub),
  );

  app.get(
    "/v1/sandboxes/:ref/resources",
    {
      schema: {
        operationId: "getResources",
        summary: "What the sandbox uses: CPU, memory, I/O, disk, processes and what they wait for.",
        description: "Leaves a sleeping sandbox asleep. Names and command lines are the sandbox's own words.",
        tags,
        params: SandboxRef,
        response: { 200: ResourceReport },
      },
      config: { errors: ERRORS },
    },
    ({ params }, reply) => engine.sandboxes.resources(params.ref, callers.signal(reply.raw)),
  );

  app.get(
    "/v1/sandboxes/:ref/diagnosis",
    {
      schema: {
        operationId: "diagnose",
        summary: "What is the matter with the sandbox, and why we think so.",
        description:
          "Answers for any sandbox, also when nothing is wrong. It is looked at for `windowMs`, from outside: it is not woken, and need not answer.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          windowMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: NUMBERS.diagnosisWindowMaxMs,
              default: NUMBERS.diagnosisWindowMs,
              description: "how long it is looked at",
            }),
          ),
        }),
        response: { 200: Diagnosis },
      },
      config: { errors: ERRORS },
    },
    async ({ params, query }, reply) => {
      const { windowMs } = query;
      const signal = callers.signal(reply.raw);
      return scrubbed(await engine.sandboxes.diagnosis(params.ref, { windowMs }, signal), scrub);
    },
  );
}
