/**
 * An agent's session with the published Agentuity client: it creates a sandbox, writes a program, starts a job in the
 * background, pauses the sandbox, and finds everything unchanged afterwards.
 *
 *     npm install @agentuity/core
 *     HOLDFAST_URL=http://127.0.0.1:4750 HOLDFAST_API_KEY=$(sudo cat /var/lib/holdfast/admin.key) node agentuity-session.mjs
 *
 * Exits with 0 if every step succeeded, otherwise with 1.
 */
import { Writable } from "node:stream";
import { SandboxClient } from "@agentuity/core";

const { HOLDFAST_URL = "http://127.0.0.1:4750", HOLDFAST_API_KEY = "" } = process.env;
const client = new SandboxClient({ url: `${HOLDFAST_URL}/compat/agentuity`, apiKey: HOLDFAST_API_KEY });

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

/** Runs a command and returns its exit code and piped output. */
async function output(sandbox, command) {
  const chunks = [];
  const stdout = new Writable({
    write(chunk, _encoding, done) {
      chunks.push(chunk);
      done();
    },
  });
  const { exitCode } = await sandbox.execute({ command, pipe: { stdout } });
  return { exitCode, text: Buffer.concat(chunks).toString() };
}

async function main(sandbox) {
  const ticker = "setInterval(() => require('fs').appendFileSync('ticks', '.'), 50);";
  await step("writeFiles() puts a program into the workspace", () =>
    sandbox.writeFiles([
      { path: "app/ticker.js", content: Buffer.from(ticker) },
      { path: "app/sum.js", content: Buffer.from("console.log([1, 2, 3].reduce((a, b) => a + b));") },
    ]),
  );
  const sum = await step("execute() runs it, and pipes its output", () =>
    output(sandbox, ["node", "app/sum.js"]),
  );
  check(sum.exitCode === 0 && sum.text === "6\n", `the sum is 6, not ${JSON.stringify(sum.text)}`);

  const job = await step("createJob() starts a background job", () =>
    client.createJob(sandbox.id, { command: ["node", "app/ticker.js"] }),
  );
  await sandbox.execute({ command: ["sh", "-c", "while [ ! -s ticks ]; do sleep 0.05; done"] });

  const { status } = await step("pause() suspends the sandbox and the job", () => sandbox.pause());
  check(status === "suspended", `the status is suspended, not ${status}`);
  const before = (await new Response(await sandbox.readFile("ticks")).text()).length;

  const woken = await step("execute() wakes the sandbox", () =>
    output(sandbox, ["sh", "-c", `while [ $(wc -c < ticks) -le ${before} ]; do sleep 0.05; done; cat ticks`]),
  );
  check(woken.text.length > before, "the job continues where it was");
  check((await job.get()).status === "running", "the job runs");
  check((await step("stop() ends the job", () => job.stop())).status === "cancelled", "the job was stopped");

  const { events } = await step("listEvents() returns the timeline", () => client.listEvents(sandbox.id));
  const types = events.map((event) => event.type);
  for (const type of ["sandbox.ready", "sandbox.standby", "sandbox.woke"])
    check(types.includes(type), `${type} is in the timeline`);
}

const sandbox = await step("create()", () => client.create({ description: "an agent's session" }));
try {
  await main(sandbox);
  console.log("Everything is as it should be.");
} catch (error) {
  console.error("It is not:", error);
  process.exitCode = 1;
} finally {
  await sandbox.destroy().catch(() => {});
}
process.exit();
