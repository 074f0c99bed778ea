import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { holdStateDirectory } from "@holdfast/store";
import { expect, test } from "vitest";
import { explain, StartFailure } from "./start-failure.ts";

test("a port in use is named, with a fix", async () => {
  const blocker = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => blocker.once("listening", resolve));
  const address = blocker.address();
  const port = typeof address === "object" && address ? address.port : 0;
  const failure = await new Promise((resolve) => {
    createServer().on("error", resolve).listen(port, "127.0.0.1");
  });
  expect(explain(failure).message).toContain(String(port));
  expect(explain(failure).fix).toContain("HOLDFAST_PORT");
  blocker.close();
});

test("a directory held by another server is named, with a fix", async () => {
  const dir = await mkdtemp(join(tmpdir(), "holdfast-held-"));
  const hold = holdStateDirectory(dir);
  try {
    holdStateDirectory(dir);
    expect.unreachable();
  } catch (error) {
    expect(explain(error).message).toContain(`process ${process.pid}`);
    expect(explain(error).fix).toContain("HOLDFAST_DIR");
  } finally {
    hold.release();
    await rm(dir, { recursive: true });
  }
});

test("every other error has a next step", () => {
  for (const thrown of [new Error("strange"), "text", new StartFailure("a", "b"), { odd: true }]) {
    expect(explain(thrown).fix).not.toBe("");
  }
});
