import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { aSandbox, json } from "../../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;

const IDS = ["sbx_1000000000000000", "sbx_2000000000000000"];
const boxes = IDS.map((id, at) => aSandbox({ id, name: `box-${at + 1}`, labels: { team: "red" } }));
const deletes = IDS.map((id) => `DELETE /v1/sandboxes/${id}`);
const deleted = () => requests().filter((request) => request.startsWith("DELETE"));

function serveTwo(delayMs = 0): void {
  const each = boxes.flatMap((box, at) => [
    [`GET /v1/sandboxes/${box.id}`, json(200, box)] as const,
    [
      `DELETE /v1/sandboxes/${box.id}`,
      async (...both: Parameters<ReturnType<typeof json>>) => {
        await sleep(delayMs * (at + 1));
        await json(200, { ...box, status: "terminated" })(...both);
      },
    ] as const,
  ]);
  serve({ "GET /v1/sandboxes": json(200, { items: boxes, nextCursor: null }), ...Object.fromEntries(each) });
}

describe("on a terminal", () => {
  for (const how of ["--all", "--label team=red"]) {
    it(`rm ${how} lists the sandboxes and deletes them after a yes only`, async () => {
      serveTwo();
      await using refused = atTerminal(`rm ${how}`);
      const question = await refused.sees("Delete 2 sandboxes? [y/N]");
      expect(question).toMatch(/box-1 +ready .*team=red\r\nbox-2 +ready/);
      refused.type("\r");
      await refused.sees("nothing was deleted");
      await refused.sees("exit code 1");
      expect(deleted()).toEqual([]);
      await using agreed = atTerminal(`rm ${how}`);
      await agreed.sees("[y/N]");
      agreed.type("y\r");
      await agreed.sees("exit code 0");
      expect(deleted().sort()).toEqual(deletes);
    });
  }

  it("--yes and --force skip the question", async () => {
    serveTwo();
    for (const flag of ["--yes", "-f"]) {
      await using typist = atTerminal(`rm --all ${flag}`);
      expect(await typist.end()).not.toContain("[y/N]");
    }
    expect(deleted()).toHaveLength(4);
  });

  it("the names appear on lines of their own below the progress line", async () => {
    serveTwo(1_000);
    await using typist = atTerminal("rm --all --yes");
    const shown = await typist.end();
    expect(shown).toContain("deleting 2 sandboxes");
    for (const name of ["box-1", "box-2"]) expect(shown).toContain(`\r\x1b[K${name}\r\n`);
  });
});

describe("without a terminal", () => {
  it("rm --all does not ask", async () => {
    serveTwo();
    const { code, stdout, stderr } = await holdfast("rm", "--all");
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout.toString().trim().split("\n").sort()).toEqual(["box-1", "box-2"]);
  });

  it("rm --label asks the server for sandboxes with all labels, and reports that there is none", async () => {
    serveTwo();
    expect((await holdfast("rm", "--label", "team=red", "--label", "stage=done")).code).toBe(0);
    const listed = bench.server.seen.find(({ url }) => url.pathname === "/v1/sandboxes");
    expect(listed?.url.searchParams.getAll("label").sort()).toEqual(["stage=done", "team=red"]);
    expect(deleted().sort()).toEqual(deletes);
    serve({ "GET /v1/sandboxes": json(200, { items: [], nextCursor: null }) });
    expect(await holdfast("rm", "--label", "team=red")).toMatchObject({
      code: 0,
      stderr: "holdfast: no sandbox has the label team=red\n",
    });
  });

  it("refuses names, --all and --label together, and none of them", async () => {
    serveTwo();
    for (const args of [[], ["--all", "box"], ["--label", "a=b", "box"], ["--all", "--label", "a=b"]])
      expect((await holdfast("rm", ...args)).code).toBe(2);
    expect(requests()).toEqual([]);
  });
});
