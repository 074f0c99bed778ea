import { Type } from "@fastify/type-provider-typebox";
import { Diagnosis, NUMBERS, ResourceReport, UsageList } from "@holdfast/contract";
import type { App, RouteContext } from "../http/context.ts";
import { SandboxRef } from "../http/schemas.ts";
import { scrubJson } from "../http/scrub-json.ts";

const tags = ["sandboxes"];
const ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "deadline"] as const;

/**
 * Resource usage and diagnosis. Both are measured from outside the sandboxes, so no sandbox is woken or has to respond.
 */
export function resourceRoutes(app: App, { engine, callers, scrub }: RouteContext): void {
  app.get(
    "/v1/resources",
    {
      schema: {
        operationId: "listUsage",
        summary: "List the resource usage of all live sandboxes, as last measured.",
        tags: ["operators"],
        response: { 200: UsageList },
      },
    },
    // The reported causes quote error messages of the host, which can contain host paths, so these paths are removed.
    async () => scrubJson(engine.sandboxes.usage(), scrub),
  );

  app.get(
    "/v1/sandboxes/:ref/resources",
    {
      schema: {
        operationId: "getResources",
        summary:
          "Get the resource usage of a sandbox: CPU, memory, I/O, disk, processes and what they wait for.",
        description:
          "Does not wake the sandbox. Process names and command lines come from the sandbox and are not trusted.",
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
        summary: "Diagnose a sandbox: what is wrong, with the evidence.",
        description:
          "Works for any sandbox, healthy or not. The sandbox is observed from outside for `windowMs`; it is not woken and does not have to respond.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          windowMs: Type.Optional(
            Type.Integer({
              minimum: 0,
              maximum: NUMBERS.diagnosisWindowMaxMs,
              default: NUMBERS.diagnosisWindowMs,
              description: "how long to observe the sandbox",
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
      return scrubJson(await engine.sandboxes.diagnosis(params.ref, { windowMs }, signal), scrub);
    },
  );
}
