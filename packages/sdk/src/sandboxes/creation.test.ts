import { describe, expect, it } from "vitest";
import {
  ConflictError,
  ConnectionError,
  Holdfast,
  type HoldfastError,
  ServerError,
  UnavailableError,
} from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, anError, aSandbox, json, lines, made, refuse, step } from "../testing/faulty-server.ts";

const bench = useBench();

/** Creates a sandbox and returns the steps that were reported. */
async function create(): Promise<string[]> {
  const steps: string[] = [];
  await bench.holdfast.sandboxes.create({ onProgress: ({ step }) => steps.push(step) });
  return steps;
}

const keys = () => bench.server.seen.map(({ headers }) => headers["idempotency-key"]);
const keepalive = { type: "keepalive" };

describe("a create", () => {
  it("reports its steps in order, and sends neither listener nor signal", async () => {
    const reported: object[] = [];
    bench.server.answer(lines([step("accepted"), step("root"), step("proving"), made()]));
    const box = await bench.holdfast.sandboxes.create({
      name: "box",
      onProgress: (progress) => reported.push(progress),
      signal: new AbortController().signal,
    });
    expect(box.name).toBe("box");
    expect(reported).toEqual(
      ["accepted", "root", "proving"].map((name) => ({ step: name, at: "2026-01-01T00:00:00.000Z" })),
    );
    expect(bench.server.seen[0]?.headers.accept).toBe("application/x-ndjson");
    expect(JSON.parse(String(bench.server.seen[0]?.body))).toEqual({ name: "box" });
  });

  it("accepts a plain response from a server that reports no steps", async () => {
    bench.server.answer(json(201, aSandbox()));
    expect(await create()).toEqual([]);
  });

  it("parses records split at any position, and ignores unknown ones", async () => {
    const text = [step("files"), { type: "news" }, keepalive, made({ labels: { a: "ü€" } })]
      .map((record) => JSON.stringify(record))
      .join("\n");
    const bytes = Buffer.from(`\n${text}\n`);
    const inBits: Answer = async (_, response) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      for (let at = 0; at < bytes.length; at += 7) {
        response.write(bytes.subarray(at, at + 7));
        await new Promise((resolve) => setImmediate(resolve));
      }
      response.end();
    };
    bench.server.answer(inBits);
    const box = await bench.holdfast.sandboxes.create();
    expect(box.info.labels).toEqual({ a: "ü€" });
  });

  for (const end of ["cut", "close"] as const) {
    it(`follows the sandbox under the same key after a stream that ends early (${end})`, async () => {
      bench.server.answer(
        lines([step("accepted"), step("root")], end),
        refuse(503, "starting"),
        lines([step("proving"), made()]),
      );
      expect(await create()).toEqual(["accepted", "root", "proving"]);
      expect(keys()).toHaveLength(3);
      expect(new Set(keys()).size).toBe(1);
      expect(keys()[0]).toBeTruthy();
    });
  }

  it("resumes a stream that fell silent", async () => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 100 });
    bench.server.answer(lines([step("accepted")], "silence"), lines([made()]));
    await hasty.sandboxes.create();
    expect(new Set(keys()).size).toBe(1);
    expect(keys()).toHaveLength(2);
    hasty.close();
  }, 30_000);

  it("gives up on a server that only sends a start, and reports that the sandbox may exist", async () => {
    bench.server.answer(lines([step("accepted")], "cut"));
    const error = await failure(create());
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error.dispatched).toBe("unknown");
    expect(bench.server.seen.length).toBeGreaterThan(2);
    expect(bench.server.seen.length).toBeLessThan(40);
  }, 30_000);

  it("keeps waiting for a server that stays up, however often connections are lost", async () => {
    const impatient = new Holdfast({ url: bench.server.url, apiKey: "x", outageMs: 300 });
    const late: Answer = async (request, response) => {
      await new Promise((resolve) => setTimeout(resolve, 200));
      return lines([keepalive], "cut")(request, response);
    };
    bench.server.answer(late, late, late, late, lines([made()]));
    await impatient.sandboxes.create();
    expect(bench.server.seen).toHaveLength(5);
    impatient.close();
  });

  it("resolves with the sandbox, even if the connection then breaks", async () => {
    bench.server.answer(lines([made()], "cut"));
    await create();
    expect(bench.server.seen).toHaveLength(1);
  });

  it("reuses its connection, even if the stream ends a little later", async () => {
    const ports: (number | undefined)[] = [];
    bench.server.answer((request, response) => {
      ports.push(response.socket?.remotePort);
      setTimeout(() => response.end(), 50);
      return lines([made()], "silence")(request, response);
    });
    await create();
    await create();
    expect(ports[0]).toBe(ports[1]);
  });

  it("fails with an error in the stream as with an error response", async () => {
    const error = anError(502, "launch_failed", { sandboxId: "sbx_x", cause: { code: "a", message: "b" } });
    bench.server.answer(lines([step("accepted"), { type: "error", error }]));
    const streamed = await failure(create());
    bench.server.answer(json(502, { error }));
    const plain = await failure(create());
    const facts = ({
      name,
      code,
      status,
      message,
      hint,
      requestId,
      sandboxId,
      cause,
      url,
    }: HoldfastError) => ({
      ...{ name, code, status, message, hint, requestId, sandboxId, cause, url },
    });
    expect(facts(streamed)).toEqual(facts(plain));
    expect(streamed).toBeInstanceOf(ServerError);
    expect(streamed.code).toBe("launch_failed");
  });

  it("is retried after a 503 in the stream, but after no other error", async () => {
    const streamed = (status: number, code: string) =>
      lines([{ type: "error", error: anError(status, code) }]);
    bench.server.answer(streamed(503, "shutting_down"), lines([made()]));
    await create();
    expect(new Set(keys()).size).toBe(1);
    bench.server.seen.length = 0;
    bench.server.answer(streamed(507, "disk_full"));
    expect(await failure(create())).toBeInstanceOf(UnavailableError);
    bench.server.answer(streamed(409, "name_taken"));
    expect(await failure(create())).toBeInstanceOf(ConflictError);
    expect(bench.server.seen).toHaveLength(2);
  });

  it("rejects responses that are not Holdfast's", async () => {
    const foreign = (type: string, text: string): Answer => {
      return (_, response) => void response.writeHead(200, { "content-type": type }).end(text);
    };
    for (const answer of [
      foreign("application/x-ndjson", "<html>\n"),
      foreign("application/x-ndjson", "null\n"),
      foreign("text/html", "<html>"),
    ]) {
      bench.server.answer(answer);
      expect(await failure(create())).toMatchObject({ code: "unexpected_response", retryable: false });
    }
  });

  it("throws the reason of its signal", async () => {
    bench.server.answer(lines([step("waiting")], "silence"));
    const signal = AbortSignal.timeout(200);
    await expect(bench.holdfast.sandboxes.create({ signal })).rejects.toMatchObject({ name: "TimeoutError" });
  });

  it("works with the caller's fetch", async () => {
    const viaFetch = new Holdfast({ url: bench.server.url, apiKey: "x", fetch: globalThis.fetch });
    const steps: string[] = [];
    bench.server.answer(lines([step("root")], "cut"), lines([step("proving"), made()]));
    await viaFetch.sandboxes.create({ onProgress: ({ step }) => steps.push(step) });
    expect(steps).toEqual(["root", "proving"]);
    expect(new Set(keys()).size).toBe(1);
  });
});
