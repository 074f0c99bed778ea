import { describe, expect, it } from "vitest";
import { anExec, aSandbox, json, refuse } from "../../sdk/src/testing/faulty-server.ts";
import { useBench } from "./testing/bench.ts";

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
  it("prints the name once it is so", async () => {
    serve({ [order(verb)]: json(200, reached) });
    const { code, stdout, stderr } = await holdfast(verb, "box");
    expect({ code, stdout: stdout.toString(), stderr }).toEqual({ code: 0, stdout: "box\n", stderr: "" });
    expect(requests()).toEqual(["GET /v1/sandboxes/box", order(verb)]);
  });

  it("does what it can of several, and fails for the rest with the reason and what to do", async () => {
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

  it("is used wrongly without a name", async () => {
    expect((await holdfast(verb)).code).toBe(2);
    expect(requests()).toEqual([]);
  });
});

it("a standby that keeps files only is said to be one", async () => {
  serve({ [order("standby")]: json(200, aSandbox({ status: "standby", standbyKind: "files" })) });
  const { code, stdout, stderr } = await holdfast("standby", "box");
  expect({ code, stdout: stdout.toString() }).toEqual({ code: 0, stdout: "box\n" });
  expect(stderr).toBe("holdfast: box has no memory on disk, only its files: the next call starts it anew\n");
});

it("a sandbox that sleeps is listed with what it takes on disk", async () => {
  const files = aSandbox({ name: "bare", status: "standby", standbyKind: "files" });
  const awake = aSandbox({ name: "up", status: "waking", checkpoint });
  serve({ "GET /v1/sandboxes": json(200, { items: [asleep, files, awake], nextCursor: null }) });
  const text = (await holdfast("ls")).stdout.toString();
  expect(text).toMatch(/^box +standby \(12\.3 MB\) +host /m);
  expect(text).toMatch(/^bare +standby \(files only\) +host /m);
  expect(text).toMatch(/^up +waking +host /m);
});

it("a sandbox is shown with what its standby keeps, when it comes, and where its memory is", async () => {
  serve({ "GET /v1/sandboxes/box": json(200, { ...asleep, lifecycle: { idleStandbyMs: 90_000 } }) });
  const text = (await holdfast("get", "box")).stdout.toString();
  expect(text).toMatch(/^status: +standby$/m);
  expect(text).toMatch(/^standby: +keeps memory and files; comes after 1m without a call$/m);
  expect(text).toMatch(/^checkpoint: +ckp_0000000000000000, 12\.3 MB, of 2026-01-01T00:00:00\.000Z$/m);
  serve({ "GET /v1/sandboxes/box": json(200, aSandbox({ standbyKind: "files" })) });
  const plain = (await holdfast("get", "box")).stdout.toString();
  expect(plain).toMatch(/^standby: +keeps files only$/m);
  expect(plain).not.toContain("checkpoint");
});

describe("a command", () => {
  it("lets its sandbox sleep, and is told of wakes, where that is asked for", async () => {
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

  it("that sleeps with its sandbox is listed as such", async () => {
    const items = [anExec({ status: "running", exitCode: null, suspended: true }), anExec()];
    serve({ [`GET /v1/sandboxes/${id}/execs`]: json(200, { items, nextCursor: null }) });
    const text = (await holdfast("execs", "box")).stdout.toString();
    expect(text).toMatch(/^exe_1 +running, suspended /m);
    expect(text).toMatch(/^exe_1 +exited +0 /m);
  });

  it("in a sandbox that did not wake fails as Holdfast does, not as the command", async () => {
    serve({ [`POST /v1/sandboxes/${id}/execs`]: refuse(429, "low_memory") });
    expect(await holdfast("exec", "box", "--", "true")).toMatchObject({
      code: 125,
      stderr: "holdfast: said low_memory\ndo better\n",
    });
  });
});
