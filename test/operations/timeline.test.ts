import { execFile } from "node:child_process";
import { once } from "node:events";
import { readdirSync, statSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import type { Event, FollowOptions, Holdfast, LogLine, SandboxStory, UsageSummary } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { CLI, TestServer } from "../support/server/test-server.ts";

const eventually = (check: () => unknown) => vi.waitFor(check, { timeout: 30_000, interval: 50 });

/** Starts a server at a fixed address, so that clients find it again after a restart. */
async function startHere(numbers: object): Promise<TestServer> {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return TestServer.start({ HOLDFAST_PORT: String(port), HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers) });
}

/** Follows events and records them at a given pace. */
async function follow(client: Holdfast, options: FollowOptions, paceMs = 0) {
  const leaving = new AbortController();
  const events: Event[] = [];
  const begun = Promise.withResolvers<void>();
  const onConnection = (state: "open" | "lost") => state === "open" && begun.resolve();
  const over = (async () => {
    const { signal } = leaving;
    for await (const event of client.events.follow({ ...options, onConnection, signal })) {
      events.push(event);
      if (paceMs > 0) await sleep(paceMs);
    }
  })();
  over.catch(begun.reject);
  await begun.promise;
  const seqs = () => events.map(({ seq }) => seq);
  return { events, seqs, over, leave: () => leaving.abort() };
}

/** Returns all events that are kept, page by page. */
async function everything(client: Holdfast): Promise<Event[]> {
  const events: Event[] = [];
  for (let cursor: string | undefined = "0"; cursor !== undefined; ) {
    const { items, nextCursor } = await client.events.list({ cursor, limit: 50 });
    events.push(...items);
    cursor = nextCursor ?? undefined;
  }
  return events;
}

const seqsOf = (events: readonly Event[]) => events.map(({ seq }) => seq);

