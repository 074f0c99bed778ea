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
import type { App, RouteContext } from "../../http/context.ts";
import { timeFilter } from "../../http/filters.ts";
import { Page, pageOf, SandboxRef, TimeQuery } from "../../http/schemas.ts";
import { scrubJson } from "../../http/scrub-json.ts";
import { readSandboxStory } from "../../telemetry/sandbox-story.ts";

export function logRoutes(app: App, context: RouteContext): void {
  const { engine, callers, scrub } = context;

  app.get(
    "/v1/logs",
    {
      schema: {
        operationId: "listLogs",
        summary: "Read the server's log, newest first.",
        description:
          "All given filters must match. Each request searches a bounded part of the log: a page may contain few or no lines and still have a `nextCursor`; continue from it to search the rest.",
        tags: ["operators"],
        querystring: Type.Object({
          sandbox: Type.Optional(
            Type.String({
              maxLength: 64,
              description: "id or name of a sandbox; for a deleted sandbox, its id",
            }),
          ),
          drive: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a drive" })),
          exec: Type.Optional(Type.String({ pattern: EXEC_ID_PATTERN })),
          request: Type.Optional(
            Type.String({ maxLength: 64, description: "request id, as in x-request-id and in errors" }),
          ),
          level: Type.Optional(OneOf(LOG_LINE_LEVELS, { description: "minimum level" })),
          text: Type.Optional(
            Type.String({
              minLength: 1,
              maxLength: 256,
              description: "text in the line's message, case-insensitive",
            }),
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
        summary: "Read the latest events and command output of a sandbox, in time order.",
        description:
          "Combines the end of the timeline with the end of the newest execs' output. The whole output of an exec is at `/v1/execs/{id}/output`. Does not wake the sandbox.",
        tags: ["sandboxes"],
        params: SandboxRef,
        querystring: Type.Object({ limit: Page.limit }),
        response: { 200: SandboxStory },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup"] },
    },
    async ({ params, query }, reply) => {
      const { limit } = pageOf(query);
      const story = await readSandboxStory(engine, params.ref, { limit }, callers.signal(reply.raw));
      // Host paths are removed from events only. Command output is returned unchanged, because the paths in it are
      // those of the sandbox.
      const lines = story.lines.map((line) => (line.kind === "event" ? scrubJson(line, scrub) : line));
      return { ...story, lines };
    },
  );
}

/**
 * Resolves a sandbox to its id. Log lines are kept longer than the sandbox's record, so an unknown id is used
 * unchanged.
 */
const sandboxIdOf = async (engine: EngineApi, ref: string): Promise<string> =>
  isSandboxId(ref) ? ref : (await engine.sandboxes.get(ref)).id;

/**
 * Resolves a drive to its id. Log lines are kept longer than the drive's record, so an unknown id is used unchanged.
 */
async function driveIdOf(engine: EngineApi, ref: string, signal: AbortSignal): Promise<string> {
  return isDriveId(ref) ? ref : (await engine.drives.get(ref, signal)).id;
}
