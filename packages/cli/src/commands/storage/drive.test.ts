import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { aDrive, json, refuse } from "../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;
const id = "drv_0000000000000000";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const told = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast drive create", () => {
  it("prints the name, and nothing else, once it can be mounted", async () => {
    serve({ "POST /v1/drives": json(201, aDrive()) });
    expect(await told("drive", "create", "data")).toEqual({ code: 0, stdout: "data\n", stderr: "" });
    expect(bodyOf("/v1/drives")).toEqual({ name: "data" });
  });

  it("asks for what its options say, and shows all of it as JSON", async () => {
    serve({ "POST /v1/drives": json(200, aDrive({ sizeMb: 2048 })) });
    const options = ["--size", "2g", "--label", "team=red", "--if-exists", "return"];
    const { code, stdout } = await told("drive", "create", "--json", ...options, "data");
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(aDrive({ sizeMb: 2048 }));
    expect(bodyOf("/v1/drives")).toEqual({
      name: "data",
      sizeMb: 2048,
      labels: { team: "red" },
      ifExists: "return",
    });
    for (const wrong of [
      ["--size", "lots"],
      ["--if-exists", "x"],
      ["--label", "x"],
    ])
      expect((await told("drive", "create", ...wrong)).code).toBe(2);
  }, 60_000);

  it("makes up a name where none is given", async () => {
    serve({ "POST /v1/drives": json(201, aDrive({ name: "drive-1" })) });
    expect(await told("drive", "create")).toMatchObject({ code: 0, stdout: "drive-1\n" });
  });
});

describe("holdfast drive ls", () => {
  const mounts = [
    { sandboxId: "sbx_1", sandbox: "box", path: "/workspace", subpath: "/", readOnly: false },
    { sandboxId: "sbx_2", sandbox: "other", path: "/models", subpath: "/models", readOnly: true },
  ];
  const gone = { code: "drive_gone", message: "its files are not there" };
  const items = [
    aDrive({ sizeMb: 64, mounts }),
    aDrive({ id: "drv_1111111111111111", name: "lost", status: "degraded", cause: gone, usage: null }),
  ];
  const listed: Route = ({ url }, response) => {
    const at = url.searchParams.get("cursor") === "2" ? 1 : 0;
    response.end(JSON.stringify({ items: [items[at]], nextCursor: at === 0 ? "2" : null }));
  };

  it("lists what there is over all pages, as a table, as ids and as JSON", async () => {
    serve({ "GET /v1/drives": listed });
    const { code, stdout } = await told("drive", "ls", "--label", "a=b");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^NAME +STATUS +SIZE +USED +MOUNTS +AGE +ID +CAUSE$/m);
    expect(stdout).toMatch(/^data +ready +64 MB +22\.4 MB +2 +\d+d +drv_0000000000000000$/m);
    expect(stdout).toMatch(/^lost +degraded +no limit +unknown +0 .* {2}its files are not there$/m);
    expect(bench.server.seen[0]?.url.searchParams.get("label")).toBe("a=b");
    expect((await told("drive", "ls", "-q")).stdout).toBe(`${id}\ndrv_1111111111111111\n`);
    expect(JSON.parse((await told("drive", "ls", "--json")).stdout)).toEqual(items);
  });

  it("shows one with who has it, and how much is in it", async () => {
    serve({ "GET /v1/drives/data": json(200, items[0]), "GET /v1/drives/lost": json(200, items[1]) });
    const { stdout } = await told("drive", "get", "data");
    expect(stdout).toMatch(/^used: +22\.4 MB, 953\.7 MB free, at 2026/m);
    expect(stdout).toMatch(
      /^mounted: +in box at \/workspace\nmounted: +\/models in other at \/models, read-only$/m,
    );
    const lost = (await told("drive", "get", "lost")).stdout;
    expect(lost).toMatch(/^cause: +drive_gone: its files are not there$/m);
    expect(lost).not.toMatch(/^used|^mounted/m);
    expect(JSON.parse((await told("drive", "get", "--json", "data")).stdout)).toEqual(items[0]);
  });
});

