import { Type } from "@fastify/type-provider-typebox";
import { CreateCheckpoint } from "@holdfast/contract";
import { orMaybeDispatched } from "../../callers.ts";
import type { App } from "../../context.ts";
import { checker } from "../checked.ts";
import { notSupported } from "../refusals.ts";
import { InSandbox, type Parts, succeeded } from "./parts.ts";
import { checkpointShape } from "./shapes.ts";

const InCheckpoint = Type.Object({
  ...InSandbox.properties,
  checkpoint: Type.String({ minLength: 1, maxLength: 64 }),
});
const CheckpointRequest = Type.Object({ name: Type.String() });
const check = checker(CreateCheckpoint);

/** Copies of a sandbox, kept beside it. */
export function checkpointRoutes(app: App, { engine, callers }: Parts): void {
  app.post(
    "/sandbox/:id/checkpoint",
    { schema: { params: InSandbox, body: CheckpointRequest } },
    async ({ params, body }, reply) => {
      const asked = check({ name: body.name }, "The checkpoint that was asked for can't be had");
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
        "putting a sandbox back to a checkpoint",
        "A checkpoint begins a new sandbox: create({ snapshot: checkpoint id }).",
      );
    },
  );
}
