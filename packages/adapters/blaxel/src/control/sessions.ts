import { type CreatePreview, HoldfastError, type PreviewInfo } from "@holdfast/contract";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../../context.ts";
import { presented } from "../../ports/credentials.ts";

/** What the client makes its sessions as: private previews of this port, with this in their names. */
export const SESSION_PORT = 443;
const SESSION_NAME = "session-";
/** No name of a preview has a colon, unless this file gave it. */
const STORED = "blaxel:";

export const isSessionRequest = (wanted: CreatePreview): wanted is CreatePreview & { name: string } =>
  wanted.port === SESSION_PORT && wanted.public !== true && (wanted.name?.includes(SESSION_NAME) ?? false);

export const storedName = (name: string): string => `${STORED}${name}`;
export const isSession = ({ name }: Pick<PreviewInfo, "name">): boolean => name.startsWith(STORED);
/** As whoever made it calls it. */
export const toldName = (preview: Pick<PreviewInfo, "name">): string =>
  isSession(preview) ? preview.name.slice(STORED.length) : preview.name;

/** Below this, the data plane of one sandbox, for who has a session's token instead of a key. */
export const SESSION_BASE = "/session";
export const sessionUrl = (base: string | null, { id }: Pick<PreviewInfo, "id">): string =>
  `${base ?? ""}${SESSION_BASE}/${id}`;

/**
 * Lets a request in by the token of the session that its path names, into the sandbox of that session. The token is looked at
 * with every request: one that is over, was taken back, or is another session's or a port's opens nothing. What came in by
 * one that is taken back is cut.
 */
export function admitSessions(app: App, { engine }: RouteContext): void {
  app.addHook("onRoute", (route) => {
    route.config = { ...route.config, public: true };
  });
  app.addHook("onRequest", async (request, reply) => {
    const params = request.params as { name: string };
    const session = engine.previews.byId(params.name);
    const grant = session !== null && isSession(session) ? admitted(request, session) : null;
    if (grant === null) throw new HoldfastError("preview_denied");
    params.name = grant.sandboxId;
    cutWith(grant.signal, reply);
  });

  function admitted({ raw }: FastifyRequest, session: PreviewInfo) {
    for (const token of presented(raw.url ?? "", raw.headers).tokens) {
      const grant = grantOf(token);
      if (grant?.previewId === session.id) return grant;
    }
    return null;
  }

  function grantOf(token: string) {
    try {
      return engine.previews.admit(token);
    } catch (error) {
      if (error instanceof HoldfastError && error.code === "preview_denied") return null;
      throw error;
    }
  }
}

function cutWith(signal: AbortSignal, { raw }: FastifyReply): void {
  const cut = () => raw.destroy();
  signal.addEventListener("abort", cut, { once: true });
  raw.once("close", () => signal.removeEventListener("abort", cut));
}