describe("holdfast drive rm", () => {
  it("prints each as it was named, once nothing of it is left", async () => {
    serve({
      "DELETE /v1/drives/data": json(202, aDrive({ status: "deleting" })),
      [`DELETE /v1/drives/${id}`]: nothing,
    });
    expect(await told("drive", "rm", "data")).toEqual({ code: 0, stdout: "data\n", stderr: "" });
    expect(requests()).toEqual(["DELETE /v1/drives/data", `DELETE /v1/drives/${id}`]);
    expect(bench.server.seen[0]?.url.searchParams.get("force")).toBeNull();
  });

  it("does what it can of several, and says for the rest what is in the way and what to do", async () => {
    serve({
      "DELETE /v1/drives/data": refuse(409, "drive_mounted", { message: "Drive data is mounted in box." }),
      "DELETE /v1/drives/other": nothing,
    });
    expect(await told("drive", "rm", "data", "other")).toEqual({
      code: 1,
      stdout: "other\n",
      stderr:
        "holdfast: Drive data is mounted in box.\n" +
        "'holdfast unmount' takes it off a sandbox; 'holdfast drive rm --force' takes it from all.\n",
    });
  });

  it("takes it from those that have it where that is asked for", async () => {
    serve({ "DELETE /v1/drives/data": nothing });
    expect((await told("drive", "rm", "--force", "data")).code).toBe(0);
    expect(bench.server.seen[0]?.url.searchParams.get("force")).toBe("true");
  });

  it("shows on a terminal that it is under way", async () => {
    serve({
      "DELETE /v1/drives/data": (request, response) => {
        setTimeout(() => void nothing(request, response), 1_500);
      },
    });
    await using typist = atTerminal("drive rm data");
    await typist.sees("deleting 1");
    await typist.sees("exit code 0");
  });
});

describe("holdfast cp with a drive", () => {
  const base = `/v1/drives/${id}/files`;
  const entry = (path: string, kind: string) => ({ path, name: path.split("/").at(-1), kind, mode: "0644" });
  const data = { "GET /v1/drives/data": json(200, aDrive()) };

  it("brings a directory here, and a file to a pipe", async () => {
    serve({
      ...data,
      [`GET ${base}/stat`]: json(200, entry("/src", "directory")),
      [`GET ${base}/list`]: json(200, { truncated: false, items: [entry("/src/a", "file")] }),
      [`GET ${base}`]: (_, response) => void response.end("content"),
    });
    expect(await told("cp", "drive:data:/src", "here")).toMatchObject({ code: 0, stderr: "" });
    expect(await readFile(join(bench.directory, "here", "a"), "utf8")).toBe("content");
    expect((await told("cp", "drive:data:/src/a", "-")).stdout).toBe("content");
  });

  it("takes a directory there, with links", async () => {
    await mkdir(join(bench.directory, "src"));
    await writeFile(join(bench.directory, "src", "a"), "content");
    await symlink("a", join(bench.directory, "src", "link"));
    serve({
      ...data,
      [`GET ${base}/stat`]: refuse(404, "file_not_found"),
      [`POST ${base}/mkdir`]: json(200, {}),
      [`PUT ${base}`]: json(200, {}),
      [`PUT ${base}/tar`]: json(200, { path: "/src", files: 1, bytes: 0 }),
    });
    expect(await told("cp", "src", "drive:data:/src")).toEqual({ code: 0, stdout: "", stderr: "" });
    const put = (path: string) =>
      bench.server.seen.find(({ method, url }) => method === "PUT" && url.pathname === path);
    expect(put(base)?.url.searchParams.get("path")).toBe("/src/a");
    expect(String(put(base)?.body)).toBe("content");
    expect(put(`${base}/tar`)?.url.searchParams.get("path")).toBe("/src");
    expect(String(put(`${base}/tar`)?.body)).toContain("linkpath=a\n");
  });

  it("is between here and there, and nothing else", async () => {
    serve(data);
    for (const [from, to] of [
      ["drive:data:/a", "drive:other:/a"],
      ["drive:data:/a", "box:/a"],
      ["drive:data:a", "here"],
      ["here", "drive:data"],
    ] as const)
      expect((await told("cp", from, to)).code).toBe(2);
    expect(requests()).toEqual([]);
  }, 60_000);
});

describe("holdfast events", () => {
  const event = {
    seq: 1,
    at: "2026-01-01T00:00:00.000Z",
    type: "drive.created",
    sandboxId: null,
    execId: null,
    driveId: id,
    generation: null,
    message: "Drive data was made.",
    data: {},
  };

  it("shows what happened to a drive", async () => {
    serve({ "GET /v1/events": json(200, { items: [event], nextCursor: null }) });
    expect((await told("events", "--drive", "data")).stdout).toBe(
      `2026-01-01T00:00:00.000Z  drive.created         Drive data was made.  [${id}]\n`,
    );
    expect(bench.server.seen[0]?.url.searchParams.get("drive")).toBe("data");
  });
});

it("what is left out is told, and nothing is asked of the server", async () => {
  serve({});
  for (const args of [["get"], ["rm"], ["nonsense"]]) expect((await told("drive", ...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every one of its commands has an example", async () => {
  for (const command of ["create", "ls", "get", "rm"]) {
    const { code, stdout } = await told("drive", command, "--help");
    expect(code).toBe(0);
    expect(stdout).toContain(`Examples:\n  holdfast drive ${command}`);
  }
}, 60_000);
