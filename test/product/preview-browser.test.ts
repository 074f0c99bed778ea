import type { Sandbox } from "@holdfast/sdk";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";
import { openBrowser } from "../support/workloads/browser.ts";
import { greeting, greetingFile, putViteProject } from "../support/workloads/vite-project.ts";

const PORT = 5173;
const LONG_MS = 30_000;

let server: TestServer;
let browser: Browser;
beforeAll(async () => {
  server = await TestServer.start();
  browser = await openBrowser();
});
afterAll(async () => {
  await browser?.close();
  await server[Symbol.asyncDispose]();
});

const heading = (page: Page) => page.locator("h1").textContent();
const shows = (page: Page, text: string) =>
  expect.poll(() => heading(page).catch(() => null), { timeout: LONG_MS, interval: 100 }).toBe(text);

/** Opens the page, and returns how often its socket to the dev server was opened and closed. */
async function visit(page: Page, url: string): Promise<{ opened(): number; closed(): number }> {
  let opened = 0;
  let closed = 0;
  page.on("websocket", (socket) => {
    if (!socket.url().includes("token=")) return;
    opened += 1;
    socket.on("close", () => {
      closed += 1;
    });
  });
  await page.goto(url);
  return { opened: () => opened, closed: () => closed };
}

async function preview(box: Sandbox): Promise<{ url: string; name: string }> {
  const response = await server.fetch(`/v1/sandboxes/${box.id}/previews`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ port: PORT }),
  });
  return (await response.json()) as { url: string; name: string };
}

it.skipIf(!memoryStandby)(
  "a dev server is shown in a browser through its preview, reloads edited files, and is the same after standby and wake",
  async () => {
    const client = server.client();
    const box = await client.sandboxes.create({ resources: { memoryMb: 1024 } });
    const command = await putViteProject(box, PORT);
    const vite = await box.execs.start(command, { keepAwake: false });
    const { url, name } = await preview(box);
    await expect
      .poll(
        async () =>
          (
            await fetch(`${server.url}/v1/sandboxes/${box.id}/ports/${PORT}/`, {
              headers: { authorization: `Bearer ${server.key}` },
            })
          ).status,
        { timeout: LONG_MS, interval: 100 },
      )
      .toBe(200);

    const page = await browser.newPage();
    const sockets = await visit(page, url);
    await shows(page, "hello");
    // The token is now in a cookie of this host, and in no place that a link or a script would find.
    expect(page.url()).toBe(new URL("/", url).href);
    expect(await page.evaluate("document.cookie")).toBe("");
    await expect.poll(() => sockets.opened(), { timeout: LONG_MS }).toBeGreaterThan(0);

    // Hot reload: the page is not loaded again.
    await page.evaluate("window.stayed = true");
    await box.files.write(greetingFile, greeting("edited"));
    await shows(page, "edited");
    expect(await page.evaluate("window.stayed")).toBe(true);

    // Standby cuts the page's socket; the page retries until the dev server answers, which wakes the sandbox.
    const before = { opened: sockets.opened(), closed: sockets.closed() };
    await box.standby();
    await expect.poll(() => sockets.closed(), { timeout: LONG_MS }).toBeGreaterThan(before.closed);
    await expect.poll(() => sockets.opened(), { timeout: LONG_MS }).toBeGreaterThan(before.opened);
    await expect.poll(async () => (await box.refresh()).status, { timeout: LONG_MS }).toBe("ready");
    expect((await box.refresh()).generation).toBe(2);
    expect((await box.execs.get(vite.id)).info).toMatchObject({ status: "running", suspended: false });
    await shows(page, "edited");
    await box.files.write(greetingFile, greeting("awake"));
    await shows(page, "awake");

    // After the preview is revoked, it is closed to a page that was already open.
    await server.fetch(`/v1/sandboxes/${box.id}/previews/${name}`, { method: "DELETE" });
    const answer = await page.goto(new URL("/", url).href);
    expect(answer?.status()).toBe(403);
    await expect(page.locator("h1").textContent()).resolves.toContain("preview link");

    await page.close();
    await box.delete();
    client.close();
  },
  180_000,
);
