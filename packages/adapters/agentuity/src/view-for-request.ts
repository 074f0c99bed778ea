import { type Exec, OUTPUT_STREAMS, type OutputStream } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import { previewUrls } from "../../ports/preview-urls.ts";
import { siteOf } from "../../site.ts";
import { MOUNTED_AT, type Parts } from "./parts.ts";
import type { Streams } from "./sandbox-request.ts";
import type { Links, Told } from "./shapes.ts";

const ORG = "holdfast";

/** Whoever asks, with the URLs as this caller reaches them. There is one organization, under whatever name. */
export function toldTo(request: FastifyRequest, { links, domain }: Parts): Told {
  const site = siteOf(request.headers);
  const { orgId } = request.query as { orgId?: string };
  return {
    org: { id: orgId || ORG, name: ORG },
    links: linksFor(request, links),
    portUrl: (preview) => previewUrls(preview, { token: null, site, domain }).url,
  };
}

/** The URLs of an execution's output; none of a stream that is to be ignored. */
export function linksFor(request: FastifyRequest, links: Parts["links"], streams: Streams = {}): Links {
  const { protocol, host } = siteOf(request.headers);
  if (host === null) return () => ({});
  const isWanted = (stream: OutputStream) => streams[stream] !== "ignore";
  const urlOf = ({ id }: Exec, stream: OutputStream) =>
    `${protocol}://${host}${MOUNTED_AT}${links.pathOf(id, stream)}`;
  return (exec) =>
    Object.fromEntries(
      OUTPUT_STREAMS.filter(isWanted).map((stream) => [`${stream}StreamUrl`, urlOf(exec, stream)]),
    );
}
