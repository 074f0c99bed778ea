import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { buffer, text } from "node:stream/consumers";
import { finished } from "node:stream/promises";
import { extract, pack } from "tar-stream";
import { describe, expect, it } from "vitest";
import { aDrive, json, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;
const id = "drv_0000000000000000";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast drive create", () => {
  it("prints only the name, once the drive can be mounted", async () => {
    serve({ "POST /v1/drives": json(201, aDrive()) });
    expect(await runCli("drive", "create", "data")).toEqual({ code: 0, stdout: "data\n", stderr: "" });
    expect(bodyOf("/v1/drives")).toEqual({ name: "data" });
  });

  it("sends the given options and prints the drive as JSON", async () => {
    serve({ "POST /v1/drives": json(200, aDrive({ sizeMb: 2048 })) });
    const options = ["--size", "2g", "--label", "team=red", "--if-exists", "return"];
    const { code, stdout } = await runCli("drive", "create", "--json", ...options, "data");
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
      expect((await runCli("drive", "create", ...wrong)).code).toBe(2);
  }, 60_000);

  it("lets the server generate a name if none is given", async () => {
    serve({ "POST /v1/drives": json(201, aDrive({ name: "drive-1" })) });
    expect(await runCli("drive", "create")).toMatchObject({ code: 0, stdout: "drive-1\n" });
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

  it("lists drives of all pages as a table, as ids and as JSON", async () => {
    serve({ "GET /v1/drives": listed });
    const { code, stdout } = await runCli("drive", "ls", "--label", "a=b");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^NAME +STATUS +SIZE +USED +MOUNTS +AGE +ID +CAUSE$/m);
    expect(stdout).toMatch(/^data +ready +64 MB +22\.4 MB +2 +\d+d +drv_0000000000000000$/m);
    expect(stdout).toMatch(/^lost +degraded +no limit +unknown +0 .* {2}its files are not there$/m);
    expect(bench.server.seen[0]?.url.searchParams.get("label")).toBe("a=b");
    expect((await runCli("drive", "ls", "-q")).stdout).toBe(`${id}\ndrv_1111111111111111\n`);
    expect(JSON.parse((await runCli("drive", "ls", "--json")).stdout)).toEqual(items);
  });

  it("shows a drive with its mounts and usage", async () => {
    serve({ "GET /v1/drives/data": json(200, items[0]), "GET /v1/drives/lost": json(200, items[1]) });
    const { stdout } = await runCli("drive", "get", "data");
    expect(stdout).toMatch(/^used: +22\.4 MB, 953\.7 MB free, at 2026/m);
    expect(stdout).toMatch(
      /^mounted: +in box at \/workspace\nmounted: +\/models in other at \/models, read-only$/m,
    );
    const lost = (await runCli("drive", "get", "lost")).stdout;
    expect(lost).toMatch(/^cause: +drive_gone: its files are not there$/m);
    expect(lost).not.toMatch(/^used|^mounted/m);
    expect(JSON.parse((await runCli("drive", "get", "--json", "data")).stdout)).toEqual(items[0]);
  });
});

describe("holdfast drive rm", () => {
  it("prints each name or id as given, once the drive is gone", async () => {
    serve({
      "DELETE /v1/drives/data": json(202, aDrive({ status: "deleting" })),
      [`DELETE /v1/drives/${id}`]: nothing,
    });
    expect(await runCli("drive", "rm", "data")).toEqual({ code: 0, stdout: "data\n", stderr: "" });
    expect(requests()).toEqual(["DELETE /v1/drives/data", `DELETE /v1/drives/${id}`]);
    expect(bench.server.seen[0]?.url.searchParams.get("force")).toBeNull();
  });

  it("deletes what it can and fails for mounted drives with a hint", async () => {
    serve({
      "DELETE /v1/drives/data": refuse(409, "drive_mounted", { message: "Drive data is mounted in box." }),
      "DELETE /v1/drives/other": nothing,
    });
    expect(await runCli("drive", "rm", "data", "other")).toEqual({
      code: 1,
      stdout: "other\n",
      stderr:
        "holdfast: Drive data is mounted in box.\n" +
        "'holdfast unmount' unmounts it from one sandbox; 'holdfast drive rm --force' detaches it from all.\n",
    });
  });

  it("detaches a mounted drive with --force", async () => {
    serve({ "DELETE /v1/drives/data": nothing });
    expect((await runCli("drive", "rm", "--force", "data")).code).toBe(0);
    expect(bench.server.seen[0]?.url.searchParams.get("force")).toBe("true");
  });

  it("shows progress on a terminal", async () => {
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

  it("downloads a directory, and a file to a pipe", async () => {
    const archive = pack();
    archive.entry({ name: "a" }, "content");
    archive.finalize();
    const bytes = await buffer(archive);
    serve({
      ...data,
      [`GET ${base}/stat`]: (request, response) =>
        json(
          200,
          request.url.searchParams.get("path") === "/src/a"
            ? entry("/src/a", "file")
            : entry("/src", "directory"),
        )(request, response),
      [`GET ${base}/tar`]: (_, response) =>
        void response.writeHead(200, { "content-type": "application/x-tar" }).end(bytes),
      [`GET ${base}`]: (_, response) => void response.end("content"),
    });
    expect(await runCli("cp", "drive:data:/src", "here")).toMatchObject({ code: 0, stderr: "" });
    expect(await readFile(join(bench.directory, "here", "a"), "utf8")).toBe("content");
    expect((await runCli("cp", "drive:data:/src/a", "-")).stdout).toBe("content");
  });

  it("uploads a directory with links", async () => {
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
    expect(await runCli("cp", "src", "drive:data:/src")).toEqual({ code: 0, stdout: "", stderr: "" });
    const put = bench.server.seen.find(
      ({ method, url }) => method === "PUT" && url.pathname === `${base}/tar`,
    );
    expect(put?.url.searchParams.get("path")).toBe("/src");
    const found: Record<string, string> = {};
    const archive = extract();
    archive.on("entry", async ({ name, linkname }, stream, next) => {
      found[name] = linkname ?? (await text(stream));
      next();
    });
    archive.end(put?.body);
    await finished(archive);
    expect(found).toMatchObject({ a: "content", link: "a" });
  });

  it("rejects copies that are not between local and remote", async () => {
    serve(data);
    for (const [from, to] of [
      ["drive:data:/a", "drive:other:/a"],
      ["drive:data:/a", "box:/a"],
      ["drive:data:a", "here"],
      ["here", "drive:data"],
    ] as const)
      expect((await runCli("cp", from, to)).code).toBe(2);
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

  it("shows the events of a drive", async () => {
    serve({ "GET /v1/events": json(200, { items: [event], nextCursor: null }) });
    expect((await runCli("events", "--drive", "data")).stdout).toBe(
      `2026-01-01T00:00:00.000Z  drive.created         Drive data was made.  [${id}]\n`,
    );
    expect(bench.server.seen[0]?.url.searchParams.get("drive")).toBe("data");
  });
});

it("reports missing arguments without sending a request", async () => {
  serve({});
  for (const args of [["get"], ["rm"], ["nonsense"]]) expect((await runCli("drive", ...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every subcommand has an example", async () => {
  for (const command of ["create", "ls", "get", "rm"]) {
    const { code, stdout } = await runCli("drive", command, "--help");
    expect(code).toBe(0);
    expect(stdout).toContain(`Examples:\n  holdfast drive ${command}`);
  }
}, 60_000);
