import type { PreviewInfo } from "@holdfast/contract";
import type { PublicOrigin } from "../http/public-origin.ts";
import { TOKEN_PARAMETER } from "./credentials.ts";
import { PREVIEW_PATH } from "./target.ts";

/** Default domain for port hosts: browsers and most resolvers map every name below `localhost` to this machine. */
export const DEFAULT_DOMAIN = "localhost";

/**
 * Returns the URLs of a preview: one with the preview's own host name, and one below a path of this server. If a token
 * is given, the URLs contain it and grant access on the first visit; the URLs of a public preview need no token.
 */
export function buildPreviewUrls(
  preview: Pick<PreviewInfo, "id" | "sandboxId" | "port">,
  { token, site, domain }: { token: string | null; site: PublicOrigin; domain: string },
): { url: string; pathUrl: string } {
  const { protocol, host } = site;
  const port = /:\d+$/.exec(host ?? "")?.[0] ?? "";
  const own = `${protocol}://${preview.port}-${preview.sandboxId}.${domain}${port}/`;
  return {
    url: token === null ? own : `${own}?${TOKEN_PARAMETER}=${token}`,
    pathUrl: `${host === null ? "" : `${protocol}://${host}`}${PREVIEW_PATH}${token ?? preview.id}/`,
  };
}
