/**
 * Runs one scenario with the published Agentuity client in a separate process. The result is the last printed line.
 *
 *   node agentuity-client.mjs <scenario> <arguments as JSON>
 */
import { createHash, randomBytes } from "node:crypto";
import { get } from "node:http";
import { Readable, Writable } from "node:stream";
import { APIClient, createMinimalLogger } from "@agentuity/core";
import * as sandbox from "@agentuity/core/sandbox";

const [scenario, given = "{}"] = process.argv.slice(2);
const options = JSON.parse(given);
const url = process.env.AGENTUITY_SANDBOX_URL;
const client = new sandbox.SandboxClient();
/** The options of `SandboxClient`; `patienceMs` limits its retries of unavailable requests. */
const api = ({ patienceMs = 30_000 } = {}) =>
  new APIClient(url, createMinimalLogger(), process.env.AGENTUITY_SDK_KEY, {
    maxRetries: 0,
    serviceUnavailableTimeoutMs: patienceMs,
  });

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const digest = (data) => createHash("sha256").update(data).digest("hex");
const bytesOf = async (stream) => Buffer.from(await new Response(stream).arrayBuffer());
const textOf = async (stream) => (await bytesOf(stream)).toString();

/** A stream that collects the bytes piped to it. */
function sink() {
  const chunks = [];
  const stream = new Writable({
    write(chunk, _encoding, done) {
      chunks.push(chunk);
      done();
    },
  });
  return { stream, bytes: () => Buffer.concat(chunks), text: () => Buffer.concat(chunks).toString() };
}

/** Runs a command and returns its output and outcome. */
async function ran(box, command, more = {}) {
  const [out, err] = [sink(), sink()];
  const { status, exitCode } = await box.execute({
    command,
    ...more,
    pipe: { stdout: out.stream, stderr: err.stream },
  });
  return { status, exitCode, stdout: out.text(), stderr: err.text() };
}
const sh = (box, command, more) => ran(box, ["sh", "-c", command], more);

async function attempt(work) {
  const begun = Date.now();
  try {
    return { value: (await work()) ?? null };
  } catch (error) {
    const { _tag: tag, name, status, message } = error;
    return { thrown: { tag: tag ?? name, status, message }, ms: Date.now() - begun };
  }
}

