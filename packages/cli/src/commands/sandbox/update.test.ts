import { expect, it } from "vitest";
import { aSandbox, json, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const path = "/v1/sandboxes/sbx_0000000000000000";
const runCli = async (...args: string[]) => {
  const { code, stdout, stderr } = await holdfast("update", ...args);
  return { code, stdout: stdout.toString(), stderr };
};
const sent = () =>
  JSON.parse(String(bench.server.seen.findLast(({ method }) => method === "PATCH")?.body)) as unknown;

it("sets and removes the given keys and prints the name", async () => {
  serve({ [`PATCH ${path}`]: json(200, aSandbox()) });
  const labels = ["--label", "stage=done", "--label", "note=", "--remove-label", "owner"];
  const env = ["-e", "DEBUG=1", "--remove-env", "TOKEN", "--remove-env", "OTHER"];
  expect(await runCli(...labels, ...env, "--ttl", "2h", "box")).toEqual({
    code: 0,
    stdout: "box\n",
    stderr: "",
  });
  expect(requests()).toEqual(["GET /v1/sandboxes/box", `PATCH ${path}`]);
  expect(sent()).toEqual({
    labels: { stage: "done", note: "", owner: null },
    env: { DEBUG: "1", TOKEN: null, OTHER: null },
    lifecycle: { expiresInMs: 7_200_000 },
  });
});

it("resets a time with none, leaves the rest unchanged, and prints the sandbox as JSON", async () => {
  serve({ [`PATCH ${path}`]: json(200, aSandbox()) });
  const { code, stdout } = await runCli("--json", "--ttl", "none", "--idle-standby", "10m", "box");
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toEqual(aSandbox());
  expect(sent()).toEqual({ lifecycle: { ttlMs: null, idleStandbyMs: 600_000 } });
});

it("fails with the reason and a hint", async () => {
  serve({ [`PATCH ${path}`]: refuse(410, "sandbox_gone") });
  expect(await runCli("--ttl", "2h", "box")).toEqual({
    code: 1,
    stdout: "",
    stderr: "holdfast: said sandbox_gone\ndo better\n",
  });
});

it("rejects an update without changes, or with contradicting ones, without sending a request", async () => {
  serve({});
  for (const args of [[], ["box"], ["--ttl", "soon", "box"], ["--label", "a", "box"]])
    expect((await runCli(...args)).code).toBe(2);
  const both = await runCli("--label", "a=b", "--remove-label", "a", "box");
  expect(both).toMatchObject({ code: 2, stderr: "holdfast: a cannot be both set and removed\n" });
  expect(requests()).toEqual([]);
}, 60_000);

it("has examples", async () => {
  expect((await runCli("--help")).stdout).toContain("Examples:\n  holdfast update ");
});
