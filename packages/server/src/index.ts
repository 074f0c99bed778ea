export { type Config, defaultStateDir, readConfig } from "./config.ts";
export type { App, HttpParts } from "./context.ts";
export { buildHttp } from "./http.ts";
export { Metrics } from "./metrics.ts";
export { VERSION } from "./version.ts";
