/**
 * An agent's session with Blaxel's unmodified published client against Holdfast: files, commands, a background server
 * with a preview, and a guest who works in the sandbox with a token instead of an API key.
 *
 *     npm install @blaxel/core
 *     HOLDFAST_URL=http://127.0.0.1:4750 HOLDFAST_API_KEY=$(sudo cat /var/lib/holdfast/admin.key) node blaxel-session.mjs
 *
 * Exits with 0 if every step succeeded, otherwise with 1.
 */
const {
  HOLDFAST_URL = "http://127.0.0.1:4750",
  HOLDFAST_API_KEY = "",
  BLAXEL_PACKAGE = "@blaxel/core",
} = process.env;

// The client reads these variables on import.
Object.assign(process.env, {
  BL_API_URL: `${HOLDFAST_URL}/compat/blaxel/v0`,
  BL_RUN_URL: `${HOLDFAST_URL}/compat/blaxel/run`,
  BL_API_KEY: HOLDFAST_API_KEY,
  BL_WORKSPACE: "holdfast",
  BL_DISABLE_H2: "1",
  DO_NOT_TRACK: "1",
});
const { SandboxInstance } = await import(BLAXEL_PACKAGE);

const name = `blaxel-session-${Date.now().toString(36)}`;
const PORT = 3000;
const APP = `
const { createServer } = require("node:http");
const { readFileSync } = require("node:fs");
createServer((_request, response) => response.end(readFileSync("/root/app/page.txt"))).listen(${PORT});
`;

let steps = 0;
async function step(what, work) {
  const begun = performance.now();
  const result = await work();
  steps += 1;
  console.log(`${steps}. ${what} (${Math.round(performance.now() - begun)} ms)`);
  return result;
}

function check(isSo, what) {
  if (!isSo) throw new Error(what);
}

async function main() {
  const sandbox = await step("SandboxInstance.create(), deleted after 30 minutes without use", () =>
    SandboxInstance.create({
      name,
      image: "blaxel/base-image:latest",
      memory: 1024,
      lifecycle: { expirationPolicies: [{ type: "ttl-idle", value: "30m", action: "delete" }] },
    }),
  );

  await step("fs.writeTree() writes the app", () =>
    sandbox.fs.writeTree(
      [
        { path: "server.js", content: APP },
        { path: "page.txt", content: "first version" },
      ],
      "/root/app",
    ),
  );

  const checked = await step("process.exec() checks it", () =>
    sandbox.process.exec({ command: "node --check /root/app/server.js", waitForCompletion: true }),
  );
  check(checked.exitCode === 0, `the app is not valid: ${checked.stderr}`);

  await step("process.exec() starts the app in the background and waits until it listens", () =>
    sandbox.process.exec({ name: "dev", command: "exec node /root/app/server.js", waitForPorts: [PORT] }),
  );

  const preview = await step("previews.create() with a token", () =>
    sandbox.previews.create({ metadata: { name: "app" }, spec: { port: PORT, public: false } }),
  );
  const token = await preview.tokens.create(new Date(Date.now() + 600_000));
  const look = async () => (await fetch(`${preview.spec.url}/?bl_preview_token=${token.value}`)).text();
  const page = await step("the page is served", look);
  check(page === "first version", `the page says ${JSON.stringify(page)}`);

  const guest = await step("sessions.create() lets a guest in without a key", async () =>
    SandboxInstance.fromSession(await sandbox.sessions.create()),
  );
  await step("the guest changes the app", () => guest.fs.write("/root/app/page.txt", "second version"));
  const after = await step("the page has changed", look);
  check(after === "second version", `the page says ${JSON.stringify(after)}`);

  await step("updateMetadata() labels the sandbox", () =>
    SandboxInstance.updateMetadata(name, { labels: { reviewed: "yes" } }),
  );
  await step("previews.delete() closes the page", () => sandbox.previews.delete("app"));
  const closed = await fetch(`${preview.spec.url}/?bl_preview_token=${token.value}`);
  check(closed.status === 403, `the preview still responds, with ${closed.status}`);
}

try {
  await main();
  console.log("Everything is as it should be.");
} catch (error) {
  console.error("It is not:", error);
  process.exitCode = 1;
} finally {
  await SandboxInstance.delete(name).catch(() => {});
}
process.exit();
