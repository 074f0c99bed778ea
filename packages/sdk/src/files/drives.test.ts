import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, Holdfast, NotFoundError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, aDrive, drop, json, refuse } from "../testing/faulty-server.ts";

const bench = useBench();
const id = "drv_0000000000000000";
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}${url.search}`);
const bodies = () => bench.server.seen.map(({ body }) => JSON.parse(String(body)) as Record<string, unknown>);
const nothing: Answer = (_, response) => void response.writeHead(204).end();
const late =
  (answer: Answer): Answer =>
  async (request, response) => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    return answer(request, response);
  };

async function aHandle() {
  bench.server.answer(json(200, aDrive()));
  const drive = await bench.holdfast.drives.get("data");
  bench.server.seen.length = 0;
  return drive;
}

describe("creating a drive", () => {
  it("resolves with a handle", async () => {
    bench.server.answer(json(201, aDrive({ sizeMb: 64 })));
    const drive = await bench.holdfast.drives.create({ name: "data", sizeMb: 64, labels: { a: "b" } });
    expect([drive.id, drive.name, drive.info]).toEqual([id, "data", aDrive({ sizeMb: 64 })]);
    expect(requests()).toEqual(["POST /v1/drives"]);
    expect(bodies()).toEqual([{ name: "data", sizeMb: 64, labels: { a: "b" } }]);
  });

  it("has a longer timeout than other calls, because a file system may have to be created", async () => {
    using hasty = disposable(new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 50 }));
    bench.server.answer(late(json(201, aDrive())));
    expect((await hasty.client.drives.create({ name: "data" })).name).toBe("data");
    expect(bench.server.seen).toHaveLength(1);
  });

  it("without a name creates one drive however often the response is lost, because the client chooses the name", async () => {
    bench.server.answer(drop, refuse(503, "shutting_down", { dispatched: "unknown" }), json(200, aDrive()));
    await bench.holdfast.drives.create({ sizeMb: 64 });
    const [first, ...others] = bodies();
    expect(first).toEqual({
      name: expect.stringMatching(/^drive-[0-9a-f]{16}$/),
      sizeMb: 64,
      ifExists: "return",
    });
    expect(others).toEqual([first, first]);
    bench.server.seen.length = 0;
    await bench.holdfast.drives.create();
    expect(bodies()[0]?.name).not.toBe(first?.name);
  });

  it("whose name is taken reports whether an earlier attempt may have taken it", async () => {
    bench.server.answer(refuse(409, "drive_exists"));
    const taken = await failure(bench.holdfast.drives.create({ name: "data" }));
    expect(taken).toBeInstanceOf(ConflictError);
    expect(taken).toMatchObject({ code: "drive_exists", dispatched: "no" });
    bench.server.answer(drop, refuse(409, "drive_exists"));
    expect(await failure(bench.holdfast.drives.create({ name: "data" }))).toMatchObject({
      code: "drive_exists",
      dispatched: "unknown",
    });
  });

  it("returns the existing drive with getOrCreate", async () => {
    bench.server.answer(drop, json(200, aDrive()));
    expect((await bench.holdfast.drives.getOrCreate({ name: "data" })).id).toBe(id);
    expect(bodies()).toEqual(Array(2).fill({ name: "data", ifExists: "return" }));
  });

  it("fails with a typed error", async () => {
    bench.server.answer(refuse(507, "disk_full"));
    expect(await failure(bench.holdfast.drives.create())).toBeInstanceOf(UnavailableError);
    expect(bench.server.seen).toHaveLength(1);
  });
});

describe("drives", () => {
  it("are found by name or id, with a retry after a lost response", async () => {
    bench.server.answer(drop, json(200, aDrive()));
    expect((await bench.holdfast.drives.get("a/b")).info).toEqual(aDrive());
    expect(requests()).toEqual(["GET /v1/drives/a%2Fb", "GET /v1/drives/a%2Fb"]);
    bench.server.answer(refuse(404, "drive_not_found"));
    expect(await failure(bench.holdfast.drives.get("data"))).toBeInstanceOf(NotFoundError);
  });

  it("are listed by label, page by page", async () => {
    bench.server.answer(json(200, { items: [aDrive()], nextCursor: "2" }));
    const page = await bench.holdfast.drives.list({ labels: { a: "b", c: "d" }, limit: 1, cursor: "1" });
    expect(page).toEqual({ items: [aDrive()], nextCursor: "2" });
    await bench.holdfast.drives.list();
    expect(requests()).toEqual(["GET /v1/drives?label=a%3Db&label=c%3Dd&limit=1&cursor=1", "GET /v1/drives"]);
  });

  it("hold the state of the last response", async () => {
    const drive = await aHandle();
    const now = aDrive({
      status: "degraded",
      cause: { code: "drive_gone", message: "its files are not there" },
    });
    bench.server.answer(json(200, now));
    expect(await drive.refresh()).toEqual(now);
    expect(drive.info).toEqual(now);
    expect(requests()).toEqual([`GET /v1/drives/${id}`]);
  });

  it("can change their labels", async () => {
    const drive = await aHandle();
    bench.server.answer(json(200, aDrive({ labels: { team: "b" } })));
    expect(await drive.update({ labels: { team: "b", old: null } })).toEqual(drive.info);
    expect(drive.info.labels).toEqual({ team: "b" });
    expect(requests()).toEqual([`PATCH /v1/drives/${id}`]);
    expect(bodies()).toEqual([{ labels: { team: "b", old: null } }]);
  });

  it("list their events, by id even after deletion", async () => {
    const drive = await aHandle();
    bench.server.answer(json(200, { items: [], nextCursor: null }));
    await drive.events({ types: ["mount.added", "mount.removed"], limit: 5 });
    await bench.holdfast.events.list({ drive: id });
    await bench.holdfast.events.list();
    expect(requests()).toEqual([
      `GET /v1/events?drive=${id}&type=mount.added&type=mount.removed&limit=5`,
      `GET /v1/events?drive=${id}`,
      "GET /v1/events",
    ]);
  });

  it("have files, addressed by the drive's id", async () => {
    const drive = await aHandle();
    bench.server.answer((_, response) => void response.end("content"));
    expect(await drive.files.readText("/a.txt")).toBe("content");
    bench.server.answer(json(200, { path: "/a.txt", kind: "file" }));
    await drive.files.write("/a.txt", "hi");
    expect(bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}`)).toEqual([
      `GET /v1/drives/${id}/files`,
      `PUT /v1/drives/${id}/files`,
    ]);
    expect(bench.server.seen.map(({ url }) => url.searchParams.get("path"))).toEqual(["/a.txt", "/a.txt"]);
  });
});

