/**
 * The interface for adapters: packages that serve the unmodified clients of other platforms. An adapter registers
 * routes on the server and may use everything exported here. The server's core knows no adapter by name; the daemon
 * lists them.
 */
export type { Adapter } from "./http/adapter.ts";
export { Callers, orMaybeDispatched } from "./http/callers.ts";
export type { App, ImageAliases, RouteContext } from "./http/context.ts";
export { gunzipBody } from "./http/gunzip.ts";
export { acceptJson } from "./http/json-body.ts";
export { first, publicOrigin } from "./http/public-origin.ts";
export { readChunks, readWhole } from "./http/request-body.ts";
export { CONTEXT_LINES_MAX, MAX_LIMIT } from "./http/schemas.ts";
export { scrubJson } from "./http/scrub-json.ts";
export { Forwarder } from "./port-proxy/api-forwarder.ts";
export { presented } from "./port-proxy/credentials.ts";
export { checkPreviewHeaders } from "./port-proxy/preview-headers.ts";
export { buildPreviewUrls } from "./port-proxy/preview-urls.ts";
export type { Dialect } from "./ports/dialect.ts";
export type { WireError } from "./ports/wire-error.ts";
export { acceptAnyBody } from "./routes/files.ts";
export { sendArchive } from "./streams/archive-sender.ts";
export { sendFile } from "./streams/file-sender.ts";
export { sendAll } from "./streams/stream.ts";
export { readSandboxStory } from "./telemetry/sandbox-story.ts";
