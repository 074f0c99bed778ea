import { type CreatePreview, HoldfastError, type PreviewInfo } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { presented } from "@holdfast/server/adapter";
import type { FastifyReply } from "fastify";

/** The client creates its sessions as private previews of this port, with names that contain `SESSION_NAME`. */
export const SESSION_PORT = 443;
const SESSION_NAME = "session-";
/**
 * Prefix of the stored names of sessions. No other preview has a colon in its name, so no other preview looks like a
 * session.
 */
const STORED = "blaxel:";

export const isSessionRequest = (wanted: CreatePreview): wanted is CreatePreview & { name: string } =>
  wanted.port === SESSION_PORT && wanted.public !== true && (wanted.name?.includes(SESSION_NAME) ?? false);

export const storedName = (name: string): string => `${STORED}${name}`;
export const isSession = ({ name }: Pick<PreviewInfo, "name">): boolean => name.startsWith(STORED);
/** Returns the name under which the client knows the session. */
export const clientName = (preview: Pick<PreviewInfo, "name">): string =>
  isSession(preview) ? preview.name.slice(STORED.length) : preview.name;

/** Base path of a sandbox's data plane for callers with a session token instead of a key. */
export const SESSION_BASE = "/session";
export const sessionUrl = (base: string | null, { id }: Pick<PreviewInfo, "id">): string =>
  `${base ?? ""}${SESSION_BASE}/${id}`;

/**
 * Admits a request by the token of the session in its path, to the sandbox of that session. The token is checked with
 * every request: expired and revoked tokens, and tokens of other sessions or ports, are refused. Revoking a token
 * closes the connections it admitted.
 */
export function admitSessions(app: App, { engine, tokenPlaces }: RouteContext): void {
  app.addHook("onRoute", (route) => {
    route.config = { ...route.config, public: true };
  });
  app.addHook("onRequest", async (request, reply) => {
    const params = request.params as { name: string };
    const session = engine.previews.byId(params.name);
    const { tokens } = presented(request.raw.url ?? "", request.raw.headers, tokenPlaces);
    // A caller without a token gets the same error whether or not the session exists.
    if (tokens.length === 0)
      throw new HoldfastError("unauthorized", { message: "A session needs its token." });
    const grant = session !== null && isSession(session) ? admitted(tokens, session) : null;
    if (grant === null) throw new HoldfastError("preview_denied");
    params.name = grant.sandboxId;
    cutWith(grant.signal, reply);
  });

  function admitted(tokens: readonly string[], session: PreviewInfo) {
    for (const token of tokens) {
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
