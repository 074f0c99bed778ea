/** Copies of a sandbox at one moment, kept beside it. What begins with one is a sandbox like any other: see its create. */
import { Type } from "@fastify/type-provider-typebox";
import { Checkpoint, CheckpointList, CreateCheckpoint } from "@holdfast/contract";
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { SandboxRef } from "../schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["checkpoints"];
const FINDING_ERRORS = ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] as const;
const CheckpointRef = Type.Object({
  ...SandboxRef.properties,
  checkpoint: Type.String({ minLength: 1, maxLength: 64, description: "its id or name" }),
});

export function checkpointRoutes(app: App, { engine, callers }: RouteContext): void {
  app.post(
    "/v1/sandboxes/:ref/checkpoints",
    {
      schema: {
        operationId: "createCheckpoint",
        summary:
          "Keep a copy of a sandbox as it is now; answers when the copy is kept and the sandbox has been asked for a new proof.",
        description:
          "Its files, and its memory where `standbyKind` is `memory`. The sandbox is frozen for the copy, calls into it are held meanwhile, and it goes on whatever becomes of the copy. One that sleeps is woken for it. What is begun goes on when its caller leaves: the list tells whether it is kept.",
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
        summary: "The checkpoints of a sandbox, oldest first. Wakes nobody.",
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
        summary: "Remove a checkpoint. Sandboxes that began with it have a copy of their own.",
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
