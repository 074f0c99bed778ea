import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { documented, type Finding } from "./support/conformance.ts";
import { TestServer } from "./support/server.ts";

const SURFACE = join(import.meta.dirname, "support", "agentuity-surface.mjs");
const LONG_MS = 180_000;

/** What the package has for sandboxes besides functions and the client: errors that it throws. */
const NOT_CALLED = /^SandboxClient$|Error$/;

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server[Symbol.asyncDispose]());

it("every public method of the Agentuity client does what docs/clients.md says", {
  timeout: LONG_MS,
}, async () => {
  const base = `${server.url}/compat/agentuity`;
  const env = {
    PATH: process.env.PATH,
    AGENTUITY_SANDBOX_URL: base,
    AGENTUITY_STREAM_URL: `${base}/stream`,
    AGENTUITY_SDK_KEY: server.key,
  };
  const { stdout } = await promisify(execFile)(process.execPath, [SURFACE], { env, timeout: LONG_MS });
  const told = JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "") as {
    findings: (Omit<Finding, "outcome"> & { outcome: Finding["outcome"] | "failed" })[];
    missing: string[];
    surplus: string[];
    classes: string[];
  };
  expect(told.missing).toEqual([]);
  expect(told.surplus).toEqual([]);
  expect(told.classes.filter((name) => !NOT_CALLED.test(name))).toEqual([]);
  expect(told.findings.filter(({ outcome }) => outcome === "failed")).toEqual([]);
  const { found, wanted } = await documented("agentuity", told.findings as Finding[]);
  expect(found).toBe(wanted);
});
