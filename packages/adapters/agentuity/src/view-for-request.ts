import { type Exec, OUTPUT_STREAMS, type OutputStream } from "@holdfast/contract";
import { buildPreviewUrls, publicOrigin } from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";
import { type AdapterContext, MOUNTED_AT } from "./adapter-context.ts";
import type { Streams } from "./executions/command-request.ts";
import type { Links, RequestView } from "./shapes.ts";

const ORG = "holdfast";

/**
 * Builds the parameters of a response from its request: URLs with the host name that the caller uses, and the
 * organization that the request names. Holdfast has one organization, which accepts any name.
 */
export function viewForRequest(request: FastifyRequest, { links, domain }: AdapterContext): RequestView {
  const site = publicOrigin(request.headers);
  const { orgId } = request.query as { orgId?: string };
  return {
    org: { id: orgId || ORG, name: ORG },
    links: linksFor(request, links),
    portUrl: (preview) => buildPreviewUrls(preview, { token: null, site, domain }).url,
  };
}

/**
 * Returns a function that builds the URLs of an execution's output streams. It leaves out the streams that the request
 * ignores.
 */
export function linksFor(
  request: FastifyRequest,
  links: AdapterContext["links"],
  streams: Streams = {},
): Links {
  const { protocol, host } = publicOrigin(request.headers);
  if (host === null) return () => ({});
  const isWanted = (stream: OutputStream) => streams[stream] !== "ignore";
  const urlOf = ({ id }: Exec, stream: OutputStream) =>
    `${protocol}://${host}${MOUNTED_AT}${links.pathOf(id, stream)}`;
  return (exec) =>
    Object.fromEntries(
      OUTPUT_STREAMS.filter(isWanted).map((stream) => [`${stream}StreamUrl`, urlOf(exec, stream)]),
    );
}
