import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { documented, type Finding } from "../support/clients/conformance.ts";
import { TestServer } from "../support/server/test-server.ts";

const SURFACE = join(import.meta.dirname, "..", "support", "clients", "agentuity-surface.mjs");
const LONG_MS = 180_000;

/** Exports of the client's package for sandboxes that are not called: the client class and its errors. */
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
  const result = JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "") as {
    findings: (Omit<Finding, "outcome"> & { outcome: Finding["outcome"] | "failed" })[];
    missing: string[];
    surplus: string[];
    classes: string[];
  };
  expect(result.missing).toEqual([]);
  expect(result.surplus).toEqual([]);
  expect(result.classes.filter((name) => !NOT_CALLED.test(name))).toEqual([]);
  expect(result.findings.filter(({ outcome }) => outcome === "failed")).toEqual([]);
  const { found, wanted } = await documented("agentuity", result.findings as Finding[]);
  expect(found).toBe(wanted);
});
