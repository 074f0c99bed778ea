/**
 * Snapshots are checkpoints, and a fork is a sandbox created from a checkpoint. On the platform, snapshots belong to
 * the account and outlive their source. In Holdfast, a checkpoint belongs to its sandbox and is deleted with it.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { checker, isAnything, type Known, notSupported, refuseFields } from "@holdfast/adapter-shared";
import {
  type Checkpoint,
  CreateCheckpoint,
  CreateSandbox,
  HoldfastError,
  Nullable,
  randomText,
  type Sandbox,
} from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";
import { InSandbox } from "../process/process.ts";
import { snapshotShape } from "../shapes.ts";
import { fromLabels, toLabels } from "./labels.ts";
import { everything, ListQuery, listed } from "./listing.ts";
import { publicOrigin } from "./public-origin.ts";
import { environmentOf } from "./sandbox-request.ts";

const Ref = Type.String({ minLength: 1, maxLength: 64 });
const InSnapshot = Type.Object({ ...InSandbox.properties, snapshotId: Ref });
const SnapshotId = Type.Object({ snapshotName: Ref });
const SnapshotName = Type.Optional(Nullable(Type.String()));
const SnapshotRequest = Type.Object({ name: SnapshotName });
const SnapshotOf = Type.Object({
  name: SnapshotName,
  source: Type.Object({ name: Ref, kind: Type.Optional(Nullable(Type.String())) }),
});
const ForkRequest = Type.Object({
  targetName: Type.String({ minLength: 1 }),
  targetType: Type.Optional(Type.String()),
  snapshotId: Type.Optional(Nullable(Ref)),
  envs: Type.Optional(Nullable(Type.Array(Type.Object({ name: Type.String(), value: Type.Unknown() })))),
});
type ForkRequest = Static<typeof ForkRequest>;

const FORK: Known = {
  targetName: isAnything,
  targetType: (value) => value === "sandbox",
  snapshotId: isAnything,
  envs: isAnything,
};
const NO_APPLICATIONS = "Holdfast has no applications; a fork is a sandbox, and a preview exposes its port.";
const WHY = Object.fromEntries(
  ["targetType", "port", "traffic", "customDomain", "prefix"].map((field) => [field, NO_APPLICATIONS]),
);

const checkSnapshot = checker(CreateCheckpoint);
const checkFork = checker(CreateSandbox);
const SUFFIX_LENGTH = 8;
/**
 * Time limit for deleting the temporary checkpoint of a fork, which happens even if the fork fails or the caller
 * disconnects.
 */
const TIDY_MS = 30_000;

interface Found {
  sandbox: Sandbox;
  checkpoint: Checkpoint;
}

