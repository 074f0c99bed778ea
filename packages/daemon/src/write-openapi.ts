/** Prints the OpenAPI document: `node packages/server/src/openapi.ts > docs/openapi.json`. */
import { NUMBERS } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import { buildHttp } from "./http.ts";
import { Metrics } from "./metrics.ts";
import { VERSION } from "./version.ts";

/** Routes are only described here, never called. */
const uncalled = new Proxy({} as EngineApi, {
  get: (_, name) => {
    throw new Error(`the document was about to call engine.${String(name)}`);
  },
});
const silence = () => {};
const quiet: Log = { debug: silence, info: silence, warn: silence, error: silence, child: () => quiet };

/** The document as it is committed, so that a change of the API shows in its review. */
export async function generate(): Promise<string> {
  await using app = buildHttp({
    engine: uncalled,
    keys: { findKey: () => null },
    log: quiet,
    numbers: NUMBERS,
    version: VERSION,
    installation: "",
    metrics: new Metrics({ process: false }),
  });
  const { body } = await app.inject("/openapi.json");
  return `${JSON.stringify(JSON.parse(body), null, 2)}\n`;
}

if (import.meta.main) process.stdout.write(await generate());
