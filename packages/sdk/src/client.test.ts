import { describe, expect, it, onTestFinished, vi } from "vitest";
import { ConflictError, Holdfast, UnavailableError } from "./index.ts";
import { failure, useBench } from "./testing/bench.ts";
import { drop, json, refuse } from "./testing/faulty-server.ts";

const bench = useBench();

const seen = () =>
  bench.server.seen.map(({ method, url, body }) => `${method} ${url.pathname} ${body.toString()}`.trim());

describe("an audit", () => {
  const report = { trigger: "request", complete: true, findings: [] };

  it("runs on request, with a retry after a lost response", async () => {
    bench.server.answer(drop, json(200, report));
    expect(await bench.holdfast.audit()).toEqual(report);
    expect(seen()).toEqual(["POST /v1/audit", "POST /v1/audit"]);
  });

  it("can be read again, and is null if none has run", async () => {
    bench.server.answer(json(200, report), refuse(404, "not_found"));
    expect(await bench.holdfast.lastAudit()).toEqual(report);
    expect(await bench.holdfast.lastAudit()).toBeNull();
    bench.server.answer(refuse(401, "unauthorized"));
    expect((await failure(bench.holdfast.lastAudit())).code).toBe("unauthorized");
  });
});

describe("a cleanup", () => {
  it("sends exactly the requested options", async () => {
    bench.server.answer(json(200, { removed: 0 }));
    await bench.holdfast.cleanup();
    await bench.holdfast.cleanup({ dryRun: true });
    await bench.holdfast.cleanup({ emergency: true });
    await bench.holdfast.cleanup({ emergency: true, dryRun: true });
    expect(seen()).toEqual([
      'POST /v1/cleanup {"dryRun":false}',
      'POST /v1/cleanup {"dryRun":true}',
      'POST /v1/cleanup/emergency {"dryRun":false}',
      'POST /v1/cleanup/emergency {"dryRun":true}',
    ]);
  });
});

describe("errors", () => {
  it("are grouped into classes by status", async () => {
    for (const [code, status, Class] of [
      ["exec_limit", 429, UnavailableError],
      ["pending_cleanup", 409, ConflictError],
      ["low_memory", 507, UnavailableError],
      ["launches_suspended", 503, UnavailableError],
    ] as const) {
      bench.server.answer(refuse(status, code, { retryable: false }));
      const error = await failure(bench.holdfast.sandboxes.get("box"));
      expect(error).toBeInstanceOf(Class);
      expect(error.code).toBe(code);
    }
  });
});

describe("a client", () => {
  it("that found no key says that it sent none, and why", async () => {
    vi.stubEnv("HOLDFAST_DIR", "/nonexistent/holdfast");
    onTestFinished(() => void vi.unstubAllEnvs());
    bench.server.answer(refuse(401, "unauthorized", { message: "The API key is missing or unknown." }));
    const keyless = new Holdfast({ url: bench.server.url });
    const error = await failure(keyless.stats());
    expect(error.message).toBe("The request was sent without an API key.");
    expect(error.hint).toContain("/nonexistent/holdfast does not exist");
    expect((await failure(bench.holdfast.stats())).message).toBe("The API key is missing or unknown.");
  });

  it("refuses a URL that is none, and names where it comes from", () => {
    expect(() => new Holdfast({ url: "notaurl", apiKey: "x" })).toThrow("url is 'notaurl'");
    vi.stubEnv("HOLDFAST_URL", "ftp://example.com");
    onTestFinished(() => void vi.unstubAllEnvs());
    expect(() => new Holdfast()).toThrow("HOLDFAST_URL is 'ftp://example.com', which is not an HTTP URL.");
  });
});