describe("deleting a drive", () => {
  it("resolves when nothing of it is left, and repeats the request until then", async () => {
    const drive = await aHandle();
    const left = aDrive({ status: "deleting" });
    bench.server.answer(json(202, left), json(202, left), nothing);
    expect(await drive.delete()).toBeUndefined();
    expect(requests()).toEqual(Array(3).fill(`DELETE /v1/drives/${id}`));
    expect(drive.info.status).toBe("deleting");
  });

  it("continues by id if started by name, because the name may be reused", async () => {
    bench.server.answer(json(202, aDrive({ status: "deleting" })), refuse(404, "drive_not_found"));
    await bench.holdfast.drives.delete("data", { force: true });
    expect(requests()).toEqual(["DELETE /v1/drives/data?force=true", `DELETE /v1/drives/${id}?force=true`]);
  });

  it("by name is not repeated after a lost response", async () => {
    bench.server.answer(drop, nothing);
    const error = await failure(bench.holdfast.drives.delete("data"));
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error.dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(1);
  });

  it("by id succeeds on 'not found' if an earlier attempt may have arrived, and only then", async () => {
    bench.server.answer(drop, refuse(404, "drive_not_found"));
    await bench.holdfast.drives.delete(id);
    expect(bench.server.seen).toHaveLength(2);
    bench.server.answer(refuse(404, "drive_not_found"));
    expect(await failure(bench.holdfast.drives.delete(id))).toBeInstanceOf(NotFoundError);
  });

  it("of a mounted drive fails with the server's error", async () => {
    const drive = await aHandle();
    bench.server.answer(refuse(409, "drive_mounted", { message: "Drive data is mounted in box." }));
    const error = await failure(drive.delete());
    expect(error).toBeInstanceOf(ConflictError);
    expect(error).toMatchObject({ code: "drive_mounted", message: "Drive data is mounted in box." });
    expect(bench.server.seen).toHaveLength(1);
  });

  it("stops waiting when the signal fires", async () => {
    const drive = await aHandle();
    bench.server.answer(json(202, aDrive({ status: "deleting" })));
    await expect(drive.delete({ signal: AbortSignal.timeout(300) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
    expect(bench.server.seen.length).toBeGreaterThan(1);
    expect(bench.server.seen.length).toBeLessThan(10);
  });
});

const disposable = (client: Holdfast) => ({ client, [Symbol.dispose]: () => client.close() });
