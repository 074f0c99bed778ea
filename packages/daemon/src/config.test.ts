import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NUMBERS } from "@holdfast/contract";
import { describe, expect, onTestFinished, test } from "vitest";
import { readConfig } from "./config.ts";
import { StartFailure } from "./start-failure.ts";

const root = { uid: 0, isTerminal: false };

test("an empty environment means the defaults", () => {
  expect(readConfig({}, root)).toEqual({
    stateDir: "/var/lib/holdfast",
    host: "127.0.0.1",
    port: 4750,
    runtime: undefined,
    logLevel: "info",
    logFormat: "json",
    numbers: NUMBERS,
    expectedLabels: [],
  });
  const atTerminal = { ...root, isTerminal: true };
  expect(readConfig({}, atTerminal)).toMatchObject({ logLevel: "warn", logFormat: "text" });
  expect(readConfig({ HOLDFAST_LOG_FORMAT: "json" }, atTerminal).logFormat).toBe("json");
  expect(() => readConfig({ HOLDFAST_LOG_FORMAT: "xml" }, root)).toThrow("HOLDFAST_LOG_FORMAT");
  expect(readConfig({ XDG_STATE_HOME: "/x/state" }, { ...root, uid: 1000 }).stateDir).toBe(
    "/x/state/holdfast",
  );
});

test("every number can be set", () => {
  const given = JSON.stringify({ maxSandboxes: 7, stopBackoffMs: [1, 2] });
  const { numbers } = readConfig({ HOLDFAST_NUMBERS_JSON: given }, root);
  expect(numbers).toEqual({ ...NUMBERS, maxSandboxes: 7, stopBackoffMs: [1, 2] });
  for (const [name, value] of Object.entries(NUMBERS)) {
    const own = JSON.stringify({ [name]: value });
    expect(readConfig({ HOLDFAST_NUMBERS_JSON: own }, root).numbers).toEqual(NUMBERS);
  }
});

test("the profile of the runbook applies only if it is named, and single numbers take precedence over it", () => {
  const { numbers, expectedLabels } = readConfig({ HOLDFAST_PROFILE: "runbook" }, root);
  expect(numbers).toMatchObject({ alertActive: 20, alertEscalationActive: 50, alertRunningMs: 300_000 });
  expect(expectedLabels).toEqual(["task_id"]);
  const own = { HOLDFAST_PROFILE: "runbook", HOLDFAST_NUMBERS_JSON: '{"alertActive":7}' };
  expect(readConfig(own, root).numbers).toMatchObject({ alertActive: 7, alertRunningMs: 300_000 });
  expect(() => readConfig({ HOLDFAST_PROFILE: "toString" }, root)).toThrow("HOLDFAST_PROFILE");
});

test("sizes may be large, shares are fractions, and retention times may be long", () => {
  const given = {
    diskReserveBytes: 2 ** 44,
    sweepPressureShare: 0.95,
    eventRetentionMs: 365 * 86_400_000,
    failedKeptMs: 90 * 86_400_000,
  };
  const { numbers } = readConfig({ HOLDFAST_NUMBERS_JSON: JSON.stringify(given) }, root);
  expect(numbers).toEqual({ ...NUMBERS, ...given });
});

const SECRET = "0123456789abcdef";
const URL_WITH_SECRETS = "https://me:p4ss@alerts.example.org/tok3n?key=s3cr3t";

