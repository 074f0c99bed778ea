import { describe, expect, it } from "vitest";
import { aCheckpoint, aSandbox, json, made, refuse } from "../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;
const base = "/v1/sandboxes/sbx_0000000000000000/checkpoints";
const id = "ckp_0000000000000000";
const nothing: Route = (_, response) => void response.writeHead(204).end();
const told = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast(...args);
  return { code, stdout: stdout.toString(), stderr };
};
const bodyOf = (path: string) =>
  JSON.parse(String(bench.server.seen.find(({ url }) => url.pathname === path)?.body)) as unknown;

describe("holdfast checkpoint create", () => {
  it("prints the id, and nothing else, once it is kept", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint()) });
    expect(await told("checkpoint", "create", "box")).toEqual({ code: 0, stdout: `${id}\n`, stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", `POST ${base}`]);
    expect(bodyOf(base)).toEqual({});
  });

  it("gives it the name that is asked for, and shows all of it as JSON", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint()) });
    const { code, stdout } = await told("checkpoint", "create", "--json", "--name", "before", "box");
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(aCheckpoint());
    expect(bodyOf(base)).toEqual({ name: "before" });
  });

  it("says so where only files are kept", async () => {
    serve({ [`POST ${base}`]: json(201, aCheckpoint({ kind: "files" })) });
    expect(await told("checkpoint", "create", "box")).toEqual({
      code: 0,
      stdout: `${id}\n`,
      stderr: "holdfast: checkpoint before has files only, no memory: what begins with it starts anew\n",
    });
  });

  it("fails with the reason and what to do", async () => {
    const cause = { code: "dump_failed", message: "a socket" };
    serve({ [`POST ${base}`]: refuse(503, "checkpoint_failed", { cause }) });
    expect(await told("checkpoint", "create", "box")).toEqual({
      code: 1,
      stdout: "",
      stderr: "holdfast: said checkpoint_failed (a socket)\ndo better\n",
    });
    expect(requests()).toHaveLength(2);
  });

  it("shows on a terminal that it is under way", async () => {
    serve({
      [`POST ${base}`]: (request, response) => {
        setTimeout(() => void json(201, aCheckpoint())(request, response), 1_500);
      },
    });
    await using typist = atTerminal("checkpoint create box");
    await typist.sees("copying box");
    await typist.sees("exit code 0");
  });

  it("is interrupted without a word", async () => {
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

  it("lists what there is, with what it keeps and takes", async () => {
    serve({ [`GET ${base}`]: json(200, { items, nextCursor: null }) });
    const { code, stdout } = await told("checkpoint", "ls", "box");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^NAME +ID +KEEPS +SIZE +EXECS +AGE$/m);
    expect(stdout).toMatch(/^before +ckp_0000000000000000 +memory and files +22\.4 MB +2 +\d+d$/m);
    expect(stdout).toMatch(/^after +ckp_1111111111111111 +files only +1\.0 kB +0 +\d+d$/m);
  });

  it("prints them as JSON", async () => {
    serve({ [`GET ${base}`]: json(200, { items, nextCursor: null }) });
    expect(JSON.parse((await told("checkpoint", "ls", "--json", "box")).stdout)).toEqual(items);
  });
});

describe("holdfast checkpoint rm", () => {
  it("prints each as it was named, once it is removed", async () => {
    serve({ [`DELETE ${base}/before`]: nothing, [`DELETE ${base}/${id}`]: nothing });
    const { code, stdout, stderr } = await told("checkpoint", "rm", "box", "before", id);
    expect({ code, stderr, lines: stdout.trim().split("\n").sort() }).toEqual({
      code: 0,
      stderr: "",
      lines: ["before", id],
    });
  });

  it("does what it can of several, and fails for the rest with what to do", async () => {
    serve({
      [`DELETE ${base}/before`]: nothing,
      [`DELETE ${base}/other`]: refuse(404, "checkpoint_not_found"),
    });
    expect(await told("checkpoint", "rm", "box", "other", "before")).toEqual({
      code: 1,
      stdout: "before\n",
      stderr:
        "holdfast: said checkpoint_not_found\n" +
        "'holdfast checkpoint ls' lists those of a sandbox. They go when the sandbox is deleted.\n",
    });
  });
});

it("what is left out is told, and nothing is asked of the server", async () => {
  serve({});
  for (const args of [["create"], ["ls"], ["rm"], ["rm", "box"], ["nonsense"]])
    expect((await told("checkpoint", ...args)).code).toBe(2);
  expect(requests()).toEqual([]);
}, 60_000);

it("every one of its commands has an example", async () => {
  for (const command of ["create", "ls", "rm"]) {
    const { code, stdout } = await told("checkpoint", command, "--help");
    expect(code).toBe(0);
    expect(stdout).toContain(`Examples:\n  holdfast checkpoint ${command} `);
  }
}, 60_000);

describe("holdfast create --from-checkpoint", () => {
  const forkedFrom = { sandboxId: "sbx_1111111111111111", checkpointId: id, execs: {} };

  it("begins a sandbox with a checkpoint, and sends what else is said of it", async () => {
    serve({ "POST /v1/sandboxes": json(201, aSandbox({ name: "fork", forkedFrom })) });
    expect(await told("create", "--from-checkpoint", id, "--label", "try=2", "fork")).toEqual({
      code: 0,
      stdout: "fork\n",
      stderr: "",
    });
    expect(bodyOf("/v1/sandboxes")).toEqual({ name: "fork", fromCheckpoint: id, labels: { try: "2" } });
  });

  it("leaves image and limits to the checkpoint", async () => {
    serve({ "POST /v1/sandboxes": json(201, made().sandbox) });
    for (const option of [
      ["--image", "host"],
      ["--memory", "1g"],
      ["--disk", "1g"],
    ]) {
      const { code, stderr } = await told("create", "--from-checkpoint", id, ...option);
      expect(code).toBe(2);
      expect(stderr).toContain(`'--from-checkpoint <id>' cannot be used with option '${option[0]}`);
    }
    expect(requests()).toEqual([]);
  }, 60_000);

  it("makes a sandbox that shows where it comes from", async () => {
    serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ forkedFrom })) });
    const { stdout } = await told("get", "box");
    expect(stdout).toMatch(/^forked from: +ckp_0000000000000000 of sbx_1111111111111111$/m);
    serve({});
    expect((await told("get", "box")).stdout).not.toContain("forked");
  });
});
