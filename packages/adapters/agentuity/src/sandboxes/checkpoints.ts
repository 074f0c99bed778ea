import { Type } from "@fastify/type-provider-typebox";
import { checker, notSupported } from "@holdfast/adapter-shared";
import { CreateCheckpoint } from "@holdfast/contract";
import type { App } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, succeeded } from "../adapter-context.ts";
import { checkpointShape } from "../shapes.ts";

const InCheckpoint = Type.Object({
  ...InSandbox.properties,
  checkpoint: Type.String({ minLength: 1, maxLength: 64 }),
});
const CheckpointRequest = Type.Object({ name: Type.String() });
const check = checker(CreateCheckpoint);

/** Checkpoints of a sandbox. */
export function checkpointRoutes(app: App, { engine, callers }: AdapterContext): void {
  app.post(
    "/sandbox/:id/checkpoint",
    { schema: { params: InSandbox, body: CheckpointRequest } },
    async ({ params, body }, reply) => {
      const asked = check({ name: body.name }, "The checkpoint request is not valid");
      const order = engine.checkpoints.create(params.id, asked, callers.signal(reply.raw));
      return reply.code(201).send(succeeded(checkpointShape(await orMaybeDispatched(callers, order))));
    },
  );

  app.get("/sandbox/checkpoints/:id", { schema: { params: InSandbox } }, async ({ params }) => {
    const { items } = await engine.checkpoints.list(params.id);
    return succeeded({ checkpoints: items.map(checkpointShape) });
  });

  app.delete(
    "/sandbox/:id/checkpoint/:checkpoint",
    { schema: { params: InCheckpoint } },
    async ({ params }, reply) => {
      const order = engine.checkpoints.remove(params.id, params.checkpoint, callers.signal(reply.raw));
      await orMaybeDispatched(callers, order);
      return { success: true };
    },
  );

  app.post(
    "/sandbox/:id/checkpoint/:checkpoint/restore",
    { schema: { params: InCheckpoint }, config: { optionalBody: true } },
    async ({ params }) => {
      await engine.sandboxes.get(params.id);
      throw notSupported(
        "restoring a sandbox to a checkpoint",
        "Create a new sandbox from the checkpoint: create({ snapshot: checkpoint id }).",
      );
    },
  );
}
