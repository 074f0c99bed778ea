/**
 * A drive in a sandbox, with the published Blaxel client: it creates a sandbox, mounts a drive, runs a command that writes to
 * the drive, and reads and lists the written file through the file API.
 *
 *     npm install @blaxel/core
 *     HOLDFAST_URL=http://127.0.0.1:4750 HOLDFAST_API_KEY=$(sudo cat /var/lib/holdfast/admin.key) node blaxel-drive.mjs
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
const { DriveInstance, SandboxInstance } = await import(BLAXEL_PACKAGE);

const own = Date.now().toString(36);
const name = `blaxel-drive-${own}`;
const drive = `workspace-${own}`;
const text = `written at ${new Date().toISOString()}`;

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
  const sandbox = await step(`SandboxInstance.createIfNotExists("${name}")`, () =>
    SandboxInstance.createIfNotExists({ name, image: "blaxel/base-image:latest", memory: 1024 }),
  );
  await step(`DriveInstance.createIfNotExists("${drive}")`, () =>
    DriveInstance.createIfNotExists({ name: drive }),
  );

  const before = await step("drives.list()", () => sandbox.drives.list());
  check(before.length === 0, "a new sandbox has no mounts");

  const mounted = await step("drives.mount() at /workspace", () =>
    sandbox.drives.mount({ driveName: drive, mountPath: "/workspace", drivePath: "/" }),
  );
  check(mounted.success, "the drive is mounted");

  const ran = await step("process.exec() writes below /workspace", () =>
    sandbox.process.exec({ command: `echo "${text}" > /workspace/note.txt`, waitForCompletion: true }),
  );
  check(ran.exitCode === 0, `the command succeeds: ${ran.stderr}`);

  const read = await step("fs.read() reads the file", () => sandbox.fs.read("/workspace/note.txt"));
  check(read === `${text}\n`, `the file has the written text, not ${JSON.stringify(read)}`);

  const { files } = await step("fs.ls() lists the directory", () => sandbox.fs.ls("/workspace"));
  check(
    files.some((file) => file.path === "/workspace/note.txt"),
    "the listing has the file",
  );

  const after = await step("drives.list()", () => sandbox.drives.list());
  check(
    after.some((mount) => mount.driveName === drive && mount.mountPath === "/workspace"),
    "the mount is listed",
  );
}

try {
  await main();
  console.log("Everything is as it should be.");
} catch (error) {
  console.error("It is not:", error);
  process.exitCode = 1;
} finally {
  await SandboxInstance.delete(name).catch(() => {});
  await DriveInstance.delete(drive).catch(() => {});
}
process.exit();
