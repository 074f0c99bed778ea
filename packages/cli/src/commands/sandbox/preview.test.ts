import { describe, expect, it } from "vitest";
import { aPreview, aToken, json, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/previews";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const { token, url, pathUrl, ...info } = aToken();
const opened = aPreview({ token, url, pathUrl });
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast("preview", ...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast preview create", () => {
  it("prints only the link", async () => {
    serve({ [`POST ${base}`]: json(201, opened) });
    expect(await runCli("create", "box", "3000")).toEqual({ code: 0, stdout: `${url}\n`, stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", `POST ${base}`]);
    expect(bodyOf(base)).toMatchObject({ port: 3000 });
  });

  it("sends the given options and prints the preview as JSON", async () => {
    serve({ [`POST ${base}`]: json(201, opened) });
    const options = ["--name", "web", "--public", "--ttl", "8h", "--token-ttl", "90s", "--json"];
    const { code, stdout } = await runCli("create", ...options, "box", "3000");
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(opened);
    expect(bodyOf(base)).toEqual({
      port: 3000,
      name: "web",
      public: true,
      ttlMs: 28_800_000,
      tokenTtlMs: 90_000,
    });
  });

  it("fails with the reason and a hint", async () => {
    serve({ [`POST ${base}`]: refuse(409, "preview_exists") });
    expect(await runCli("create", "--name", "web", "box", "3000")).toEqual({
      code: 1,
      stdout: "",
      stderr:
        "holdfast: said preview_exists\n" +
        "'holdfast preview token' creates another link to it; 'holdfast preview rm' deletes it.\n",
    });
  });
});

it("holdfast preview ls lists previews with their audience and URL", async () => {
  const items = [
    aPreview(),
    aPreview({
      name: "api",
      port: 80,
      public: true,
      expiresAt: new Date(Date.now() + 7_260_000).toISOString(),
    }),
  ];
  serve({ [`GET ${base}`]: json(200, { items }) });
  const { code, stdout } = await runCli("ls", "box");
  expect(code).toBe(0);
  expect(stdout).toMatch(/^NAME +PORT +OPEN TO +AGE +EXPIRES +URL$/m);
  expect(stdout).toMatch(
    /^web +3000 +token holders +\d+d +with the sandbox +http:\/\/3000-sbx_0+\.localhost:4750\/$/m,
  );
  expect(stdout).toMatch(/^api +80 +everyone +\d+d +in 2h +http/m);
  expect(JSON.parse((await runCli("ls", "--json", "box")).stdout)).toEqual(items);
});

it("holdfast preview rm deletes what it can and fails for the rest with a hint", async () => {
  serve({ [`DELETE ${base}/web`]: nothing, [`DELETE ${base}/other`]: refuse(404, "preview_not_found") });
  expect(await runCli("rm", "box", "web", "other")).toEqual({
    code: 1,
    stdout: "web\n",
    stderr:
      "holdfast: said preview_not_found\n" +
      "'holdfast preview ls' lists the previews of a sandbox, 'holdfast preview tokens' the tokens of a preview.\n",
  });
});

describe("the tokens of a preview", () => {
  it("are created one at a time, and only the link is printed", async () => {
    serve({ [`POST ${base}/web/tokens`]: json(201, aToken()) });
    expect(await runCli("token", "--ttl", "10m", "box", "web")).toEqual({
      code: 0,
      stdout: `${url}\n`,
      stderr: "",
    });
    expect(bodyOf(`${base}/web/tokens`)).toEqual({ ttlMs: 600_000 });
    expect(JSON.parse((await runCli("token", "--json", "box", "web")).stdout)).toEqual(aToken());
  });

  it("are listed without their secrets, and revoked by id", async () => {
    serve({
      [`GET ${base}/web/tokens`]: json(200, {
        items: [info, { ...info, id: "1111111111111111", expired: true }],
      }),
      [`DELETE ${base}/web/tokens/${info.id}`]: nothing,
    });
    const { stdout } = await runCli("tokens", "box", "web");
    expect(stdout).toMatch(/^0000000000000000 +\d+d +(in|now)/m);
    expect(stdout).toMatch(/^1111111111111111 +\d+d +expired$/m);
    expect(await runCli("revoke", "box", "web", info.id)).toEqual({
      code: 0,
      stdout: `${info.id}\n`,
      stderr: "",
    });
  });
});

it("reports missing and invalid arguments without sending a request", async () => {
  serve({});
  for (const args of [
    ["create", "box"],
    ["create", "box", "0"],
    ["create", "box", "70000"],
    ["ls"],
    ["rm", "box"],
    ["token", "box"],
    ["revoke", "box", "web"],
  ])
    expect((await runCli(...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every subcommand has an example", async () => {
  for (const command of ["create", "ls", "rm", "token", "tokens", "revoke"]) {
    const { code, stdout } = await runCli(command, "--help");
    expect(code).toBe(0);
    expect(stdout).toMatch(new RegExp(`Examples:\n  holdfast preview ${command} `));
  }
}, 60_000);
