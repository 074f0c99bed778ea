import type { PreviewInfo } from "@holdfast/contract";
import type { Site } from "../site.ts";
import { TOKEN_PARAMETER } from "./credentials.ts";
import { PREVIEW_PATH } from "./target.ts";

/** Where hosts of ports lie unless it is said: every name below it is this machine, to browsers and to most resolvers. */
export const DEFAULT_DOMAIN = "localhost";

/**
 * Where a preview is found: on a host of its own, and below a path of this server. The token, where one is given, opens it at the
 * first visit; a public one needs none.
 */
export function previewUrls(
  preview: Pick<PreviewInfo, "id" | "sandboxId" | "port">,
  { token, site, domain }: { token: string | null; site: Site; domain: string },
): { url: string; pathUrl: string } {
  const { protocol, host } = site;
  const port = /:\d+$/.exec(host ?? "")?.[0] ?? "";
  const own = `${protocol}://${preview.port}-${preview.sandboxId}.${domain}${port}/`;
  return {
    url: token === null ? own : `${own}?${TOKEN_PARAMETER}=${token}`,
    pathUrl: `${host === null ? "" : `${protocol}://${host}`}${PREVIEW_PATH}${token ?? preview.id}/`,
  };
}