export function controlSnapshotRoutes(app: App, context: RouteContext): void {
  const { engine, callers, log } = context;

  async function* everySnapshot(): AsyncGenerator<Found, void, undefined> {
    for (const sandbox of await everything((page) => engine.sandboxes.list(page))) {
      const { items } = await engine.checkpoints.list(sandbox.id);
      for (const checkpoint of items) yield { sandbox, checkpoint };
    }
  }

  async function inAccount(id: string): Promise<Found> {
    for await (const found of everySnapshot()) if (found.checkpoint.id === id) return found;
    throw notFound(id);
  }

  async function inSandbox(ref: string, which: string): Promise<Found> {
    const sandbox = await engine.sandboxes.get(ref);
    const { items } = await engine.checkpoints.list(sandbox.id);
    const checkpoint = items.find(({ id, name }) => id === which || name === which);
    if (checkpoint === undefined) throw notFound(which);
    return { sandbox, checkpoint };
  }

  async function take(ref: string, name: string | null | undefined, signal: AbortSignal): Promise<Found> {
    const sandbox = await engine.sandboxes.get(ref);
    const wanted = checkSnapshot(name ? { name } : {}, "The snapshot request is not valid");
    const taking = engine.checkpoints.create(sandbox.id, wanted, signal);
    return { sandbox, checkpoint: await orMaybeDispatched(callers, taking) };
  }

  async function remove({ sandbox, checkpoint }: Found, request: FastifyRequest, signal: AbortSignal) {
    await orMaybeDispatched(callers, engine.checkpoints.remove(sandbox.id, checkpoint.id, signal));
    return snapshotShape(sandbox, checkpoint, publicOrigin(request));
  }

  async function fork({ sandbox, checkpoint }: Found, request: FastifyRequest, signal: AbortSignal) {
    const body = request.body as ForkRequest;
    const wanted = checkFork(
      {
        name: body.targetName,
        fromCheckpoint: checkpoint.id,
        env: environmentOf(body.envs ?? []),
        // The fork gets no external id, because an external id identifies exactly one sandbox.
        labels: toLabels({ ...fromLabels(sandbox.labels), externalId: undefined }),
      },
      "The fork request is not valid",
    );
    const options = { wait: true, owner: request.owner, signal };
    const { sandbox: made } = await orMaybeDispatched(callers, engine.sandboxes.create(wanted, options));
    return { name: made.name, snapshotId: checkpoint.id, type: "sandbox" };
  }

  /** Creates a fork of the current state: takes a temporary checkpoint, forks it, and then deletes it. */
  async function forkLive(ref: string, request: FastifyRequest, signal: AbortSignal) {
    const copy = await take(ref, `fork-${randomText(SUFFIX_LENGTH)}`, signal);
    try {
      const { snapshotId: _gone, ...made } = await fork(copy, request, signal);
      return made;
    } finally {
      const { sandbox, checkpoint } = copy;
      const tidying = engine.checkpoints.remove(sandbox.id, checkpoint.id, AbortSignal.timeout(TIDY_MS));
      await tidying.catch((error: unknown) => {
        log.warn(
          { sandbox: sandbox.id, checkpoint: checkpoint.id, err: error },
          "failed to delete the temporary checkpoint of a fork",
        );
      });
    }
  }

  app.get("/snapshots", { schema: { querystring: ListQuery } }, async (request) => {
    const site = publicOrigin(request);
    const all: ReturnType<typeof snapshotShape>[] = [];
    for await (const { sandbox, checkpoint } of everySnapshot())
      all.push(snapshotShape(sandbox, checkpoint, site));
    return listed(request, all, ({ id, name, createdAt }) => ({ id, name, createdAt, texts: [name] }));
  });

  app.post("/snapshots", { schema: { body: SnapshotOf } }, async (request, reply) => {
    const { name, source } = request.body;
    if (source.kind && source.kind !== "sandbox")
      throw notSupported("source.kind", "Only sandboxes have snapshots.");
    const { sandbox, checkpoint } = await take(source.name, name, callers.signal(reply.raw));
    return snapshotShape(sandbox, checkpoint, publicOrigin(request));
  });

  app.get("/snapshots/:snapshotName", { schema: { params: SnapshotId } }, async (request) => {
    const { sandbox, checkpoint } = await inAccount(request.params.snapshotName);
    return snapshotShape(sandbox, checkpoint, publicOrigin(request));
  });

  app.delete("/snapshots/:snapshotName", { schema: { params: SnapshotId } }, async (request, reply) =>
    remove(await inAccount(request.params.snapshotName), request, callers.signal(reply.raw)),
  );

  app.post(
    "/snapshots/:snapshotName/fork",
    { schema: { params: SnapshotId, body: ForkRequest } },
    async (request, reply) => {
      refuseFields("fork", request.body, FORK, WHY);
      return fork(await inAccount(request.params.snapshotName), request, callers.signal(reply.raw));
    },
  );

  app.get("/sandboxes/:name/snapshots", { schema: { params: InSandbox } }, async (request) => {
    const sandbox = await engine.sandboxes.get(request.params.name);
    const { items } = await engine.checkpoints.list(sandbox.id);
    return items.map((checkpoint) => snapshotShape(sandbox, checkpoint, publicOrigin(request)));
  });

  app.post(
    "/sandboxes/:name/snapshots",
    { schema: { params: InSandbox, body: SnapshotRequest }, config: { optionalBody: true } },
    async (request, reply) => {
      const { params, body } = request;
      const { sandbox, checkpoint } = await take(params.name, body.name, callers.signal(reply.raw));
      return snapshotShape(sandbox, checkpoint, publicOrigin(request));
    },
  );

  app.delete(
    "/sandboxes/:name/snapshots/:snapshotId",
    { schema: { params: InSnapshot } },
    async (request, reply) => {
      const { name, snapshotId } = request.params;
      return remove(await inSandbox(name, snapshotId), request, callers.signal(reply.raw));
    },
  );

  app.post(
    "/sandboxes/:name/snapshots/:snapshotId/restore",
    { schema: { params: InSnapshot } },
    async ({ params }) => {
      await inSandbox(params.name, params.snapshotId);
      throw notSupported(
        "restoring a sandbox to a snapshot",
        "Holdfast does not roll a sandbox back; fork the snapshot into a new sandbox.",
      );
    },
  );

  app.post(
    "/sandboxes/:name/fork",
    { schema: { params: InSandbox, body: ForkRequest } },
    async (request, reply) => {
      const { params, body } = request;
      refuseFields("fork", body, FORK, WHY);
      const signal = callers.signal(reply.raw);
      if (!body.snapshotId) return forkLive(params.name, request, signal);
      return fork(await inSandbox(params.name, body.snapshotId), request, signal);
    },
  );
}

const notFound = (which: string): HoldfastError =>
  new HoldfastError("checkpoint_not_found", {
    message: `There is no snapshot ${JSON.stringify(which.slice(0, 80))}.`,
  });
