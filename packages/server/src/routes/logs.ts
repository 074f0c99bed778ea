import { Type } from "@fastify/type-provider-typebox";
import {
  EXEC_ID_PATTERN,
  HoldfastError,
  isDriveId,
  isSandboxId,
  LOG_LINE_LEVELS,
  LogList,
  OneOf,
  SandboxStory,
} from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import type { App, RouteContext } from "../context.ts";
import { timeFilter } from "../filters.ts";
import { sandboxStory } from "../sandbox-story.ts";
import { Page, pageOf, SandboxRef, TimeQuery } from "../schemas.ts";
import { scrubbed } from "../scrubbed.ts";

export function logRoutes(app: App, context: RouteContext): void {
  const { engine, callers, scrub } = context;

  app.get(
    "/v1/logs",
    {
      schema: {
        operationId: "listLogs",
        summary: "The server's own log, newest first.",
        description:
          "All that is given must match. One answer looks through a bounded part of the log: it may have few lines, or none, and a `nextCursor` behind which there is more to look through.",
        tags: ["operators"],
        querystring: Type.Object({
          sandbox: Type.Optional(
            Type.String({ maxLength: 64, description: "id or name of a sandbox; of a deleted one its id" }),
          ),
          drive: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a drive" })),
          exec: Type.Optional(Type.String({ pattern: EXEC_ID_PATTERN })),
          request: Type.Optional(
            Type.String({ maxLength: 64, description: "id of a request, as in x-request-id and in errors" }),
          ),
          level: Type.Optional(OneOf(LOG_LINE_LEVELS, { description: "this one and those that are worse" })),
          text: Type.Optional(
            Type.String({ minLength: 1, maxLength: 256, description: "what the line says, in any case" }),
          ),
          ...TimeQuery,
          ...Page,
        }),
        response: { 200: LogList },
      },
      config: { errors: ["sandbox_not_found", "drive_not_found", "too_many_readers", "not_supported"] },
    },
    async ({ query }, reply) => {
      if (context.logs === undefined) throw new HoldfastError("not_supported");
      const signal = callers.signal(reply.raw);
      const question = {
        ...pageOf(query),
        sandboxId: query.sandbox === undefined ? undefined : await sandboxIdOf(engine, query.sandbox),
        driveId: query.drive === undefined ? undefined : await driveIdOf(engine, query.drive, signal),
        execId: query.exec,
        requestId: query.request,
        level: query.level,
        text: query.text,
        since: timeFilter("since", query.since),
        until: timeFilter("until", query.until),
      };
      return context.logs.find(question, scrub, signal);
    },
  );

  app.get(
    "/v1/sandboxes/:ref/logs",
    {
      schema: {
        operationId: "getSandboxLogs",
        summary: "What happened in the sandbox and what its commands said last, in the order of time.",
        description:
          "The end of its timeline and of the output of its newest execs. All output of an exec is at `/v1/execs/{id}/output`. Leaves a sleeping sandbox asleep.",
        tags: ["sandboxes"],
        params: SandboxRef,
        querystring: Type.Object({ limit: Page.limit }),
        response: { 200: SandboxStory },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup"] },
    },
    async ({ params, query }, reply) => {
      const { limit } = pageOf(query);
      const story = await sandboxStory(engine, params.ref, { limit }, callers.signal(reply.raw));
      // What a command wrote is its own: a path in it is none of the host's.
      const lines = story.lines.map((line) => (line.kind === "event" ? scrubbed(line, scrub) : line));
      return { ...story, lines };
    },
  );
}

/** Lines about a sandbox outlive its record. */
const sandboxIdOf = async (engine: EngineApi, ref: string): Promise<string> =>
  isSandboxId(ref) ? ref : (await engine.sandboxes.get(ref)).id;

/** So do those about a drive. */
async function driveIdOf(engine: EngineApi, ref: string, signal: AbortSignal): Promise<string> {
  return isDriveId(ref) ? ref : (await engine.drives.get(ref, signal)).id;
}
