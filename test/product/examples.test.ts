import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

const run = promisify(execFile);
const EXAMPLES = join(import.meta.dirname, "..", "..", "examples");

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server[Symbol.asyncDispose]());

it.each<[example: string, said: string, blaxel?: string]>([
  ["coding-agent.ts", "done: the tests pass"],
  ["dev-server.ts", "the link, revoked: 403"],
  ["agentuity-session.mjs", "Everything is as it should be."],
  ["fan-out.ts", "20 workers summed to 5000050000; it is 5000050000"],
  ["blaxel-session.mjs", "Everything is as it should be.", "blaxel-0.2"],
  ["blaxel-session.mjs", "Everything is as it should be.", "blaxel-0.3"],
])(
  "%s does what it says, and leaves nothing behind",
  async (example, said, blaxel = "") => {
    const place = { HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key };
    const env = { ...process.env, ...place, BLAXEL_PACKAGE: blaxel };
    const { stdout } = await run(process.execPath, [join(EXAMPLES, example)], { env });
    expect(stdout).toContain(said);
    const client = server.client();
    expect((await client.sandboxes.list()).items).toEqual([]);
    expect((await client.drives.list()).items).toEqual([]);
    client.close();
  },
  120_000,
);
