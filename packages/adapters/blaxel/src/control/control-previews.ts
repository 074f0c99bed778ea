/**
 * Previews and their tokens. The client creates a session with the same call as a preview: a preview gives access to a
 * port, a session gives access to the sandbox's API. Sessions are stored as previews, under names that no other call
 * can create, so that the URL of a preview can never be used as that of a session.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { checker, isAnything, type Known, notSupported, refuseFields } from "@holdfast/adapter-shared";
import {
  CreatePreview,
  CreatePreviewToken,
  HoldfastError,
  Nullable,
  type PreviewId,
  type PreviewInfo,
  type PreviewTokenInfo,
  type Sandbox,
} from "@holdfast/contract";
import type { PreviewHeaders } from "@holdfast/engine";
import type { App, RouteContext } from "@holdfast/server/adapter";
import {
  buildPreviewUrls,
  checkPreviewHeaders,
  publicOrigin as readPublicOrigin,
} from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";
import { InSandbox } from "../process/process.ts";
import { ageMs, untilMs } from "./expiry.ts";
import { publicOrigin } from "./public-origin.ts";
import { clientName, isSession, isSessionRequest, SESSION_PORT, sessionUrl, storedName } from "./sessions.ts";

const Ref = Type.String({ minLength: 1, maxLength: 64 });
const InPreview = Type.Object({ ...InSandbox.properties, previewName: Ref });
const InToken = Type.Object({ ...InPreview.properties, tokenName: Ref });
const Maybe = <Schema extends Parameters<typeof Nullable>[0]>(schema: Schema) =>
  Type.Optional(Nullable(schema));

const Headers = Type.Record(Type.String(), Type.String());
const PreviewRequest = Type.Object({
  metadata: Type.Optional(Type.Object({ name: Maybe(Type.String()), displayName: Maybe(Type.String()) })),
  spec: Type.Object({
    port: Maybe(Type.Integer()),
    public: Maybe(Type.Boolean()),
    expires: Maybe(Type.String()),
    ttl: Maybe(Type.String()),
    requestHeaders: Maybe(Headers),
    responseHeaders: Maybe(Headers),
  }),
});
type PreviewRequest = Static<typeof PreviewRequest>;
const TokenRequest = Type.Object({
  spec: Type.Optional(Type.Object({ expiresAt: Maybe(Type.String()) })),
});

const SPEC: Known = {
  port: isAnything,
  public: isAnything,
  expires: isAnything,
  ttl: isAnything,
  url: isAnything,
  region: isAnything,
  requestHeaders: isAnything,
  responseHeaders: isAnything,
};
const OWN_URLS = "The server assigns preview URLs; HOLDFAST_PREVIEW_DOMAIN sets their domain.";
const WHY = {
  prefixUrl: OWN_URLS,
  customDomain: OWN_URLS,
};

const checkPreview = checker(CreatePreview);
const checkToken = checker(CreatePreviewToken);

export function controlPreviewRoutes(app: App, context: RouteContext): void {
  const { engine } = context;

  function shown(preview: PreviewInfo, { name: resourceName }: Sandbox, request: FastifyRequest) {
    const { workspace, base } = publicOrigin(request);
    const { port, createdAt, expiresAt } = preview;
    const site = readPublicOrigin(request.headers);
    const urls = buildPreviewUrls(preview, { token: null, site, domain: context.domain });
    // With the default domain, the URL with a path is returned. Browsers resolve host names below that domain, but
    // other programs may not, so they could not use the URL with a host name.
    const portUrl = context.previewDomain === undefined ? urls.pathUrl : urls.url;
    const headers = engine.previews.headersOf(preview.id as PreviewId);
    return {
      metadata: {
        name: clientName(preview),
        ...{ resourceName, resourceType: "sandbox", workspace, createdAt, updatedAt: createdAt },
      },
      spec: {
        port,
        public: preview.public,
        url: isSession(preview) ? sessionUrl(base, preview) : portUrl.replace(/\/$/, ""),
        ...(expiresAt === null ? {} : { expires: expiresAt }),
        requestHeaders: headers.request,
        responseHeaders: headers.response,
      },
      status: "DEPLOYED",
      events: [],
      holdfast: { id: preview.id, ...(isSession(preview) ? {} : urls) },
    };
  }

  /**
   * Returns the previews that have not expired. An expired preview stays stored until another one takes its name, but
   * no longer grants access.
   */
  async function live(sandbox: Sandbox): Promise<PreviewInfo[]> {
    const isLive = ({ expiresAt }: PreviewInfo) => expiresAt === null || Date.parse(expiresAt) > Date.now();
    return (await engine.previews.list(sandbox.id)).filter(isLive);
  }

  async function find(ref: string, name: string): Promise<{ sandbox: Sandbox; preview: PreviewInfo }> {
    const sandbox = await engine.sandboxes.get(ref);
    const all = await live(sandbox);
    // The name is first looked up as that of a session, which is stored with a prefix, and then unchanged. Holdfast's
    // own API can create a preview that is named like a session and is stored without that prefix.
    const found =
      all.find((preview) => preview.name === storedName(name)) ??
      all.find((preview) => preview.name === name);
    if (found !== undefined) return { sandbox, preview: found };
    const message = `The sandbox has no preview ${JSON.stringify(name)}.`;
    throw new HoldfastError("preview_not_found", { sandboxId: sandbox.id, message });
  }

  app.post(
    "/sandboxes/:name/previews",
    { schema: { params: InSandbox, body: PreviewRequest } },
    async (request) => {
      const { params, body } = request;
      refuseUnknown(body);
      const sandbox = await engine.sandboxes.get(params.name);
      const name = body.metadata?.name || undefined;
      const wanted = checkPreview(
        {
          port: body.spec.port,
          public: body.spec.public ?? false,
          ...(name === undefined ? {} : { name }),
          ...durationOf(body, Date.now()),
        },
        "The preview request is not valid",
      );
      if (name !== undefined && (await isTaken(sandbox, name))) throw taken(sandbox, name);
      const stored = isSessionRequest(wanted) ? { ...wanted, name: storedName(wanted.name) } : wanted;
      const headers = headersIn(body.spec);
      if (isSessionRequest(wanted)) refuseHeaders(headers);
      const { preview } = await engine.previews.create(sandbox.id, stored, { token: false, headers });
      return shown(preview, sandbox, request);
    },
  );

  const isTaken = async (sandbox: Sandbox, name: string) =>
    (await live(sandbox)).some((preview) => clientName(preview) === name);

  app.get("/sandboxes/:name/previews", { schema: { params: InSandbox } }, async (request) => {
    const sandbox = await engine.sandboxes.get(request.params.name);
    return (await live(sandbox)).map((preview) => shown(preview, sandbox, request));
  });

  app.get("/sandboxes/:name/previews/:previewName", { schema: { params: InPreview } }, async (request) => {
    const { sandbox, preview } = await find(request.params.name, request.params.previewName);
    return shown(preview, sandbox, request);
  });

  /**
   * Updates a preview. The client sends the complete preview as it has read it, with its changes. A field that is
   * absent from the request stays unchanged.
   */
  app.put(
    "/sandboxes/:name/previews/:previewName",
    { schema: { params: InPreview, body: PreviewRequest } },
    async (request) => {
      const { params, body } = request;
      refuseUnknown(body);
      const { sandbox, preview } = await find(params.name, params.previewName);
      const { port = preview.port, public: open = preview.public, expires, ttl } = body.spec;
      if (isSession(preview) && (port !== SESSION_PORT || open))
        throw notSupported(
          "changing a session's port, or making a session public",
          "Create a preview of the port.",
        );
      const isKept = !ttl && (expires === undefined || expires === preview.expiresAt);
      const wanted = checkPreview(
        { port, public: open, ...(isKept ? {} : durationOf(body, Date.now())) },
        "The preview update is not valid",
      );
      const changes = { port: wanted.port, public: wanted.public };
      const before = engine.previews.headersOf(preview.id as PreviewId);
      if (isSession(preview)) refuseHeaders(headersIn(body.spec));
      const changed = await engine.previews.update(sandbox.id, preview.id, {
        ...changes,
        ...(isKept ? {} : { ttlMs: wanted.ttlMs ?? null }),
        ...(setsHeaders(body.spec) ? { headers: headersIn(body.spec, before) } : {}),
      });
      return shown(changed, sandbox, request);
    },
  );

  app.delete("/sandboxes/:name/previews/:previewName", { schema: { params: InPreview } }, async (request) => {
    const { sandbox, preview } = await find(request.params.name, request.params.previewName);
    await engine.previews.remove(sandbox.id, preview.id);
    return { ...shown(preview, sandbox, request), status: "TERMINATED" };
  });

  const TOKENS = "/sandboxes/:name/previews/:previewName/tokens";

  async function tokenShape(
    { sandbox, preview }: { sandbox: Sandbox; preview: PreviewInfo },
    { id, expiresAt, expired }: PreviewTokenInfo,
    request: FastifyRequest,
  ) {
    const { workspace } = publicOrigin(request);
    return {
      metadata: {
        ...{ name: id, previewName: clientName(preview), resourceName: sandbox.name },
        ...{ resourceType: "sandbox", workspace },
      },
      spec: { token: await engine.previews.token(sandbox.id, preview.id, id), expiresAt, expired },
    };
  }

  app.post(
    TOKENS,
    { schema: { params: InPreview, body: TokenRequest }, config: { optionalBody: true } },
    async (request) => {
      const { params, body } = request;
      const found = await find(params.name, params.previewName);
      const { expiresAt } = body.spec ?? {};
      const asked = expiresAt ? { ttlMs: untilMs("body/spec/expiresAt", expiresAt, Date.now()) } : {};
      const wanted = checkToken(asked, "The token request is not valid");
      const { info } = await engine.previews.createToken(found.sandbox.id, found.preview.id, wanted);
      return tokenShape(found, info, request);
    },
  );

  app.get(TOKENS, { schema: { params: InPreview } }, async (request) => {
    const found = await find(request.params.name, request.params.previewName);
    const infos = await engine.previews.tokens(found.sandbox.id, found.preview.id);
    return Promise.all(infos.map((info) => tokenShape(found, info, request)));
  });

  app.delete(`${TOKENS}/:tokenName`, { schema: { params: InToken } }, async ({ params }) => {
    const { sandbox, preview } = await find(params.name, params.previewName);
    const name = await tokenNameOf(sandbox.id, preview.id, params.tokenName);
    await engine.previews.removeToken(sandbox.id, preview.id, name);
    return { message: "The token was revoked.", name };
  });

  /** Returns the name of a token, which the caller identifies by its name or by its secret value. */
  async function tokenNameOf(sandboxId: string, previewId: string, given: string): Promise<string> {
    for (const { id } of await engine.previews.tokens(sandboxId, previewId))
      if ((await engine.previews.token(sandboxId, previewId, id)) === given) return id;
    return given;
  }
}

