import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { ConnectionError } from "./index.ts";
import { failure, useBench } from "./testing/bench.ts";
import { drop, json, refuse } from "./testing/faulty-server.ts";

const bench = useBench();

describe("files", () => {
  it("of any size go up and down byte-exact, also as streams", async () => {
    const box = await bench.box();
    const content = randomBytes(3_000_000);
    bench.server.answer(
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      ({ body }, response) => void response.end(JSON.stringify({ sizeBytes: body.length })),
      (_, response) => void response.end(content),
    );
    await box.files.write("/a b", content, { mode: "0755" });
    await box.files.write(
      "/c",
      (async function* () {
        yield "text ";
        yield content;
      })(),
    );
    expect(bench.server.seen[0]?.body.equals(content)).toBe(true);
    expect(bench.server.seen[0]?.url.searchParams.get("path")).toBe("/a b");
    expect(bench.server.seen[1]?.body.equals(Buffer.concat([Buffer.from("text "), content]))).toBe(true);
    expect(Buffer.from(await box.files.read("/a b")).equals(content)).toBe(true);
  });

  it("in memory are sent again after a lost answer, streams are not", async () => {
    const box = await bench.box();
    bench.server.answer(drop, json(200, {}));
    await box.files.write("/a", randomBytes(2_000_000));
    expect(bench.server.seen).toHaveLength(2);
    bench.server.seen.length = 0;
    const stream = async function* () {
      yield "once";
    };
    bench.server.answer(drop, json(200, {}));
    expect(await failure(box.files.write("/a", stream()))).toBeInstanceOf(ConnectionError);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("whose upload is refused early report the refusal and stop reading the source", async () => {
    const box = await bench.box();
    let pulled = 0;
    const endless = async function* () {
      for (;;) {
        pulled += 1;
        yield new Uint8Array(65_536);
      }
    };
    bench.server.early((_, response) => refuse(403, "permission_denied")({} as never, response));
    expect(await failure(box.files.write("/etc/x", endless()))).toMatchObject({ code: "permission_denied" });
    const before = pulled;
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(pulled - before).toBeLessThan(3);
  });

  it("that are not there do not exist, and other failures are not taken for that", async () => {
    const box = await bench.box();
    bench.server.answer(refuse(404, "file_not_found"), refuse(404, "sandbox_not_found"));
    expect(await box.files.exists("/x")).toBe(false);
    expect(await failure(box.files.exists("/x"))).toMatchObject({ code: "sandbox_not_found" });
  });
});
