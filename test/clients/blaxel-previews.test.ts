import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { BlaxelStage } from "../support/clients/blaxel-stage.ts";

const CLIENT = join(import.meta.dirname, "..", "support", "clients", "blaxel-previews.mjs");
const LONG_MS = 90_000;

let stage: BlaxelStage;
beforeAll(async () => {
  stage = await BlaxelStage.start();
});
afterAll(() => stage[Symbol.asyncDispose]());

describe.each(["blaxel-0.2", "blaxel-0.3"])("%s, unmodified", (version) => {
  const own = (name: string) => `${name}-${version.replace("blaxel-0.", "v")}`;
  const play = (scenario: string, options: object) =>
    stage.play<Record<string, unknown>>(CLIENT, [version, scenario, JSON.stringify(options)]);

  it(
    "serves a program to clients with the link, for as long as the link is valid",
    async () => {
      expect(await play("previews", { name: own("previews") })).toMatchObject({
        seen: { url: "/a?b=c", keys: false },
        names: ["open", "shut", "other"],
        again: 4700,
        taken: 409,
        before: 0,
        answers: {
          none: 401,
          query: "/q",
          header: "/h",
          brief: "/h",
          tampered: 403,
          "another preview's": 403,
          "as a key": 401,
        },
        expired: 403,
        listed: [
          [true, false],
          [true, true],
        ],
        revoked: 403,
        fetched: {
          url: "/f?g=h",
          headers: expect.objectContaining({ authorization: "Bearer mine", host: "localhost:4700" }),
        },
        closed: 502,
      });
    },
    LONG_MS,
  );

  it(
    "binds each request to the preview it came by, and does what the client's own suite asks of previews",
    async () => {
      const headers = {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
      };
      expect(await play("suite", { name: own("suite"), previews: 40 })).toEqual({
        races: ["200 401 200 true"],
        none: 401,
        left: [true],
        revoked: 403,
        missing: 404,
        opened: 200,
        stored: headers,
        preflight: [204, "*"],
        crossed: [200, "*", "7"],
      });
    },
    LONG_MS,
  );

  it(
    "gives the environment back as it was set, and a generated name to a process without one",
    async () => {
      expect(await play("environment", { name: own("envs") })).toEqual({
        before: [
          { name: "EMPTY", value: "" },
          { name: "KEY", secret: true },
          { name: "PLAIN", value: "a\nb" },
        ],
        same: true,
        stdout: "a\nb,,hidden",
        generated: true,
        found: true,
        logs: "a\nb,,hidden",
      });
    },
    LONG_MS,
  );

  it(
    "works in one sandbox with a session instead of a key",
    async () => {
      const drive = own("session");
      expect(await play("sessions", { name: own("session"), drive })).toEqual({
        ran: "session\n",
        read: "by a guest",
        size: 6 * 1_048_576,
        streamed: "one\ntwo\n",
        listed: ["a.txt"],
        mounts: [drive],
        processes: true,
        sessions: [[true, true]],
        same: true,
      });
    },
    LONG_MS,
  );

  it(
    "grants a session access to nothing else, and an expired session access to nothing",
    async () => {
      expect(await play("strangers", { name: own("strangers") })).toEqual({
        "its own sandbox": "opened",
        "its own sandbox, by the URL": "opened",
        "no token": 401,
        "a tampered token": 403,
        "another session's token": 403,
        "another session": 403,
        "a token of a port": 403,
        "a preview of a port as a session": 403,
        "a preview of port 443 as a session": 403,
        "another sandbox": 401,
        "its own sandbox, elsewhere": 401,
        "the control plane": 401,
        "the control plane, as a key": 401,
        "the native API": 401,
        "/../../v0/sandboxes": 501,
        "/%2e%2e/%2e%2e/v0/sandboxes": 501,
        "/..%2f..%2fv0%2fsandboxes": 501,
        "a drive that the sandbox does not have": 401,
        mounts: 0,
        expired: 403,
        revoked: 403,
        stream: "cut",
      });
    },
    LONG_MS,
  );

  it("changes labels and limits of a running sandbox", async () => {
    const unlimited = { ttl: null, policies: null, minutes: 0 };
    const named = { labels: { c: "d" }, displayName: "Mine" };
    const policies = (type: string, value: string) => [{ type, value, action: "delete" }];
    expect(await play("updates", { name: own("updates") })).toEqual({
      labels: { ...named, ttl: "30m", policies: null, minutes: 30 },
      ttl: { ...named, ttl: "2h", policies: null, minutes: 120 },
      policy: { ...named, ttl: "2h", policies: policies("ttl-max-age", "1h"), minutes: 60 },
      idle: { ...named, ttl: "2h", policies: policies("ttl-idle", "20m"), minutes: 20 },
      untimed: { ...named, ttl: null, policies: policies("ttl-idle", "20m"), minutes: 20 },
      free: { ...named, ...unlimited },
      read: { ...named, ...unlimited },
    });
  });

  it(
    "deletes an unused sandbox, but not one with a running process",
    async () => {
      const answer = await play("idleness", { name: own("idle") });
      expect(answer).toEqual({ idle: true, kept: "DEPLOYED", afterwards: true });
    },
    LONG_MS,
  );
});
