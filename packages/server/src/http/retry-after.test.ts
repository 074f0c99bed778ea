import { ERROR_CODES, ERRORS, type ErrorCode, HoldfastError, NUMBERS } from "@holdfast/contract";
import { expect, test } from "vitest";
import { json, serve } from "../testing/double.ts";
import { retryAfterSeconds } from "./retry-after.ts";

async function refusalOf(code: ErrorCode, numbers = {}) {
  const create = () => Promise.reject(new HoldfastError(code));
  await using server = await serve({ sandboxes: { create } }, { numbers });
  const response = await server.fetch("/v1/sandboxes", json({}));
  await response.body?.cancel();
  return { status: response.status, after: response.headers.get("retry-after") };
}

test("every transient error says when to retry, and no other error does", () => {
  for (const code of ERROR_CODES) {
    const seconds = retryAfterSeconds(code, NUMBERS);
    if (![429, 503, 507].includes(ERRORS[code].status)) expect(seconds, code).toBeNull();
    else {
      expect(seconds, code).toBeGreaterThanOrEqual(1);
      expect(seconds, code).toBeLessThanOrEqual(60);
    }
  }
});

test("suspended launches are retried once a probe is allowed", async () => {
  expect(await refusalOf("launches_suspended", { launchesSuspendedMs: 12_300 })).toEqual({
    status: 503,
    after: "13",
  });
});

test("a full disk says when to retry, as every shortage does", async () => {
  for (const code of ["disk_full", "low_memory", "too_many_sandboxes"] as const) {
    const { status, after } = await refusalOf(code);
    expect(status).toBe(ERRORS[code].status);
    expect(Number(after)).toBeGreaterThan(1);
  }
});

test("a call that was held too long, or could not be held, is retried at once", async () => {
  expect(await refusalOf("wake_timeout")).toEqual({ status: 503, after: "1" });
  expect(await refusalOf("too_many_held")).toEqual({ status: 429, after: "1" });
});

test("a wait of less than a second is rounded up", async () => {
  expect((await refusalOf("sandbox_degraded", { maintainEveryMs: 20 })).after).toBe("1");
});

test("errors that waiting does not resolve have no Retry-After", async () => {
  expect(await refusalOf("name_taken")).toEqual({ status: 409, after: null });
});
