import { spawn } from "node:child_process";
import { once } from "node:events";
import { expect, it, vi } from "vitest";
import { MAIN, TestServer } from "../support/server/test-server.ts";

it("sandboxes and drives of a self-test that was killed are removed by the next start, and no others", async () => {
  await using server = await TestServer.start();
  const client = server.client();
  const labels = { purpose: "self-test" };
  const [own, labelled] = await Promise.all([
    client.sandboxes.create({ name: "selftest-mine0000" }),
    client.sandboxes.create({ name: "own", labels }),
  ]);
  await client.drives.getOrCreate({ name: "selftest-drive000", labels });
  client.close();
  await server.kill("SIGTERM");

  const { HOLDFAST_SELF_TEST: _skipped, ...env } = server.env;
  const killed = spawn(process.execPath, [MAIN, "--self-test"], { env, stdio: ["ignore", "pipe", "ignore"] });
  let printed = "";
  killed.stdout.setEncoding("utf8").on("data", (text: string) => {
    printed += text;
  });
  // The first step has made a sandbox, and the last one, which deletes it, is far away.
  await vi.waitFor(() => expect(printed).toContain("✓ create a sandbox"), { timeout: 60_000, interval: 5 });
  killed.kill("SIGKILL");
  await once(killed, "exit");

  await server.start();
  const next = server.client();
  await vi.waitFor(
    async () => {
      const { items } = await next.sandboxes.list();
      expect(items.map(({ id }) => id).sort()).toEqual([own.id, labelled.id].sort());
      expect((await next.drives.list()).items).toEqual([]);
    },
    { timeout: 60_000, interval: 200 },
  );
  next.close();
}, 180_000);
