import { describe, expect, it } from "vitest";
import { aCheckpoint, aSandbox, json, made, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/checkpoints";
const id = "ckp_0000000000000000";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast checkpoint create", () => {
  it("prints only the id, once the checkpoint is stored", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint()) });
    expect(await runCli("checkpoint", "create", "box")).toEqual({ code: 0, stdout: `${id}\n`, stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", `POST ${base}`]);
    expect(bodyOf(base)).toEqual({});
  });

  it("uses the requested name and prints the checkpoint as JSON", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint()) });
    const { code, stdout } = await runCli("checkpoint", "create", "--json", "--name", "before", "box");
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(aCheckpoint());
    expect(bodyOf(base)).toEqual({ name: "before" });
  });

  it("warns when only files were saved", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint({ kind: "files" })) });
    expect(await runCli("checkpoint", "create", "box")).toEqual({
      code: 0,
      stdout: `${id}\n`,
      stderr:
        "holdfast: checkpoint before has files only, no memory: sandboxes created from it start with no running processes\n",
    });
  });

  it("fails with the reason and a hint", async () => {
    const cause = { code: "dump_failed", message: "a socket" };
    serve({ [`POST ${base}`]: refuse(503, "checkpoint_failed", { cause }) });
    expect(await runCli("checkpoint", "create", "box")).toEqual({
      code: 1,
      stdout: "",
      stderr: "holdfast: said checkpoint_failed (a socket)\ndo better\n",
    });
    expect(requests()).toHaveLength(2);
  });

  it("shows progress on a terminal", async () => {
    serve({
      [`POST ${base}`]: (request, response) => {
        setTimeout(() => void json(201, aCheckpoint())(request, response), 1_500);
      },
    });
    await using typist = atTerminal("checkpoint create box");
    await typist.sees("copying box");
    await typist.sees("exit code 0");
  });

  it("prints nothing when interrupted", async () => {
    const asked = Promise.withResolvers<void>();
    serve({ [`POST ${base}`]: () => asked.resolve() });
    const child = bench.start("checkpoint", "create", "box");
    await asked.promise;
    child.kill("SIGINT");
    expect(await child.ended).toMatchObject({ code: 130, stderr: "" });
  });
});

describe("holdfast checkpoint ls", () => {
  const items = [
    aCheckpoint({ execs: ["exe_1", "exe_2"] }),
    aCheckpoint({ id: "ckp_1111111111111111", name: "after", kind: "files", sizeBytes: 1_024 }),
  ];

  it("lists checkpoints with their content and size", async () => {
    serve({ [`GET ${base}`]: json(200, { items, nextCursor: null }) });
    const { code, stdout } = await runCli("checkpoint", "ls", "box");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^NAME +ID +CONTENT +SIZE +EXECS +AGE$/m);
    expect(stdout).toMatch(/^before +ckp_0000000000000000 +memory and files +22\.4 MB +2 +\d+d$/m);
    expect(stdout).toMatch(/^after +ckp_1111111111111111 +files only +1\.0 kB +0 +\d+d$/m);
  });

  it("prints the list as JSON", async () => {
    serve({ [`GET ${base}`]: json(200, { items, nextCursor: null }) });
    expect(JSON.parse((await runCli("checkpoint", "ls", "--json", "box")).stdout)).toEqual(items);
  });
});

describe("holdfast checkpoint rm", () => {
  it("prints each name or id as given, once it is deleted", async () => {
    serve({ [`DELETE ${base}/before`]: nothing, [`DELETE ${base}/${id}`]: nothing });
    const { code, stdout, stderr } = await runCli("checkpoint", "rm", "box", "before", id);
    expect({ code, stderr, lines: stdout.trim().split("\n").sort() }).toEqual({
      code: 0,
      stderr: "",
      lines: ["before", id],
    });
  });

  it("deletes what it can and fails for the rest with a hint", async () => {
    serve({
      [`DELETE ${base}/before`]: nothing,
      [`DELETE ${base}/other`]: refuse(404, "checkpoint_not_found"),
    });
    expect(await runCli("checkpoint", "rm", "box", "other", "before")).toEqual({
      code: 1,
      stdout: "before\n",
      stderr:
        "holdfast: said checkpoint_not_found\n" +
        "'holdfast checkpoint ls' lists the checkpoints of a sandbox. They are deleted with the sandbox.\n",
    });
  });
});

it("reports missing arguments without sending a request", async () => {
  serve({});
  for (const args of [["create"], ["ls"], ["rm"], ["rm", "box"], ["nonsense"]])
    expect((await runCli("checkpoint", ...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every subcommand has an example", async () => {
  for (const command of ["create", "ls", "rm"]) {
    const { code, stdout } = await runCli("checkpoint", command, "--help");
    expect(code).toBe(0);
    expect(stdout).toContain(`Examples:\n  holdfast checkpoint ${command} `);
  }
}, 60_000);

describe("holdfast create --from-checkpoint", () => {
  const forkedFrom = { sandboxId: "sbx_1111111111111111", checkpointId: id, execs: {} };

  it("creates a sandbox from a checkpoint with the other given options", async () => {
    serve({ "POST /v1/sandboxes": json(201, aSandbox({ name: "fork", forkedFrom })) });
    expect(await runCli("create", "--from-checkpoint", id, "--label", "try=2", "fork")).toEqual({
      code: 0,
      stdout: "fork\n",
      stderr: "",
    });
    expect(bodyOf("/v1/sandboxes")).toEqual({ name: "fork", fromCheckpoint: id, labels: { try: "2" } });
  });

  it("rejects options for image and limits", async () => {
    serve({ "POST /v1/sandboxes": json(201, made().sandbox) });
    for (const option of [
      ["--image", "host"],
      ["--memory", "1g"],
      ["--disk", "1g"],
    ]) {
      const { code, stderr } = await runCli("create", "--from-checkpoint", id, ...option);
      expect(code).toBe(2);
      expect(stderr).toContain(`'--from-checkpoint <id>' cannot be used with option '${option[0]}`);
    }
    expect(requests()).toEqual([]);
  }, 60_000);

  it("creates a sandbox that shows its checkpoint", async () => {
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ forkedFrom })) });
    const { stdout } = await runCli("get", "box");
    expect(stdout).toMatch(/^forked from: +ckp_0000000000000000 of sbx_1111111111111111$/m);
    serve({});
    expect((await runCli("get", "box")).stdout).not.toContain("forked");
  });
});