describe("a follower of the timeline", () => {
  let server: TestServer;
  let client: Holdfast;
  beforeAll(async () => {
    // Streams are also cut every two seconds.
    server = await startHere({ streamMaxMs: 2_000, streamKeepaliveMs: 300 });
    client = server.client({ outageMs: 60_000 });
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  it("receives every event once and in order, while commands run and the server is killed repeatedly", async () => {
    const boxes = await Promise.all(
      ["one", "two"].map((name) => client.sandboxes.create({ name, resources: { memoryMb: 128 } })),
    );
    const [first] = boxes;
    const all = await follow(client, { cursor: "0" });
    const ofOne = await follow(client, { cursor: "0", sandbox: "one" });
    const ends = await follow(client, { types: ["exec.ended"] });
    const slow = await follow(client, { cursor: "0" }, 10);
    const begun = seqsOf(await everything(client)).at(-1) ?? 0;

    let isOver = false;
    const rounds = boxes.map(async (box) => {
      for (let n = 0; !isOver; n++) expect((await box.exec(`exit ${n % 100}`)).exitCode).toBe(n % 100);
    });
    for (let kills = 0; kills < 3; kills++) {
      await sleep(600);
      await server.kill("SIGKILL");
      await sleep(300);
      await server.start();
    }
    await sleep(600);
    isOver = true;
    await Promise.all(rounds);

    const listed = await everything(client);
    expect(listed.filter(({ type }) => type === "server.started")).toHaveLength(4);
    expect(listed.filter(({ type }) => type === "exec.ended").length).toBeGreaterThan(20);
    for (const [follower, wanted] of [
      [all, listed],
      [slow, listed],
      [ofOne, listed.filter(({ sandboxId }) => sandboxId === first?.id)],
      [ends, listed.filter(({ type, seq }) => type === "exec.ended" && seq > begun)],
    ] as const) {
      const last = wanted.at(-1)?.seq ?? 0;
      await eventually(() => expect(follower.seqs().at(-1)).toBeGreaterThanOrEqual(last));
      expect(follower.seqs().filter((seq) => seq <= last)).toEqual(seqsOf(wanted));
      follower.leave();
    }
    await Promise.all(boxes.map((box) => box.delete()));
  }, 120_000);

  it("can filter by deleted sandbox, drive, exec and time, with the same result listed and streamed", async () => {
    const drive = await client.drives.create({ name: "data" });
    const before = new Date();
    const box = await client.sandboxes.create({ name: "brief" });
    const mount = await box.mount("data", "/data");
    expect(mount.state).toBe("proven");
    const run = await box.exec("true", { id: "known-exec" });
    await box.unmount("/data");
    await box.delete();
    await drive.delete();
    await sleep(10);
    const after = new Date();
    await client.audit();

    const expected: [FollowOptions, (event: Event) => boolean][] = [
      [{ sandbox: box.id }, ({ sandboxId }) => sandboxId === box.id],
      [{ drive: drive.id }, ({ driveId }) => driveId === drive.id],
      [{ exec: run.id }, ({ execId }) => execId === run.id],
      [{ sandbox: box.id, drive: drive.id }, (e) => e.sandboxId === box.id && e.driveId === drive.id],
      [{ since: before }, ({ at }) => Date.parse(at) >= before.getTime()],
    ];
    const listed = (await everything(client)).filter(({ at }) => Date.parse(at) < after.getTime());
    for (const [filter, matches] of expected) {
      const wanted = seqsOf(listed.filter(matches));
      expect(wanted.length).toBeGreaterThan(1);
      const { items } = await client.events.list({ ...filter, until: after, limit: 1_000 });
      expect(seqsOf(items)).toEqual(wanted);
      const { items: backwards } = await client.events.list({
        ...filter,
        until: after,
        order: "newest",
        limit: 2,
      });
      expect(seqsOf(backwards)).toEqual(wanted.slice(-2).reverse());
      // `until` is in the past, so the stream ends by itself.
      const streamed = await follow(client, { cursor: "0", ...filter, until: after });
      await streamed.over;
      expect(streamed.seqs()).toEqual(wanted);
    }
    await expect(client.events.list({ sandbox: "brief" })).rejects.toMatchObject({
      code: "sandbox_not_found",
    });
  });

  it("can be any client of server-sent events, and resumes with the last event id", async () => {
    const read = async (lastId: string, count: number) => {
      const leaving = new AbortController();
      const headers = { accept: "text/event-stream", "last-event-id": lastId };
      const response = await server.fetch("/v1/events", { headers, signal: leaving.signal });
      expect(response.status).toBe(200);
      let text = "";
      const ids = () => [...text.matchAll(/^id: (\d+)\nevent: \w+\.\w+\n/gm)].map(([, id]) => Number(id));
      const decoder = new TextDecoder();
      for await (const piece of response.body ?? []) {
        text += decoder.decode(piece as Uint8Array, { stream: true });
        if (ids().length >= count) break;
      }
      leaving.abort();
      return ids().slice(0, count);
    };
    const [one, two, three] = seqsOf(await everything(client));
    expect(await read("0", 2)).toEqual([one, two]);
    expect(await read(String(two), 1)).toEqual([three]);
  });
});

describe("a timeline with a short retention", () => {
  it("reports that events after an old cursor were deleted, and the first complete cursor", async () => {
    await using server = await TestServer.start({
      HOLDFAST_NUMBERS_JSON: JSON.stringify({
        eventRetentionMs: 1_000,
        sweepStaleMs: 200,
        maintainEveryMs: 200,
      }),
    });
    const client = server.client();
    const { items } = await client.events.list();
    const oldest = items[0]?.seq ?? 0;
    let floor = "";
    await eventually(async () => {
      // The audit adds a newer event, which stays when older ones are pruned.
      await client.audit();
      const error = await client.events.list({ cursor: String(oldest) }).then(
        () => null,
        (thrown: unknown) => thrown,
      );
      expect(error).toMatchObject({ code: "events_dropped", status: 410 });
      floor = (error as { floor: string }).floor;
    });
    expect(Number(floor)).toBeGreaterThan(oldest);
    const late = await follow(client, { cursor: String(oldest), onDropped: "skip" });
    await client.audit();
    await eventually(() => expect(late.events.length).toBeGreaterThan(0));
    expect(late.seqs()[0]).toBeGreaterThan(Number(floor));
    late.leave();
    client.close();
  });
});

describe("the server's log", () => {
  let server: TestServer;
  let client: Holdfast;
  beforeAll(async () => {
    server = await startHere({ logFileBytes: 20_000, logFiles: 3 });
    client = server.client({ outageMs: 60_000 });
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });
  const files = () =>
    readdirSync(join(server.dir, "logs")).map((name) => statSync(join(server.dir, "logs", name)));
  const found = async (filter: Parameters<Holdfast["logs"]>[0]): Promise<LogLine[]> => {
    const lines: LogLine[] = [];
    for (let cursor: string | undefined, more = true; more; ) {
      const { items, nextCursor } = await client.logs({ ...filter, cursor });
      lines.push(...items);
      cursor = nextCursor ?? undefined;
      more = nextCursor !== null;
    }
    return lines;
  };

  it("can be searched by sandbox, exec, request and time, even after the server was killed and the sandbox was deleted", async () => {
    const box = await client.sandboxes.create({ name: "logged" });
    const other = await client.sandboxes.create({ name: "other" });
    const run = await box.exec("exit 3");
    const refused = await client.sandboxes.get("nobody").catch((error: { requestId: string }) => error);
    const { requestId } = refused as { requestId: string };
    await eventually(async () => expect(await found({ exec: run.id })).not.toEqual([]));
    const killedAt = new Date();
    await server.kill("SIGKILL");
    await server.start();

    const ofBox = await found({ sandbox: "logged" });
    expect(new Set(ofBox.map(({ sandboxId }) => sandboxId))).toEqual(new Set([box.id]));
    expect(ofBox.length).toBeGreaterThan(3);
    expect(await found({ exec: run.id })).toMatchObject([{ sandboxId: box.id, execId: run.id }]);
    expect(await found({ request: requestId })).toMatchObject([
      { message: "request rejected", fields: { code: "sandbox_not_found" } },
    ]);
    const before = await found({ sandbox: box.id, until: killedAt });
    const since = await found({ sandbox: box.id, since: killedAt });
    expect(before.length).toBeGreaterThan(0);
    expect([...since, ...before]).toEqual(await found({ sandbox: box.id }));
    expect(await found({ text: "SERVING" })).toHaveLength(2);
    await Promise.all([box.delete(), other.delete()]);
    const gone = await found({ sandbox: box.id });
    expect(gone.length).toBeGreaterThan(ofBox.length);
    for (const { fields, message } of gone)
      expect(`${message} ${JSON.stringify(fields)}`).not.toContain(server.dir);

    const { stdout } = await promisify(execFile)(
      process.execPath,
      [CLI, "server-logs", "--sandbox", box.id, "-n", "2"],
      { env: { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key } },
    );
    expect(stdout.trimEnd().split("\n")).toHaveLength(2);
    expect(stdout).toContain(`sandbox=${box.id}`);
  });

  it("stays within its size limit and is readable by the server's user only", async () => {
    const box = await client.sandboxes.create({ name: "chatty" });
    for (let n = 0; n < 30; n++) await Promise.all(Array.from({ length: 10 }, () => box.exec("true")));
    await eventually(() => expect(files()).toHaveLength(3));
    for (const { size, mode } of files()) {
      expect(size).toBeLessThanOrEqual(20_000);
      expect(mode & 0o777).toBe(0o600);
    }
    const last = await box.exec("true");
    await eventually(async () => expect(await found({ exec: last.id })).toHaveLength(1));
    await box.delete();
  });
});

describe("the activity of a sandbox", () => {
  let server: TestServer;
  let client: Holdfast;
  beforeAll(async () => {
    server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify({ observeEveryMs: 300 }) });
    client = server.client();
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  it("is shown as one story of events and recent output, without waking the sandbox", async () => {
    const box = await client.sandboxes.create({ name: "listed" });
    await box.exec("echo first; echo oops >&2");
    await box.exec("seq 1 5000; echo last");
    await box.standby();
    const listed = (await (
      await server.fetch("/v1/sandboxes/listed/logs?limit=1000")
    ).json()) as SandboxStory;
    expect(listed).toEqual(await box.story({ limit: 1_000 }));
    expect(listed.sandboxId).toBe(box.id);
    expect(listed.lastActivityAt).toBe((await box.refresh()).lastActivityAt);
    expect(box.info.status).toBe("standby");
    const texts = listed.lines.map(({ text }) => text);
    expect(texts).toContain("last");
    expect(texts.at(-1)).toMatch(/^(sandbox|lease)\./);
    const times = listed.lines.map(({ at }) => Date.parse(at));
    expect(times).toEqual([...times].sort((one, other) => one - other));
    expect(listed.lines).toHaveLength(1_000);
    await box.delete();
  });

  it("is listed for all sandboxes, with measured usage", async () => {
    const busy = await client.sandboxes.create({ name: "busy" });
    const idle = await client.sandboxes.create({ name: "idle" });
    const run = await busy.execs.start("while :; do :; done");
    const env = { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key };
    await eventually(async () => {
      const { stdout } = await promisify(execFile)(process.execPath, [CLI, "top", "--json"], { env });
      const [first, second] = JSON.parse(stdout) as UsageSummary[];
      expect(first).toMatchObject({ name: "busy", status: "ready", sandboxId: busy.id });
      expect(second).toMatchObject({ name: "idle" });
      expect(first?.cpuPercent).toBeGreaterThan(20);
      expect(first?.memoryBytes).toBeGreaterThan(0);
      expect(first?.processes).toBeGreaterThan(1);
    });
    await run.cancel();
    await Promise.all([busy.delete(), idle.delete()]);
  });
});
