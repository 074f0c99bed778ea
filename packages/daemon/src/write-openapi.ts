/** Prints the OpenAPI document: `node packages/daemon/src/write-openapi.ts > docs/openapi.json`. */
import { NUMBERS } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import { buildHttp, Metrics, VERSION } from "@holdfast/server";
import { ADAPTERS } from "./adapters.ts";

/**
 * An engine that throws on any use. It is never used, because generating the document does not call the routes'
 * handlers.
 */
const uncalled = new Proxy({} as EngineApi, {
  get: (_, name) => {
    throw new Error(`generating the document must not call engine.${String(name)}`);
  },
});
const silence = () => {};
const quiet: Log = { debug: silence, info: silence, warn: silence, error: silence, child: () => quiet };

/** Generates the document that is committed to the repository, so that API changes show up in reviews. */
export async function generate(): Promise<string> {
  await using app = buildHttp({
    engine: uncalled,
    adapters: ADAPTERS,
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
