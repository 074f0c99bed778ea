import { describe, expect, it } from "vitest";
import { aPreview, aToken, json, refuse } from "../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/previews";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const { token, url, pathUrl, ...info } = aToken();
const opened = aPreview({ token, url, pathUrl });
const told = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast("preview", ...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast preview create", () => {
  it("prints the link, and nothing else", async () => {
    serve({ [`POST ${base}`]: json(201, opened) });
    expect(await told("create", "box", "3000")).toEqual({ code: 0, stdout: `${url}\n`, stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", `POST ${base}`]);
    expect(bodyOf(base)).toMatchObject({ port: 3000 });
  });

  it("opens it as it is told to, and shows all of it as JSON", async () => {
    serve({ [`POST ${base}`]: json(201, opened) });
    const options = ["--name", "web", "--public", "--ttl", "8h", "--token-ttl", "90s", "--json"];
    const { code, stdout } = await told("create", ...options, "box", "3000");
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

  it("fails with the reason and what to do", async () => {
    serve({ [`POST ${base}`]: refuse(409, "preview_exists") });
    expect(await told("create", "--name", "web", "box", "3000")).toEqual({
      code: 1,
      stdout: "",
      stderr:
        "holdfast: said preview_exists\n" +
        "'holdfast preview token' makes one more link to it; 'holdfast preview rm' closes it.\n",
    });
  });
});

it("holdfast preview ls lists what is open, to whom and where", async () => {
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
  const { code, stdout } = await told("ls", "box");
  expect(code).toBe(0);
  expect(stdout).toMatch(/^NAME +PORT +OPEN TO +AGE +ENDS +URL$/m);
  expect(stdout).toMatch(
    /^web +3000 +who has a token +\d+d +with the sandbox +http:\/\/3000-sbx_0+\.localhost:4750\/$/m,
  );
  expect(stdout).toMatch(/^api +80 +everybody +\d+d +in 2h +http/m);
  expect(JSON.parse((await told("ls", "--json", "box")).stdout)).toEqual(items);
});

it("holdfast preview rm closes what it can, and fails for the rest with what to do", async () => {
  serve({ [`DELETE ${base}/web`]: nothing, [`DELETE ${base}/other`]: refuse(404, "preview_not_found") });
  expect(await told("rm", "box", "web", "other")).toEqual({
    code: 1,
    stdout: "web\n",
    stderr:
      "holdfast: said preview_not_found\n" +
      "'holdfast preview ls' lists those of a sandbox, 'holdfast preview tokens' their tokens.\n",
  });
});

describe("the tokens of a preview", () => {
  it("are made one by one: the link is printed, and nothing else", async () => {
    serve({ [`POST ${base}/web/tokens`]: json(201, aToken()) });
    expect(await told("token", "--ttl", "10m", "box", "web")).toEqual({
      code: 0,
      stdout: `${url}\n`,
      stderr: "",
    });
    expect(bodyOf(`${base}/web/tokens`)).toEqual({ ttlMs: 600_000 });
    expect(JSON.parse((await told("token", "--json", "box", "web")).stdout)).toEqual(aToken());
  });

  it("are listed without their secrets, and taken back by their ids", async () => {
    serve({
      [`GET ${base}/web/tokens`]: json(200, {
        items: [info, { ...info, id: "1111111111111111", expired: true }],
      }),
      [`DELETE ${base}/web/tokens/${info.id}`]: nothing,
    });
    const { stdout } = await told("tokens", "box", "web");
    expect(stdout).toMatch(/^0000000000000000 +\d+d +(in|now)/m);
    expect(stdout).toMatch(/^1111111111111111 +\d+d +is over$/m);
    expect(await told("revoke", "box", "web", info.id)).toEqual({
      code: 0,
      stdout: `${info.id}\n`,
      stderr: "",
    });
  });
});

it("what is left out, or makes no sense, is told, and nothing is asked of the server", async () => {
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
    expect((await told(...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every one of its commands has an example", async () => {
  for (const command of ["create", "ls", "rm", "token", "tokens", "revoke"]) {
    const { code, stdout } = await told(command, "--help");
    expect(code).toBe(0);
    expect(stdout).toMatch(new RegExp(`Examples:\n  holdfast preview ${command} `));
  }
}, 60_000);
