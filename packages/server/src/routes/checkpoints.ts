/**
 * Checkpoints are copies of a sandbox at one moment. A sandbox is forked from a checkpoint by the route that creates
 * sandboxes.
 */
import { Type } from "@fastify/type-provider-typebox";
import { Checkpoint, CheckpointList, CreateCheckpoint } from "@holdfast/contract";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { SandboxRef } from "../http/schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["checkpoints"];
const FINDING_ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] as const;
const CheckpointRef = Type.Object({
  ...SandboxRef.properties,
  checkpoint: Type.String({ minLength: 1, maxLength: 64, description: "id or name of a checkpoint" }),
});

export function checkpointRoutes(app: App, { engine, callers }: RouteContext): void {
  app.post(
    "/v1/sandboxes/:ref/checkpoints",
    {
      schema: {
        operationId: "createCheckpoint",
        summary:
          "Create a checkpoint of a sandbox. Returns when the checkpoint is stored and a new proof of the sandbox has been attempted.",
        description:
          "A checkpoint contains the files, and the memory if `standbyKind` is `memory`. The sandbox is frozen and calls into it are held during the copy; the sandbox keeps running whether or not the copy succeeds. Wakes a sandbox in standby. A started checkpoint continues if the caller disconnects; the list shows whether it was stored.",
        tags,
        params: SandboxRef,
        body: CreateCheckpoint,
        response: { 201: Checkpoint },
      },
      config: {
        optionalBody: true,
        errors: [
          ...SERVING_ERRORS,
          "checkpoint_exists",
          "sandbox_busy",
          "too_many_checkpoints",
          "checkpoint_failed",
          "disk_full",
        ],
      },
    },
    async ({ params, body }, reply) => {
      const order = engine.checkpoints.create(params.ref, body, callers.signal(reply.raw));
      return reply.code(201).send(await orMaybeDispatched(callers, order));
    },
  );

  app.get(
    "/v1/sandboxes/:ref/checkpoints",
    {
      schema: {
        operationId: "listCheckpoints",
        summary: "List the checkpoints of a sandbox, oldest first. Does not wake the sandbox.",
        tags,
        params: SandboxRef,
        response: { 200: CheckpointList },
      },
      config: { errors: FINDING_ERRORS },
    },
    ({ params }) => engine.checkpoints.list(params.ref),
  );

  app.delete(
    "/v1/sandboxes/:ref/checkpoints/:checkpoint",
    {
      schema: {
        operationId: "removeCheckpoint",
        summary: "Delete a checkpoint. Sandboxes forked from it have their own copy.",
        tags,
        params: CheckpointRef,
        response: { 204: Type.Null() },
      },
      config: { errors: [...FINDING_ERRORS, "checkpoint_not_found", "too_many_held", "checkpoint_failed"] },
    },
    async ({ params }, reply) => {
      const { ref, checkpoint } = params;
      const order = engine.checkpoints.remove(ref, checkpoint, callers.signal(reply.raw));
      await orMaybeDispatched(callers, order);
      return reply.code(204).send(null);
    },
  );
}
