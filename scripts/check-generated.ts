/**
 * Compares every committed generated file with the current output of its generator and reports stale ones. With
 * `--write` it updates them.
 */
import { readFile, writeFile } from "node:fs/promises";
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import * as errors from "../packages/contract/write-errors-doc.ts";
import * as dashboard from "../packages/daemon/ops/grafana-dashboard.ts";
import * as prometheus from "../packages/daemon/ops/prometheus-rules.ts";
import * as openapi from "../packages/daemon/src/write-openapi.ts";
import * as sdkTypes from "../packages/sdk/generate.ts";

const at = (path: string) => fileURLToPath(new URL(`../${path}`, import.meta.url));

const GENERATED: readonly { file: string; generate: () => Promise<string> }[] = [
  { file: at("docs/openapi.json"), generate: openapi.generate },
  { file: errors.file, generate: errors.generate },
  { file: sdkTypes.file, generate: sdkTypes.generate },
  { file: prometheus.file, generate: () => prometheus.generate() },
  { file: dashboard.file, generate: () => dashboard.generate() },
];

const write = process.argv.includes("--write");
for (const { file, generate } of GENERATED) {
  const [wanted, found] = await Promise.all([generate(), readFile(file, "utf8").catch(() => null)]);
  const name = relative(at("."), file);
  if (wanted === found) console.log(`current  ${name}`);
  else if (write) {
    await writeFile(file, wanted);
    console.log(`written  ${name}`);
  } else {
    console.error(`stale    ${name}: run "node scripts/check-generated.ts --write" and commit the result`);
    process.exitCode = 1;
  }
}