const scenarios = {
  async lifecycle({ name }) {
    const metadata = { team: "a", nested: { list: [1, "ü"] } };
    const box = await client.create({
      name,
      description: "a sandbox",
      metadata,
      env: { GREETING: "hello" },
      resources: { memory: "512Mi", cpu: "500m" },
      timeout: { idle: "10m", execution: "1h" },
      files: [{ path: "given.txt", content: Buffer.from("given") }],
    });
    const info = await client.get(box.id);
    const again = await attempt(() => client.create({ name }));
    const connected = await client.connect(name);
    const env = await sh(connected, "echo $GREETING; cat given.txt; pwd; id -u");
    const set = await box.setEnv({ GREETING: null, OTHER: "set" });
    const changed = await sh(box, 'echo "[$GREETING] $OTHER"');
    const listed = await client.list({ name });
    const resolved = await sandbox.sandboxResolve(api(), box.id);
    const rows = await sandbox.cliSandboxList(api(), { name });
    const states = [box.status];
    states.push((await box.pause()).status, (await box.get()).status);
    await box.resume();
    states.push((await box.get()).status);
    await box.destroy();
    const gone = await attempt(() => client.get(box.id));
    const deleted = await sandbox.sandboxGet(api(), { sandboxId: box.id, includeDeleted: true });
    const late = await attempt(() => box.execute({ command: ["true"] }));
    const nobody = await attempt(() => client.get("no-such-sandbox"));
    const noCommand = await attempt(() =>
      sandbox.sandboxExecute(api(), { sandboxId: "no-such-sandbox", options: { command: ["true"] } }),
    );
    return {
      ...{ id: box.id, info, again, connected: connected.id, env, set, changed, states },
      ...{ listed, resolved, rows, gone, deleted: deleted.status, late, nobody, noCommand },
    };
  },

  async commands({ name }) {
    const box = await client.create({ name });
    const both = await sh(box, "echo out; echo err >&2; exit 3");
    const missing = await ran(box, ["no-such-program"]);
    const late = await ran(box, ["sleep", "60"], { timeout: "300ms" });
    const files = [{ path: "in/script.sh", content: Buffer.from("echo from the file\n") }];
    const withFile = await ran(box, ["sh", "in/script.sh"], { files });
    const large = sink();
    await box.execute({
      command: ["sh", "-c", "seq 1 400000"],
      pipe: { stdout: large.stream },
    });
    const quiet = await sandbox.sandboxExecute(api(), {
      sandboxId: box.id,
      options: { command: ["sh", "-c", "echo later"], stream: { stderr: "ignore", timestamps: false } },
    });
    const polled = await client.getExecution(quiet.executionId, "60s");
    const streamed = await textOf((await fetch(polled.stdoutStreamUrl)).body);
    const controller = new AbortController();
    const left = attempt(() =>
      box.execute({ command: ["sh", "-c", "sleep 2; echo survived > left"], signal: controller.signal }),
    );
    await pause(700);
    controller.abort();
    const { executions } = await client.listExecutions(box.id);
    const goesOn = executions.find(({ command }) => command?.join(" ").includes("survived"));
    const wentOn = await client.getExecution(goesOn.executionId, "30s");
    const unknown = await attempt(() => client.getExecution("exe_nobody"));
    const counted = (await client.listExecutions(box.id, 2)).executions.length;
    await box.destroy();
    return {
      ...{ both, missing, late, withFile, large: digest(large.bytes()), streamed, counted, unknown },
      ...{ polled: polled.status, hasErr: quiet.stderrStreamUrl !== undefined },
      ...{ left: await left, wentOn: [wentOn.status, wentOn.exitCode] },
    };
  },

  async files({ name }) {
    const box = await client.create({ name });
    const data = randomBytes(1_500_000);
    const written = await box.writeFiles([
      { path: "a/one.txt", content: Buffer.from("one") },
      { path: "/tmp/two.bin", content: data },
      { path: "empty", content: Buffer.alloc(0) },
    ]);
    const read = await textOf(await box.readFile("a/one.txt"));
    const empty = await textOf(await client.readFile(box.id, "empty"));
    const same = digest(await bytesOf(await client.readFile(box.id, "/tmp/two.bin"))) === digest(data);
    await box.mkDir("deep/er", true);
    await sh(box, "ln -s a/one.txt link");
    const listed = (await box.listFiles()).map(({ path, isDir, isSymlink, linkTarget, mode, size }) => ({
      ...{ path, isDir, isSymlink, linkTarget, mode, size: isDir ? 0 : size },
    }));
    const below = (await box.listFiles("a")).map(({ path }) => path);
    const wrong = await attempt(() => box.listFiles("no/such/directory"));
    const outside = await attempt(() => box.listFiles("../../etc"));
    const noFile = await attempt(() => box.readFile("nothing"));
    const noParent = await attempt(() => box.mkDir("x/y/z"));
    const removed = [await box.rmFile("a/one.txt"), await box.rmFile("a/one.txt")];
    const notEmpty = await attempt(() => box.rmDir("deep"));
    const notADirectory = await attempt(() => box.rmDir("empty", true));
    const emptied = [await box.rmDir("deep", true), await box.rmDir("deep", true)];
    await sh(box, "mkdir -p tree/sub; echo 1 > tree/a; echo 2 > tree/sub/b; chmod 700 tree/a");
    const archive = await bytesOf(
      await sandbox.sandboxDownloadArchive(api(), { sandboxId: box.id, path: "tree" }),
    );
    await sandbox.sandboxUploadArchive(api(), { sandboxId: box.id, path: "copy", archive });
    const copied = await sh(box, "cd copy && find . -type f -printf '%p %m\\n' | sort; cat a sub/b");
    const zip = await attempt(() =>
      sandbox.sandboxDownloadArchive(api(), { sandboxId: box.id, format: "zip" }),
    );
    await box.destroy();
    return {
      ...{ written, read, empty, same, listed, below, wrong, outside, noFile, noParent, removed },
      ...{ notEmpty, notADirectory, emptied, copied, zip },
    };
  },

  /** A job keeps counting across standby and wake, and its output stays. */
  async jobs({ name, rounds }) {
    const box = await client.create({ name });
    const job = await client.createJob(box.id, {
      command: [
        "sh",
        "-c",
        "echo $$ > pid; i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.05; done",
      ],
    });
    const count = async () => Number(await textOf(await box.readFile("count")));
    await until(async () => (await attempt(count)).value > 0);
    const seen = [];
    for (let round = 1; round <= rounds; round += 1) {
      await box.writeFiles([{ path: `round-${round}`, content: Buffer.from(`${round}`) }]);
      const { status } = await box.pause();
      const asleep = { box: (await box.get()).status, job: (await job.get()).status };
      const before = await count();
      if (round % 2 === 0) await box.resume();
      const woken = await sandbox.sandboxExecute(api(), {
        sandboxId: box.id,
        options: { command: ["sh", "-c", "kill -0 $(cat pid)"] },
      });
      const alive = await client.getExecution(woken.executionId, "30s");
      await until(async () => (await count()) > before);
      seen.push({ status, asleep, autoResumed: woken.autoResumed ?? false, alive: alive.exitCode });
    }
    const kept = (await box.listFiles()).map(({ path }) => path).filter((path) => path.startsWith("round-"));
    const stopped = await job.stop();
    const brief = await client.createJob(box.id, { command: ["sh", "-c", "exit 2"] });
    await until(async () => (await brief.get()).status !== "running");
    const stubborn = await client.createJob(box.id, {
      command: ["sh", "-c", "trap '' TERM; sleep 60 & wait"],
    });
    const forced = await (await client.getJob(box.id, stubborn.id)).stop(true);
    const listed = (await client.listJobs(box.id)).jobs.map(({ jobId, status }) => [jobId, status]);
    const executions = (await client.listExecutions(box.id)).executions.map(({ executionId }) => executionId);
    const { events } = await client.listEvents(box.id, { limit: 1000 });
    const [last] = (await client.listEvents(box.id, { limit: 1, direction: "desc" })).events;
    await box.destroy();
    return {
      ...{
        seen,
        kept,
        stopped: stopped.status,
        forced: forced.status,
        failed: (await attempt(() => brief.get())).thrown,
      },
      ...{ ids: [job.id, brief.id, stubborn.id], listed, executions },
      ...{ events: events.map(({ type }) => type), last: last.type, sorted: isSorted(events) },
    };
  },

  async checkpoints({ name }) {
    const box = await client.create({ name });
    await sh(box, "echo before > state");
    const made = await client.createDiskCheckpoint(box.id, "first");
    await sh(box, "echo after > state");
    const listed = await client.listDiskCheckpoints(box.id);
    const found = await client.getDiskCheckpoint(box.id, made.id);
    const again = await attempt(() => client.createDiskCheckpoint(box.id, "first"));
    const restored = await attempt(() => found.restore());
    const fork = await client.create({ snapshot: made.id });
    const state = await sh(fork, "cat state");
    await fork.destroy();
    await found.delete();
    const left = await client.listDiskCheckpoints(box.id);
    const snapshot = await attempt(() => client.createSnapshot(box.id, { name: "s" }));
    await box.destroy();
    return {
      made: { name: made.name, parent: made.parent },
      listed: listed.map(({ name: n }) => n),
      again,
      restored,
      state,
      left,
      snapshot,
    };
  },

  /** Commands with their own sandbox, which the server deletes. */
  async oneshots() {
    const plain = await client.run({ command: { exec: ["sh", "-c", "echo out; echo err >&2; exit 4"] } });
    const fed = await client.run(
      { command: { exec: ["sh", "-c", "wc -c; echo done"] } },
      { stdin: Readable.from([Buffer.alloc(70_000, "x"), Buffer.from("end")]) },
    );
    const endless = new Readable({ read() {} });
    endless.push("first\nsecond\n");
    const unended = await client.run({ command: { exec: ["head", "-n", "1"] } }, { stdin: endless });
    const out = sink();
    const files = [{ path: "main.sh", content: Buffer.from("cat given; sleep 1; echo end") }];
    const slow = await client.run(
      {
        command: { exec: ["sh", "main.sh"], files },
        files: [{ path: "given", content: Buffer.from("given\n") }],
      },
      { stdout: out.stream },
    );
    const killed = await client.run({ command: { exec: ["sh", "-c", "kill -9 $$"] } });
    const refused = await attempt(() =>
      client.run({ command: { exec: ["true"] }, network: { enabled: true } }),
    );
    const ids = [plain, fed, unended, slow, killed].map(({ sandboxId }) => sandboxId);
    await until(async () => (await client.list()).total === 0);
    const after = await client.get(plain.sandboxId);
    const shown = ({ exitCode, stdout, stderr }) => ({ exitCode, stdout, stderr });
    return {
      ...{
        plain: shown(plain),
        fed: shown(fed),
        unended: shown(unended),
        slow: shown(slow),
        piped: out.text(),
        killed: shown(killed),
      },
      ...{ refused, ids, after: { status: after.status, exitCode: after.exitCode, mode: after.mode } },
    };
  },

  /** A server in the sandbox that can be reached by its URL without the key. */
  async port({ name }) {
    const box = await client.create({ name, network: { port: 3000 } });
    const program = "require('http').createServer((q, r) => r.end('hello from ' + q.url)).listen(3000)";
    await client.createJob(box.id, { command: ["node", "-e", program] });
    const { networkPort, url: at } = await client.get(box.id);
    const { hostname, port, pathname } = new URL(at);
    // Resolvers disagree about names below localhost, so the request connects to the server and sets the Host header.
    const ask = () =>
      new Promise((resolve, reject) => {
        const options = {
          host: "127.0.0.1",
          port,
          path: `${pathname}page`,
          headers: { host: `${hostname}:${port}` },
        };
        get(options, (answer) => resolve(textOf(Readable.toWeb(answer)))).on("error", reject);
      });
    await until(async () => (await ask()).startsWith("hello"));
    const answer = await ask();
    await box.destroy();
    return { networkPort, answer };
  },

  async waiting({ name }) {
    const box = await client.create({ name });
    const status = (waitForStatus, waitMs) =>
      sandbox.sandboxGetStatus(api(), { sandboxId: box.id, waitForStatus, waitMs });
    const { executionId } = await sandbox.sandboxExecute(api(), {
      sandboxId: box.id,
      options: { command: ["sleep", "1.5"] },
    });
    const busy = await status(["running"], 5_000);
    const idle = await status(["idle", "failed"], 60_000);
    const ended = await client.getExecution(executionId);
    const begun = Date.now();
    const never = await status("terminated", 400);
    const ms = Date.now() - begun;
    await box.destroy();
    return { busy: busy.status, idle: idle.status, ended: ended.status, never: never.status, ms };
  },

  /** Runs one command and prints only its outcome. */
  async execute({ id, command, times = 1 }) {
    const box = await client.connect(id);
    const all = await Promise.all(
      Array.from({ length: times }, () => attempt(() => box.execute({ command }))),
    );
    return all.map(
      ({ value, thrown }) =>
        (value && { status: value.status, exitCode: value.exitCode, id: value.executionId }) || { thrown },
    );
  },

  async run({ command }) {
    const { exitCode, stdout } = await client.run({ command: { exec: command } });
    return { exitCode, stdout };
  },

  async create({ body }) {
    const box = await client.create(body);
    return { id: box.id, status: box.status };
  },

  async broken({ id }) {
    const patient = api({ patienceMs: 1_500 });
    const execute = await attempt(() =>
      sandbox.sandboxExecute(patient, { sandboxId: id, options: { command: ["true"] } }),
    );
    const list = await attempt(async () =>
      (await sandbox.sandboxListFiles(patient, { sandboxId: id })).files.map(({ path }) => path),
    );
    const read = await attempt(async () =>
      new Response(await sandbox.sandboxReadFile(patient, { sandboxId: id, path: "a" })).text(),
    );
    const { status } = await client.get(id);
    const { events } = await client.listEvents(id);
    return {
      execute,
      list,
      read,
      status,
      events: events.map(({ type, event }) => ({ type, message: event.message })),
    };
  },
};

const isSorted = (events) =>
  events.every((event, at) => at === 0 || Number(event.eventId) > Number(events[at - 1].eventId));

async function until(condition) {
  for (const end = Date.now() + 30_000; !(await condition()); await pause(20))
    if (Date.now() > end) throw new Error("the condition did not come true");
}

console.log(JSON.stringify(await scenarios[scenario](options)));
process.exit();
