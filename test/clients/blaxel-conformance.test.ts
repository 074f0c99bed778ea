import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { BlaxelStage } from "../support/clients/blaxel-stage.ts";
import { documented, type Finding } from "../support/clients/conformance.ts";

const CLIENT = join(import.meta.dirname, "..", "support", "clients", "blaxel-conformance.mjs");
const LONG_MS = 240_000;

let stage: BlaxelStage;
beforeAll(async () => {
  stage = await BlaxelStage.start();
});
afterAll(() => stage[Symbol.asyncDispose]());

it.each(["blaxel-0.2", "blaxel-0.3"])(
  "every public method of %s for sandboxes and drives does what docs/clients.md says",
  async (version) => {
    const options = { timeoutMs: LONG_MS };
    const found = await stage.play<(Finding & { failure?: string })[]>(CLIENT, [version], options);
    expect(found.filter(({ failure }) => failure !== undefined)).toEqual([]);
    const { found: documentedTable, wanted } = await documented(version, found);
    expect(documentedTable).toBe(wanted);
  },
  LONG_MS,
);
