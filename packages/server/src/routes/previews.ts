import { Type } from "@fastify/type-provider-typebox";
import {
  CreatePreview,
  CreatePreviewToken,
  Preview,
  type PreviewInfo,
  PreviewList,
  PreviewToken,
  PreviewTokenList,
} from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import type { App, RouteContext } from "../http/context.ts";
import { publicOrigin } from "../http/public-origin.ts";
import { SandboxRef } from "../http/schemas.ts";
import { buildPreviewUrls } from "../port-proxy/preview-urls.ts";

const tags = ["ports"];
const PreviewRef = Type.Object({
  ...SandboxRef.properties,
  preview: Type.String({ minLength: 1, maxLength: 64, description: "name or id of a preview" }),
});
const TokenRef = Type.Object({
  ...PreviewRef.properties,
  token: Type.String({ minLength: 1, maxLength: 64, description: "id of a token" }),
});
const FINDING = ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] as const;

/** Previews: ports that can be reached without a key. None of these calls wakes a sandbox. */
export function previewRoutes(app: App, context: RouteContext): void {
  const { engine } = context;
  const urls = (request: FastifyRequest, preview: PreviewInfo, token: string | null) =>
    buildPreviewUrls(preview, { token, site: publicOrigin(request.headers), domain: context.domain });

  app.post(
    "/v1/sandboxes/:ref/previews",
    {
      schema: {
        operationId: "createPreview",
        summary: "Create a preview: a link that opens a port of a sandbox.",
        description:
          "The token in the response and in its URLs opens only this port, until the token expires or is revoked. The token is returned only once. A public preview needs no token.",
        tags,
        params: SandboxRef,
        body: CreatePreview,
        response: { 201: Preview },
      },
      config: {
        errors: [...FINDING, "sandbox_failed", "wrong_state", "preview_exists", "too_many_previews"],
      },
    },
    async (request, reply) => {
      const { preview, token } = await engine.previews.create(request.params.ref, request.body);
      const shown = { ...preview, ...urls(request, preview, token), ...(token === null ? {} : { token }) };
      return reply.code(201).send(shown);
    },
  );

  app.get(
    "/v1/sandboxes/:ref/previews",
    {
      schema: {
        operationId: "listPreviews",
        summary: "List the previews of a sandbox, oldest first.",
        tags,
        params: SandboxRef,
        response: { 200: PreviewList },
      },
      config: { errors: [...FINDING] },
    },
    async (request) => {
      const found = await engine.previews.list(request.params.ref);
      return { items: found.map((preview) => ({ ...preview, ...urls(request, preview, null) })) };
    },
  );

  app.get(
    "/v1/sandboxes/:ref/previews/:preview",
    {
      schema: {
        operationId: "getPreview",
        summary: "Get a preview, without its tokens.",
        tags,
        params: PreviewRef,
        response: { 200: Preview },
      },
      config: { errors: [...FINDING, "preview_not_found"] },
    },
    async (request) => {
      const preview = await engine.previews.get(request.params.ref, request.params.preview);
      return { ...preview, ...urls(request, preview, null) };
    },
  );

  app.delete(
    "/v1/sandboxes/:ref/previews/:preview",
    {
      schema: {
        operationId: "deletePreview",
        summary: "Delete a preview and close the connections it admitted.",
        tags,
        params: PreviewRef,
        response: { 204: Type.Null() },
      },
      config: { errors: [...FINDING, "preview_not_found"] },
    },
    async ({ params }, reply) => {
      await engine.previews.remove(params.ref, params.preview);
      return reply.code(204).send(null);
    },
  );

  app.post(
    "/v1/sandboxes/:ref/previews/:preview/tokens",
    {
      schema: {
        operationId: "createPreviewToken",
        summary: "Create another token for a preview.",
        tags,
        params: PreviewRef,
        body: CreatePreviewToken,
        response: { 201: PreviewToken },
      },
      config: { errors: [...FINDING, "preview_not_found", "too_many_previews"], optionalBody: true },
    },
    async (request, reply) => {
      const { ref, preview: name } = request.params;
      const { info, token } = await engine.previews.createToken(ref, name, request.body);
      const preview = await engine.previews.get(ref, name);
      return reply.code(201).send({ ...info, ...urls(request, preview, token), token });
    },
  );

  app.get(
    "/v1/sandboxes/:ref/previews/:preview/tokens",
    {
      schema: {
        operationId: "listPreviewTokens",
        summary: "List the tokens of a preview, without their secrets.",
        tags,
        params: PreviewRef,
        response: { 200: PreviewTokenList },
      },
      config: { errors: [...FINDING, "preview_not_found"] },
    },
    async ({ params }) => ({ items: await engine.previews.tokens(params.ref, params.preview) }),
  );

  app.delete(
    "/v1/sandboxes/:ref/previews/:preview/tokens/:token",
    {
      schema: {
        operationId: "deletePreviewToken",
        summary: "Revoke a token and close the connections it admitted.",
        tags,
        params: TokenRef,
        response: { 204: Type.Null() },
      },
      config: { errors: [...FINDING, "preview_not_found"] },
    },
    async ({ params }, reply) => {
      await engine.previews.removeToken(params.ref, params.preview, params.token);
      return reply.code(204).send(null);
    },
  );
}
