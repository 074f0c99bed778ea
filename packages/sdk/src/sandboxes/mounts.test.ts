import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, InvalidRequestError, NotFoundError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import {
  type Answer,
  aMount,
  anError,
  drop,
  json,
  lines,
  made,
  refuse,
  step,
} from "../testing/faulty-server.ts";

const bench = useBench();
const base = "/v1/sandboxes/sbx_0000000000000000/mounts";
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}${url.search}`);
const bodies = () => bench.server.seen.map(({ body }) => JSON.parse(String(body)) as unknown);
const nothing: Answer = (_, response) => void response.writeHead(204).end();

describe("mounting a drive", () => {
  it("resolves with the mount, and sends only the given options", async () => {
    const box = await bench.box();
    bench.server.answer(json(201, aMount()));
    expect(await box.mount("data", "/workspace")).toEqual(aMount());
    await box.mount("data", "/models", { subpath: "models", readOnly: true });
    expect(requests()).toEqual([`PUT ${base}`, `PUT ${base}`]);
    expect(bodies()).toEqual([
      { drive: "data", path: "/workspace" },
      { drive: "data", path: "/models", subpath: "models", readOnly: true },
    ]);
  });

  it("is retried after a lost response, and if the server is unavailable", async () => {
    const box = await bench.box();
    bench.server.answer(
      drop,
      refuse(503, "wake_timeout"),
      refuse(503, "mount_failed"),
      refuse(503, "shutting_down", { dispatched: "unknown" }),
      json(200, aMount()),
    );
    expect(await box.mount("data", "/workspace")).toEqual(aMount());
    expect(bench.server.seen).toHaveLength(5);
  });

  it("fails with a typed error and is not retried", async () => {
    const box = await bench.box();
    for (const [status, code, Class] of [
      [404, "drive_not_found", NotFoundError],
      [409, "mount_conflict", ConflictError],
      [409, "drive_deleting", ConflictError],
      [422, "mount_refused", InvalidRequestError],
    ] as const) {
      bench.server.seen.length = 0;
      bench.server.answer(refuse(status, code), json(201, aMount()));
      const error = await failure(box.mount("data", "/workspace"));
      expect(error).toBeInstanceOf(Class);
      expect(error.code).toBe(code);
      expect(bench.server.seen).toHaveLength(1);
    }
  });
});

describe("unmounting", () => {
  it("resolves when the mount is gone", async () => {
    const box = await bench.box();
    bench.server.answer(nothing);
    expect(await box.unmount("/work space")).toBeUndefined();
    expect(requests()).toEqual([`DELETE ${base}?path=%2Fwork%20space`]);
  });

  it("is not repeated after a lost response, because another drive may be mounted by then", async () => {
    const box = await bench.box();
    bench.server.answer(drop, nothing);
    const error = await failure(box.unmount("/workspace"));
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error.dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(1);
    bench.server.answer(refuse(503, "wake_timeout"), nothing);
    await box.unmount("/workspace");
  });

  it("fails with a typed error if nothing is mounted", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(404, "mount_not_found"));
    expect(await failure(box.unmount("/workspace"))).toMatchObject({ code: "mount_not_found", status: 404 });
  });
});

it("the mounts of a sandbox are listed, with a retry after a lost response", async () => {
  const box = await bench.box();
  const items = [aMount(), aMount({ path: "/models", readOnly: true, state: "unproven" })];
  bench.server.answer(drop, json(200, { items }));
  expect(await box.mounts()).toEqual(items);
  expect(requests()).toEqual([`GET ${base}`, `GET ${base}`]);
});

describe("a sandbox with drives", () => {
  const mounts = [{ drive: "data", path: "/workspace", readOnly: true }];

  it("has its mounts at creation, and reports their state", async () => {
    bench.server.answer(lines([made({ mounts: [aMount({ readOnly: true })] })]));
    const box = await bench.holdfast.sandboxes.create({ name: "box", mounts });
    expect(box.info.mounts).toEqual([aMount({ readOnly: true })]);
    expect(bodies()).toEqual([{ name: "box", mounts }]);
  });

  it("fails with a typed error, in a stream as in a plain response", async () => {
    const streamed = lines([step("accepted"), { type: "error", error: anError(409, "mount_conflict") }]);
    for (const answer of [refuse(409, "mount_conflict"), streamed]) {
      bench.server.seen.length = 0;
      bench.server.answer(answer, lines([made()]));
      const error = await failure(bench.holdfast.sandboxes.create({ mounts }));
      expect(error).toBeInstanceOf(ConflictError);
      expect(bench.server.seen).toHaveLength(1);
    }
  });
});
