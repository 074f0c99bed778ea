import { describe, expect, it } from "vitest";
import {
  aMount,
  aSandbox,
  ending,
  frames,
  greeting,
  json,
  refuse,
} from "../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/mounts";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const told = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast mount", () => {
  it("prints the path, and nothing else, once it is proven", async () => {
    serve({ [`PUT ${base}`]: json(201, aMount()) });
    expect(await told("mount", "box", "data", "/workspace")).toEqual({
      code: 0,
      stdout: "/workspace\n",
      stderr: "",
    });
    expect(bodyOf(base)).toEqual({ drive: "data", path: "/workspace" });
  });

  it("mounts a part of it, for reading only, and shows it as JSON", async () => {
    serve({ [`PUT ${base}`]: json(201, aMount({ readOnly: true })) });
    const options = ["--json", "--read-only", "--subpath", "models"];
    const { stdout } = await told("mount", ...options, "box", "data", "/models");
    expect(JSON.parse(stdout)).toEqual(aMount({ readOnly: true }));
    expect(bodyOf(base)).toEqual({ drive: "data", path: "/models", subpath: "models", readOnly: true });
  });

  it("fails with the reason and what to do", async () => {
    serve({ [`PUT ${base}`]: refuse(409, "mount_conflict") });
    expect(await told("mount", "box", "data", "/workspace")).toEqual({
      code: 1,
      stdout: "",
      stderr: "holdfast: said mount_conflict\ndo better\n",
    });
  });
});

describe("holdfast unmount", () => {
  it("prints each path once nothing is mounted there, and fails for the rest with what to do", async () => {
    serve({
      [`DELETE ${base}`]: (request, response) =>
        (request.url.searchParams.get("path") === "/workspace" ? nothing : refuse(404, "mount_not_found"))(
          request,
          response,
        ),
    });
    expect(await told("unmount", "box", "/workspace")).toEqual({
      code: 0,
      stdout: "/workspace\n",
      stderr: "",
    });
    expect(await told("unmount", "box", "/other", "/workspace")).toEqual({
      code: 1,
      stdout: "/workspace\n",
      stderr:
        "holdfast: said mount_not_found\n'holdfast mounts' lists what is mounted in a sandbox, and where.\n",
    });
  });
});

describe("holdfast mounts", () => {
  const cause = { code: "drive_gone", message: "its files are not there" };
  const items = [
    aMount(),
    aMount({ path: "/models", subpath: "/models", readOnly: true, state: "broken", cause }),
  ];

  it("lists the drives of a sandbox, and how they are", async () => {
    serve({ [`GET ${base}`]: json(200, { items }) });
    const { code, stdout } = await told("mounts", "box");
    expect(code).toBe(0);
    expect(stdout).toBe(
      "DRIVE        PATH        ACCESS      STATE   CAUSE\n" +
        "data         /workspace  read-write  proven\n" +
        "data/models  /models     read-only   broken  its files are not there\n",
    );
    expect(JSON.parse((await told("mounts", "--json", "box")).stdout)).toEqual(items);
  });

  it("are shown with the sandbox", async () => {
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ mounts: items })) });
    const { stdout } = await told("get", "box");
    expect(stdout).toMatch(
      /^mount: +data at \/workspace, proven\nmount: +data\/models at \/models, read-only, broken \(its files are not there\)$/m,
    );
    serve({});
    expect((await told("get", "box")).stdout).not.toContain("mount");
  });
});

describe("--mount", () => {
  const options = ["--mount", "data:/workspace", "--mount", "data/models:/models:ro"];
  const mounts = [
    { drive: "data", path: "/workspace" },
    { drive: "data", subpath: "/models", path: "/models", readOnly: true },
  ];

  it("gives a sandbox its drives from the beginning", async () => {
    serve({});
    expect((await told("create", ...options, "box")).code).toBe(0);
    expect(bodyOf("/v1/sandboxes")).toEqual({ name: "box", mounts });
    bench.server.seen.length = 0;
    serve({ "GET /v1/execs/exe_1/output": frames([greeting(), ending(99, {})]) });
    expect((await told("run", ...options, "--", "true")).code).toBe(0);
    expect(bodyOf("/v1/sandboxes")).toEqual({ lifecycle: { disposable: true }, mounts });
  });

  it("that makes no sense is told, and nothing is asked of the server", async () => {
    serve({});
    for (const wrong of ["data", "data:workspace", ":/workspace"]) {
      const { code, stderr } = await told("create", "--mount", wrong);
      expect(code).toBe(2);
      expect(stderr).toContain("Use DRIVE:PATH");
    }
    expect(requests()).toEqual([]);
  }, 60_000);
});

it("what is left out is told, and nothing is asked of the server", async () => {
  serve({});
  for (const args of [["mount", "box", "data"], ["unmount", "box"], ["mounts"]])
    expect((await told(...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);