function refuseUnknown({ metadata, spec }: PreviewRequest): void {
  refuseFields("spec", spec, SPEC, WHY);
  const { name, displayName } = metadata ?? {};
  if (displayName && displayName !== name)
    throw notSupported("metadata.displayName", "A preview has only a name.");
}

/**
 * Refuses header rules for a session. A session gives access to the sandbox's API, where the server alone determines
 * the requests and responses.
 */
function refuseHeaders({ request, response }: PreviewHeaders): void {
  for (const [field, headers] of Object.entries({ requestHeaders: request, responseHeaders: response }))
    if (Object.keys(headers).length > 0) throw notSupported(`spec.${field} of a session`, "Leave it out.");
}

const setsHeaders = ({ requestHeaders, responseHeaders }: PreviewRequest["spec"]): boolean =>
  requestHeaders !== undefined || responseHeaders !== undefined;

/**
 * Returns the header rules of a preview request. If the request has no rules for a direction (request or response), the
 * existing rules for it are kept.
 */
function headersIn(
  { requestHeaders, responseHeaders }: PreviewRequest["spec"],
  before: PreviewHeaders = { request: {}, response: {} },
): PreviewHeaders {
  return checkPreviewHeaders(
    "body/spec",
    requestHeaders === undefined ? before.request : requestHeaders,
    responseHeaders === undefined ? before.response : responseHeaders,
  );
}

/**
 * Returns how long the preview is valid. If the request gives both a duration and a date, the earlier end applies.
 * Returns no duration if the request gives neither.
 */
function durationOf({ spec: { ttl, expires } }: PreviewRequest, now: number): { ttlMs?: number } {
  const limits = expires ? [untilMs("body/spec/expires", expires, now)] : [];
  if (ttl) limits.push(ageMs("body/spec/ttl", ttl));
  return limits.length === 0 ? {} : { ttlMs: Math.min(...limits) };
}

const taken = ({ id: sandboxId }: Sandbox, name: string): HoldfastError =>
  new HoldfastError("preview_exists", { sandboxId, message: `The sandbox already has a preview ${name}.` });
