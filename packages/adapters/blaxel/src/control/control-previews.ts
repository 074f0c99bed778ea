/**
 * Previews and their tokens. A session is a preview too, as the client makes it, but what it opens is the sandbox's own API
 * and no port: it is kept under a name that no other API can give, so that nobody's link to a port ever becomes one.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  CreatePreview,
  CreatePreviewToken,
  HoldfastError,
  Nullable,
  type PreviewInfo,
  type PreviewTokenInfo,
  type Sandbox,
} from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import type { App, RouteContext } from "../../context.ts";
import { previewUrls } from "../../ports/preview-urls.ts";
import { siteOf as whereAsked } from "../../site.ts";
import { checker } from "../checked.ts";
import { isAnything, type Known, notSupported, refuseFields } from "../refusals.ts";
import { ageMs, untilMs } from "./expiry.ts";
import { InSandbox } from "./process.ts";
import { isSession, isSessionRequest, SESSION_PORT, sessionUrl, storedName, toldName } from "./sessions.ts";
import { siteOf } from "./site.ts";

const Ref = Type.String({ minLength: 1, maxLength: 64 });
const InPreview = Type.Object({ ...InSandbox.properties, previewName: Ref });
const InToken = Type.Object({ ...InPreview.properties, tokenName: Ref });
const Maybe = <Schema extends Parameters<typeof Nullable>[0]>(schema: Schema) =>
  Type.Optional(Nullable(schema));

const PreviewRequest = Type.Object({
  metadata: Type.Optional(Type.Object({ name: Maybe(Type.String()), displayName: Maybe(Type.String()) })),
  spec: Type.Object({
    port: Maybe(Type.Integer()),
    public: Maybe(Type.Boolean()),
    expires: Maybe(Type.String()),
    ttl: Maybe(Type.String()),
  }),
});
type PreviewRequest = Static<typeof PreviewRequest>;
const TokenRequest = Type.Object({
  spec: Type.Optional(Type.Object({ expiresAt: Maybe(Type.String()) })),
});

const isEmpty = (value: unknown) =>
  typeof value === "object" && value !== null && Object.keys(value).length === 0;
const SPEC: Known = {
  port: isAnything,
  public: isAnything,
  expires: isAnything,
  ttl: isAnything,
  url: isAnything,
  region: isAnything,
  requestHeaders: isEmpty,
  responseHeaders: isEmpty,
};
const OWN_URLS = "Previews have URLs of the server's own; HOLDFAST_PREVIEW_DOMAIN chooses their domain.";
const WHY = {
  prefixUrl: OWN_URLS,
  customDomain: OWN_URLS,
  requestHeaders: "A request comes as it is sent; the program that listens can set its own.",
  responseHeaders: "An answer comes as it is given; the program that listens can set its own.",
};

const checkPreview = checker(CreatePreview);
const checkToken = checker(CreatePreviewToken);

export function controlPreviewRoutes(app: App, context: RouteContext): void {
  const { engine } = context;

  function shown(preview: PreviewInfo, { name: resourceName }: Sandbox, request: FastifyRequest) {
    const { workspace, base } = siteOf(request);
    const { port, createdAt, expiresAt } = preview;
    const site = whereAsked(request.headers);
    const urls = previewUrls(preview, { token: null, site, domain: context.domain });
    // Names below the default domain are known to browsers, and not to every program.
    const portUrl = context.previewDomain === undefined ? urls.pathUrl : urls.url;
    return {
      metadata: {
        name: toldName(preview),
        ...{ resourceName, resourceType: "sandbox", workspace, createdAt, updatedAt: createdAt },
      },
      spec: {
        port,
        public: preview.public,
        url: isSession(preview) ? sessionUrl(base, preview) : portUrl.replace(/\/$/, ""),
        ...(expiresAt === null ? {} : { expires: expiresAt }),
      },
      status: "DEPLOYED",
      events: [],
      holdfast: { id: preview.id, ...(isSession(preview) ? {} : urls) },
    };
  }

  /** Those that are over are kept until another takes their place, and open nothing. */
  async function live(sandbox: Sandbox): Promise<PreviewInfo[]> {
    const isLive = ({ expiresAt }: PreviewInfo) => expiresAt === null || Date.parse(expiresAt) > Date.now();
    return (await engine.previews.list(sandbox.id)).filter(isLive);
  }

  async function find(ref: string, name: string): Promise<{ sandbox: Sandbox; preview: PreviewInfo }> {
    const sandbox = await engine.sandboxes.get(ref);
    const found = (await live(sandbox)).find((preview) => toldName(preview) === name);
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
        "The preview that was asked for can't be had",
      );
      if (name !== undefined && (await isTaken(sandbox, name))) throw taken(sandbox, name);
      const stored = isSessionRequest(wanted) ? { ...wanted, name: storedName(wanted.name) } : wanted;
      const { preview } = await engine.previews.create(sandbox.id, stored, { token: false });
      return shown(preview, sandbox, request);
    },
  );

  const isTaken = async (sandbox: Sandbox, name: string) =>
    (await live(sandbox)).some((preview) => toldName(preview) === name);

  app.get("/sandboxes/:name/previews", { schema: { params: InSandbox } }, async (request) => {
    const sandbox = await engine.sandboxes.get(request.params.name);
    return (await live(sandbox)).map((preview) => shown(preview, sandbox, request));
  });

  app.get("/sandboxes/:name/previews/:previewName", { schema: { params: InPreview } }, async (request) => {
    const { sandbox, preview } = await find(request.params.name, request.params.previewName);
    return shown(preview, sandbox, request);
  });

  /** What the client read of it, with a part exchanged: what it does not name stays. */
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
          "changing a session's port, or opening it to everybody",
          "Make a preview of a port.",
        );
      const isKept = !ttl && (expires === undefined || expires === preview.expiresAt);
      const wanted = checkPreview(
        { port, public: open, ...(isKept ? {} : durationOf(body, Date.now())) },
        "The preview can't be that",
      );
      const changes = { port: wanted.port, public: wanted.public };
      const changed = await engine.previews.update(sandbox.id, preview.id, {
        ...changes,
        ...(isKept ? {} : { ttlMs: wanted.ttlMs ?? null }),
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
    const { workspace } = siteOf(request);
    return {
      metadata: {
        ...{ name: id, previewName: toldName(preview), resourceName: sandbox.name },
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
      const wanted = checkToken(asked, "The token that was asked for can't be had");
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
    await engine.previews.removeToken(sandbox.id, preview.id, params.tokenName);
    return { message: "The token opens nothing any more.", name: params.tokenName };
  });
}

function refuseUnknown({ metadata, spec }: PreviewRequest): void {
  refuseFields("spec", spec, SPEC, WHY);
  const { name, displayName } = metadata ?? {};
  if (displayName && displayName !== name)
    throw notSupported("metadata.displayName", "A preview has a name only.");
}

/** Whichever ends it first. */
function durationOf({ spec: { ttl, expires } }: PreviewRequest, now: number): { ttlMs?: number } {
  const limits = expires ? [untilMs("body/spec/expires", expires, now)] : [];
  if (ttl) limits.push(ageMs("body/spec/ttl", ttl));
  return limits.length === 0 ? {} : { ttlMs: Math.min(...limits) };
}

const taken = ({ id: sandboxId }: Sandbox, name: string): HoldfastError =>
  new HoldfastError("preview_exists", { sandboxId, message: `The sandbox has a preview ${name}.` });
