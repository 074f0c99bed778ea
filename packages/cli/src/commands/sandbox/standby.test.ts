import { describe, expect, it } from "vitest";
import { anExec, aSandbox, json, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests } = bench;
const id = "sbx_0000000000000000";
const checkpoint = { id: "ckp_0000000000000000", takenAt: "2026-01-01T00:00:00.000Z", sizeBytes: 12_897_484 };
const asleep = aSandbox({ status: "standby", checkpoint });
const order = (verb: string) => `POST /v1/sandboxes/${id}/${verb}`;

describe.each([
  ["pause", aSandbox({ status: "paused" })],
  ["resume", aSandbox()],
  ["standby", asleep],
  ["wake", aSandbox()],
  ["restart", aSandbox()],
])("holdfast %s", (verb, reached) => {
  it("prints the name once the sandbox is in that state", async () => {
    serve({ [order(verb)]: json(200, reached) });
    const { code, stdout, stderr } = await holdfast(verb, "box");
    expect({ code, stdout: stdout.toString(), stderr }).toEqual({ code: 0, stdout: "box\n", stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", order(verb)]);
  });

  it("changes what it can and fails for the rest with the reason and a hint", async () => {
    const cause = { code: "disk_full", message: "2 MB are free" };
    serve({
      "GET /v1/sandboxes/other": json(200, aSandbox({ id: "sbx_1111111111111111", name: "other" })),
      [`POST /v1/sandboxes/sbx_1111111111111111/${verb}`]: refuse(503, "standby_failed", { cause }),
      [order(verb)]: json(200, reached),
    });
    const { code, stdout, stderr } = await holdfast(verb, "other", "box");
    expect({ code, stdout: stdout.toString(), stderr }).toEqual({
      code: 1,
      stdout: "box\n",
      stderr: "holdfast: said standby_failed (2 MB are free)\ndo better\n",
    });
  });

  it("requires a name", async () => {
    expect((await holdfast(verb)).code).toBe(2);
    expect(requests()).toEqual([]);
  });
});

it("standby warns when only files were saved", async () => {
  serve({ [order("standby")]: json(200, aSandbox({ status: "standby", standbyKind: "files" })) });
  const { code, stdout, stderr } = await holdfast("standby", "box");
  expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "box\n" });
  expect(stderr).toBe(
    "holdfast: the memory of box was not saved, only its files: the next call starts it without its processes\n",
  );
});

it("ls shows the saved size of a sandbox in standby", async () => {
  const files = aSandbox({ name: "bare", status: "standby", standbyKind: "files" });
  const awake = aSandbox({ name: "up", status: "waking", checkpoint });
  serve({ "GET /v1/sandboxes": json(200, { items: [asleep, files, awake], nextCursor: null }) });
  const text = (await holdfast("ls")).stdout.toString();
  expect(text).toMatch(/^box +standby \(12\.3 MB\) +host /m);
  expect(text).toMatch(/^bare +standby \(files only\) +host /m);
  expect(text).toMatch(/^up +waking +host /m);
});

it("get shows what standby preserves, when it starts, and the saved memory", async () => {
  serve({ "GET /v1/sandboxes/box": json(200, { ...asleep, lifecycle: { idleStandbyMs: 90_000 } }) });
  const text = (await holdfast("get", "box")).stdout.toString();
  expect(text).toMatch(/^status: +standby$/m);
  expect(text).toMatch(/^standby: +preserves memory and files; starts after 1m without a call$/m);
  expect(text).toMatch(/^checkpoint: +ckp_0000000000000000, 12\.3 MB, taken 2026-01-01T00:00:00\.000Z$/m);
  serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ standbyKind: "files" })) });
  const plain = (await holdfast("get", "box")).stdout.toString();
  expect(plain).toMatch(/^standby: +preserves files only$/m);
  expect(plain).not.toContain("checkpoint");
});

describe("a command", () => {
  it("can let its sandbox go to standby and receive a signal after each wake", async () => {
    serve({});
    const started = async (...options: string[]) => {
      bench.server.seen.length = 0;
      expect((await holdfast("exec", "-d", ...options, "box", "--", "serve")).code).toBe(0);
      const start = bench.server.seen.find(({ url }) => url.pathname.endsWith("/execs"));
      const { keepAwake, onWake } = JSON.parse(String(start?.body));
      return { keepAwake, onWake };
    };
    expect(await started()).toEqual({});
    expect(await started("--no-keep-awake")).toEqual({ keepAwake: false });
    expect(await started("--no-keep-awake", "--on-wake", "hup")).toEqual({
      keepAwake: false,
      onWake: { signal: "SIGHUP" },
    });
    expect((await holdfast("exec", "--on-wake", "nonsense", "box", "--", "serve")).code).toBe(2);
  }, 60_000);

  it("frozen with its sandbox is listed as suspended", async () => {
    const items = [anExec({ status: "running", exitCode: null, suspended: true }), anExec()];
    serve({ [`GET /v1/sandboxes/${id}/execs`]: json(200, { items, nextCursor: null }) });
    const text = (await holdfast("execs", "box")).stdout.toString();
    expect(text).toMatch(/^exe_1 +running, suspended /m);
    expect(text).toMatch(/^exe_1 +exited +0 /m);
  });

  it("in a sandbox that did not wake fails with Holdfast's exit code", async () => {
    serve({ [`POST /v1/sandboxes/${id}/execs`]: refuse(429, "low_memory") });
    expect(await holdfast("exec", "box", "--", "true")).toMatchObject({
      code: 125,
      stderr: "holdfast: said low_memory\ndo better\n",
    });
  });
});
