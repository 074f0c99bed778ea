import { expect, it } from "vitest";
import { aSandbox, json, refuse } from "../../sdk/src/testing/faulty-server.ts";
import { useBench } from "./testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const path = "/v1/sandboxes/sbx_0000000000000000";
const told = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast("update", ...args);
  return { code, stdout: stdout.toString(), stderr };
};
const sent = () =>
  JSON.parse(String(bench.server.seen.findLast(({ method }) => method === "PATCH")?.body)) as unknown;

it("changes what is named, takes off what is named so, and prints the name", async () => {
  serve({ [`PATCH ${path}`]: json(200, aSandbox()) });
  const labels = ["--label", "stage=done", "--label", "note=", "--remove-label", "owner"];
  const env = ["-e", "DEBUG=1", "--remove-env", "TOKEN", "--remove-env", "OTHER"];
  expect(await told(...labels, ...env, "--ttl", "2h", "box")).toEqual({
    code: 0,
    stdout: "box\n",
    stderr: "",
  });
  expect(requests()).toEqual(["GET /v1/sandboxes/box", `PATCH ${path}`]);
  expect(sent()).toEqual({
    labels: { stage: "done", note: "", owner: null },
    env: { DEBUG: "1", TOKEN: null, OTHER: null },
    lifecycle: { ttlMs: 7_200_000 },
  });
});

it("takes a time back with none, leaves the rest, and shows the sandbox as JSON", async () => {
  serve({ [`PATCH ${path}`]: json(200, aSandbox()) });
  const { code, stdout } = await told("--json", "--ttl", "none", "--idle-standby", "10m", "box");
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toEqual(aSandbox());
  expect(sent()).toEqual({ lifecycle: { ttlMs: null, idleStandbyMs: 600_000 } });
});

it("fails with the reason and what to do", async () => {
  serve({ [`PATCH ${path}`]: refuse(410, "sandbox_gone") });
  expect(await told("--ttl", "2h", "box")).toEqual({
    code: 1,
    stdout: "",
    stderr: "holdfast: said sandbox_gone\ndo better\n",
  });
});

it("that changes nothing, or one thing twice, is told, and nothing is asked of the server", async () => {
  serve({});
  for (const args of [[], ["box"], ["--ttl", "soon", "box"], ["--label", "a", "box"]])
    expect((await told(...args)).code).toBe(2);
  const both = await told("--label", "a=b", "--remove-label", "a", "box");
  expect(both).toMatchObject({ code: 2, stderr: "holdfast: a can't be set and removed at once\n" });
  expect(requests()).toEqual([]);
}, 60_000);

it("has examples", async () => {
  expect((await told("--help")).stdout).toContain("Examples:\n  holdfast update ");
});
