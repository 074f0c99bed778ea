import { describe, expect, it } from "vitest";
import {
  aMount,
  aSandbox,
  ending,
  frames,
  greeting,
  json,
  refuse,
} from "../../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/mounts";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast mount", () => {
  it("prints only the path, once the mount is proven", async () => {
    serve({ [`PUT ${base}`]: json(201, aMount()) });
    expect(await runCli("mount", "box", "data", "/workspace")).toEqual({
      code: 0,
      stdout: "/workspace\n",
      stderr: "",
    });
    expect(bodyOf(base)).toEqual({ drive: "data", path: "/workspace" });
  });

  it("mounts a part of a drive read-only and prints the mount as JSON", async () => {
    serve({ [`PUT ${base}`]: json(201, aMount({ readOnly: true })) });
    const options = ["--json", "--read-only", "--subpath", "models"];
    const { stdout } = await runCli("mount", ...options, "box", "data", "/models");
    expect(JSON.parse(stdout)).toEqual(aMount({ readOnly: true }));
    expect(bodyOf(base)).toEqual({ drive: "data", path: "/models", subpath: "models", readOnly: true });
  });

  it("fails with the reason and a hint", async () => {
    serve({ [`PUT ${base}`]: refuse(409, "mount_conflict") });
    expect(await runCli("mount", "box", "data", "/workspace")).toEqual({
      code: 1,
      stdout: "",
      stderr: "holdfast: said mount_conflict\ndo better\n",
    });
  });
});

describe("holdfast unmount", () => {
  it("prints each unmounted path and fails for the rest with a hint", async () => {
    serve({
      [`DELETE ${base}`]: (request, response) =>
        (request.url.searchParams.get("path") === "/workspace" ? nothing : refuse(404, "mount_not_found"))(
          request,
          response,
        ),
    });
    expect(await runCli("unmount", "box", "/workspace")).toEqual({
      code: 0,
      stdout: "/workspace\n",
      stderr: "",
    });
    expect(await runCli("unmount", "box", "/other", "/workspace")).toEqual({
      code: 1,
      stdout: "/workspace\n",
      stderr:
        "holdfast: said mount_not_found\n'holdfast mounts' lists the mounts of a sandbox and their paths.\n",
    });
  });
});

describe("holdfast mounts", () => {
  const cause = { code: "drive_gone", message: "its files are not there" };
  const items = [
    aMount(),
    aMount({ path: "/models", subpath: "/models", readOnly: true, state: "broken", cause }),
  ];

  it("lists the drives of a sandbox and their states", async () => {
    serve({ [`GET ${base}`]: json(200, { items }) });
    const { code, stdout } = await runCli("mounts", "box");
    expect(code).toBe(0);
    expect(stdout).toBe(
      "DRIVE        PATH        ACCESS      STATE   CAUSE\n" +
        "data         /workspace  read-write  proven\n" +
        "data/models  /models     read-only   broken  its files are not there\n",
    );
    expect(JSON.parse((await runCli("mounts", "--json", "box")).stdout)).toEqual(items);
  });

  it("are shown by 'holdfast get'", async () => {
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ mounts: items })) });
    const { stdout } = await runCli("get", "box");
    expect(stdout).toMatch(
      /^mount: +data at \/workspace, proven\nmount: +data\/models at \/models, read-only, broken \(its files are not there\)$/m,
    );
    serve({});
    expect((await runCli("get", "box")).stdout).not.toContain("mount");
  });
});

describe("--mount", () => {
  const options = ["--mount", "data:/workspace", "--mount", "data/models:/models:ro"];
  const mounts = [
    { drive: "data", path: "/workspace" },
    { drive: "data", subpath: "/models", path: "/models", readOnly: true },
  ];

  it("mounts drives at creation", async () => {
    serve({});
    expect((await runCli("create", ...options, "box")).code).toBe(0);
    expect(bodyOf("/v1/sandboxes")).toEqual({ name: "box", mounts });
    bench.server.seen.length = 0;
    serve({ "GET /v1/execs/exe_1/output": frames([greeting(), ending(99, {})]) });
    expect((await runCli("run", ...options, "--", "true")).code).toBe(0);
    expect(bodyOf("/v1/sandboxes")).toEqual({ lifecycle: { disposable: true }, mounts });
  });

  it("with an invalid value is rejected without sending a request", async () => {
    serve({});
    for (const wrong of ["data", "data:workspace", ":/workspace"]) {
      const { code, stderr } = await runCli("create", "--mount", wrong);
      expect(code).toBe(2);
      expect(stderr).toContain("Use DRIVE:PATH");
    }
    expect(requests()).toEqual([]);
  }, 60_000);
});

it("reports missing arguments without sending a request", async () => {
  serve({});
  for (const args of [["mount", "box", "data"], ["unmount", "box"], ["mounts"]])
    expect((await runCli(...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);