/** Creates a file with this content. */
function fileOf(content: string): string {
  const directory = mkdtempSync(join(tmpdir(), "holdfast-config-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  writeFileSync(join(directory, "secret"), content);
  return join(directory, "secret");
}

describe("a webhook", () => {
  test("reads its secret from a file, or from the environment", () => {
    const url = new URL(URL_WITH_SECRETS);
    const env = { HOLDFAST_WEBHOOK_URL: URL_WITH_SECRETS };
    const expected = { url, secret: SECRET };
    expect(readConfig({ ...env, HOLDFAST_WEBHOOK_SECRET: SECRET }, root).webhook).toEqual(expected);
    const file = fileOf(`${SECRET}\n`);
    expect(readConfig({ ...env, HOLDFAST_WEBHOOK_SECRET_FILE: file }, root).webhook).toEqual(expected);
    expect(readConfig({}, root).webhook).toBeUndefined();
  });

  test.each([
    [{ HOLDFAST_WEBHOOK_URL: URL_WITH_SECRETS }, "no webhook secret is"],
    [{ HOLDFAST_WEBHOOK_URL: "ftp://me:p4ss@x/tok3n", HOLDFAST_WEBHOOK_SECRET: SECRET }, "http or https"],
    [{ HOLDFAST_WEBHOOK_URL: "p4ss tok3n", HOLDFAST_WEBHOOK_SECRET: SECRET }, "HOLDFAST_WEBHOOK_URL"],
    [{ HOLDFAST_WEBHOOK_URL: URL_WITH_SECRETS, HOLDFAST_WEBHOOK_SECRET: "s3cr3t" }, "fewer than 16"],
    [
      {
        HOLDFAST_WEBHOOK_URL: URL_WITH_SECRETS,
        HOLDFAST_WEBHOOK_SECRET: SECRET,
        HOLDFAST_WEBHOOK_SECRET_FILE: "/x",
      },
      "both set",
    ],
    [
      { HOLDFAST_WEBHOOK_URL: URL_WITH_SECRETS, HOLDFAST_WEBHOOK_SECRET_FILE: "/does/not/exist" },
      "HOLDFAST_WEBHOOK_SECRET_FILE could not be read",
    ],
    [{ HOLDFAST_WEBHOOK_SECRET: SECRET }, "HOLDFAST_WEBHOOK_URL is not"],
  ])("that is invalid is named without its secrets: %#", (env, reason) => {
    let failure: unknown;
    try {
      readConfig(env, root);
    } catch (error) {
      failure = error;
    }
    expect(failure).toBeInstanceOf(StartFailure);
    const { message, fix } = failure as StartFailure;
    expect(message).toContain(reason);
    expect(message + fix).not.toMatch(new RegExp(`p4ss|tok3n|s3cr3t|${SECRET}`));
  });
});

describe("an invalid setting is named with its valid values", () => {
  test.each([
    [{ HOLDFAST_PORT: "http" }, "HOLDFAST_PORT"],
    [{ HOLDFAST_PORT: "70000" }, "HOLDFAST_PORT"],
    [{ HOLDFAST_LOG_LEVEL: "loud" }, "HOLDFAST_LOG_LEVEL"],
    [{ HOLDFAST_NUMBERS_JSON: "{" }, "HOLDFAST_NUMBERS_JSON"],
    [{ HOLDFAST_NUMBERS_JSON: "[]" }, "HOLDFAST_NUMBERS_JSON"],
    [{ HOLDFAST_NUMBERS_JSON: '{"maxSandboxs":1}' }, "maxSandboxs"],
    [{ HOLDFAST_NUMBERS_JSON: '{"maxSandboxes":-1}' }, "maxSandboxes"],
    [{ HOLDFAST_NUMBERS_JSON: '{"maxSandboxes":"7"}' }, "maxSandboxes"],
    [{ HOLDFAST_NUMBERS_JSON: '{"stopBackoffMs":[]}' }, "stopBackoffMs"],
    [{ HOLDFAST_NUMBERS_JSON: '{"maxSandboxes":0.5}' }, "maxSandboxes"],
    [{ HOLDFAST_NUMBERS_JSON: '{"sweepPressureShare":80}' }, "sweepPressureShare"],
    [{ HOLDFAST_NUMBERS_JSON: '{"sweepPressureShare":-0.1}' }, "sweepPressureShare"],
    [{ HOLDFAST_NUMBERS_JSON: '{"auditEveryMs":2592000000}' }, "auditEveryMs"],
    [{ HOLDFAST_NUMBERS_JSON: '{"stopBackoffMs":[5000,2592000000]}' }, "stopBackoffMs"],
    [{ HOLDFAST_NUMBERS_JSON: '{"diskReserveBytes":1e300}' }, "diskReserveBytes"],
    [{ HOLDFAST_NUMBERS_FILE: "/does/not/exist" }, "HOLDFAST_NUMBERS_FILE"],
  ])("%j", (env, name) => {
    const read = () => readConfig(env, root);
    expect(read).toThrow(StartFailure);
    expect(read).toThrow(name);
  });
});
test("image aliases come from the environment", () => {
  const env = { HOLDFAST_IMAGE_ALIASES: '{"blaxel/node:latest":"node-24"}' };
  expect(readConfig(env, root).imageAliases).toEqual({ "blaxel/node:latest": "node-24" });
  expect(readConfig({}, root).imageAliases).toBeUndefined();
});

test.each(["{nope", "[]", "null", '"host"', '{"a/b":1}', '{"a/b":"Not A Name"}'])(
  "a server does not start with the aliases %s",
  (text) => {
    expect(() => readConfig({ HOLDFAST_IMAGE_ALIASES: text }, root)).toThrow(StartFailure);
  },
);
