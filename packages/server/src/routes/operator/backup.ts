/** The backup of the whole installation. It is restored offline, by 'holdfast restore'. */
import { Type } from "@fastify/type-provider-typebox";
import { Backup, CreateBackup, Drive, HoldfastError, Sandbox } from "@holdfast/contract";
import type { App, RouteContext } from "../../http/context.ts";
import { readChunks } from "../../http/request-body.ts";
import { DriveRef, SandboxRef } from "../../http/schemas.ts";
import { acceptAnyBody } from "../files.ts";

const tags = ["operators"];

export function backupRoutes(app: App, context: RouteContext): void {
  const { backups } = context;
  app.post(
    "/v1/backup",
    {
      schema: {
        operationId: "createBackup",
        summary: "Start a backup of the whole installation, to a directory on the server's machine.",
        description:
          "The server keeps serving. A running sandbox is frozen while its files are copied, together with the drives that it mounts. A sandbox in standby is copied with its memory. The call returns at once; GET /v1/backup shows the progress. One backup is taken at a time.",
        tags,
        body: CreateBackup,
        response: { 202: Backup },
      },
      config: { errors: ["backup_running", "not_supported"] },
    },
    async ({ body }, reply) => {
      if (backups === undefined) throw new HoldfastError("not_supported");
      return reply.code(202).send(backups.begin(body.directory));
    },
  );

  app.get(
    "/v1/backup",
    {
      schema: {
        operationId: "getBackup",
        summary: "Get the state of the last backup that this server started.",
        tags,
        response: { 200: Backup },
      },
      config: { errors: ["not_found"] },
    },
    async () => {
      const last = backups?.last() ?? null;
      if (last === null)
        throw new HoldfastError("not_found", { message: "This server has not started a backup." });
      return last;
    },
  );

  app.register(async (scope) => transferRoutes(scope as App, context));
}

const Named = Type.Object({
  name: Type.Optional(Type.String({ description: "name of the import; default: the exported name" })),
});
const FINDING = ["sandbox_not_found", "pending_cleanup", "sandbox_gone", "not_supported"] as const;

/** Export and import of single sandboxes and drives, each as one archive. */
function transferRoutes(app: App, { transfers, callers, numbers }: RouteContext): void {
  acceptAnyBody(app);
  const service = () => {
    if (transfers === undefined) throw new HoldfastError("not_supported");
    return transfers;
  };
  const archive = { content: { 200: { "application/x-tar": Type.String() } } };

  app.get(
    "/v1/sandboxes/:ref/export",
    {
      schema: {
        operationId: "exportSandbox",
        summary: "Export a sandbox as one archive: its files, its description and its image, without memory.",
        description:
          "A running sandbox is frozen while its files are copied. Drives are not part of the archive. The sandbox is not woken.",
        tags: ["sandboxes"],
        params: SandboxRef,
      },
      config: { ...archive, errors: [...FINDING, "disk_full"] },
    },
    async ({ params }, reply) => {
      const stream = await service().exportSandbox(params.ref, callers.signal(reply.raw));
      return reply.header("content-type", "application/x-tar").send(stream);
    },
  );

  app.post(
    "/v1/sandboxes/import",
    {
      schema: {
        operationId: "importSandbox",
        summary: "Create a sandbox from an exported archive. It is in standby until the first call.",
        tags: ["sandboxes"],
        querystring: Named,
        response: { 201: Sandbox },
      },
      config: { bytesIn: "an archive of a sandbox", errors: ["name_taken", "not_supported", "disk_full"] },
    },
    async ({ query, raw }, reply) => {
      const body = readChunks(raw, numbers.httpStallMs);
      return reply.code(201).send(await service().importSandbox(query.name, body, callers.signal(reply.raw)));
    },
  );

  app.get(
    "/v1/drives/:ref/export",
    {
      schema: {
        operationId: "exportDrive",
        summary:
          "Export a drive as one archive. Sandboxes that can write to it are frozen while it is copied.",
        tags: ["drives"],
        params: DriveRef,
      },
      config: { ...archive, errors: ["drive_not_found", "not_supported", "disk_full"] },
    },
    async ({ params }, reply) => {
      const stream = await service().exportDrive(params.ref, callers.signal(reply.raw));
      return reply.header("content-type", "application/x-tar").send(stream);
    },
  );

  app.post(
    "/v1/drives/import",
    {
      schema: {
        operationId: "importDrive",
        summary: "Create a drive from an exported archive.",
        tags: ["drives"],
        querystring: Named,
        response: { 201: Drive },
      },
      config: { bytesIn: "an archive of a drive", errors: ["drive_exists", "not_supported", "disk_full"] },
    },
    async ({ query, raw }, reply) => {
      const body = readChunks(raw, numbers.httpStallMs);
      return reply.code(201).send(await service().importDrive(query.name, body, callers.signal(reply.raw)));
    },
  );
}
