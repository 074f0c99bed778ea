/**
 * Calls everything that the published Agentuity client offers for sandboxes, and prints the outcome of each call as its
 * last line. The methods are looked up in the client itself; a method without a case here is reported.
 */
import { Readable } from "node:stream";
import { APIClient, createMinimalLogger } from "@agentuity/core";

const core = await import("@agentuity/core/sandbox");

const url = process.env.AGENTUITY_SANDBOX_URL;
const api = new APIClient(url, createMinimalLogger(), process.env.AGENTUITY_SDK_KEY, { maxRetries: 0 });
const client = new core.SandboxClient();

const box = await client.create({ name: "surface" });
const id = box.id;
const connected = await client.connect(id);
const job = await client.createJob(id, { command: ["sleep", "600"] });
const checkpoint = await client.createDiskCheckpoint(id, "surface");

const at = { sandboxId: id };
const file = (path, text = "text") => ({ path, content: Buffer.from(text) });
const textOf = async (stream) => new Response(stream).text();
const isLive = async (sandboxId) =>
  (await client.list()).sandboxes.some((each) => each.sandboxId === sandboxId);
const fresh = async () => (await client.create()).id;
const jobOf = async (command = ["sleep", "600"]) => (await client.createJob(id, { command })).id;
let names = 0;
const point = async () => (await client.createDiskCheckpoint(id, `point-${++names}`)).id;
const pointsLeft = async (which) => (await client.listDiskCheckpoints(id)).some((each) => each.id === which);
const execution = async () => (await box.execute({ command: ["sh", "-c", "echo out"] })).executionId;

/** Returns the output of a command in the sandbox: effects are verified there, not by the response. */
const outputOf = async (command) => {
  const { exitCode, executionId } = await box.execute({ command: ["sh", "-c", command] });
  const { stdoutStreamUrl } = await client.getExecution(executionId);
  return `${(await (await fetch(stdoutStreamUrl)).text()).trim()} ${exitCode}`;
};
const isThere = async (path) => (await outputOf(`test -e ${path}`)) === " 0";

/** Each case returns whether the method works; `differs` describes a difference that its user should know. */
const FILES = {
  writeFiles: async (write, read) => (await write([file("w")])) === 1 && (await read("w")) === "text",
};
const ENV = "returns the variables of this call; variables that were set earlier are not returned";
const LIST = "path is the entry's name; not recursive";

const instance = (which, destroyed) => ({
  execute: async () => (await which.execute({ command: ["sh", "-c", "exit 3"] })).exitCode === 3,
  writeFiles: () =>
    FILES.writeFiles(
      (files) => which.writeFiles(files),
      async (path) => textOf(await which.readFile(path)),
    ),
  readFile: async () =>
    (await which.writeFiles([file("r")])) === 1 && (await textOf(await which.readFile("r"))) === "text",
  listFiles: [async () => (await which.listFiles("/")).some(({ path }) => path === "etc"), LIST],
  mkDir: async () =>
    (await which.mkDir("m/d", true)) === undefined && (await which.listFiles("m")).length === 1,
  rmFile: async () =>
    (await which.writeFiles([file("f")])) === 1 && (await which.rmFile("f")).found && !(await isThere("f")),
  rmDir: async () =>
    (await which.mkDir("x/y", true)) === undefined &&
    (await which.rmDir("x", true)).found &&
    !(await isThere("x")),
  setEnv: [
    async () => {
      const value = `of ${destroyed}`;
      return (
        (await which.setEnv({ SET: value })).SET === value && (await outputOf("echo $SET")) === `${value} 0`
      );
    },
    ENV,
  ],
  get: async () => (await which.get()).sandboxId === id,
  pause: [
    async () => (await which.pause()).status === "suspended" && (await which.get()).status === "suspended",
    "suspends to standby",
  ],
  resume: async () => (await which.resume()) === undefined && (await which.get()).status === "idle",
  destroy: async () => {
    const other = await client[destroyed](destroyed === "create" ? {} : await fresh());
    return (await other.destroy()) === undefined && !(await isLive(other.id));
  },
});

const cases = {
  SandboxClient: {
    run: [
      async () =>
        (await client.run({ command: { exec: ["cat"] } }, { stdin: Readable.from([Buffer.from("in")]) }))
          .stdout === "in",
      "stdin needs AGENTUITY_STREAM_URL",
    ],
    create: async () => isLive(await fresh()),
    get: async () => (await client.get(id)).name === "surface",
    destroy: async () => {
      const other = await fresh();
      return (await client.destroy(other)) === undefined && !(await isLive(other));
    },
    writeFiles: () =>
      FILES.writeFiles(
        (files) => client.writeFiles(id, files),
        async (path) => textOf(await client.readFile(id, path)),
      ),
    readFile: async () => (await textOf(await client.readFile(id, "/etc/hostname"))).length > 0,
    connect: async () => (await client.connect("surface")).id === id,
    pause: [async () => (await client.pause(id)).status === "suspended", "suspends to standby"],
    resume: async () => (await client.resume(id)) === undefined && (await client.get(id)).status === "idle",
    list: async () => (await client.list({ name: "surface" })).total === 1,
    listRuntimes: [
      async () => (await client.listRuntimes()).runtimes.some(({ name }) => name === "host"),
      "lists images",
    ],
    createJob: async () => (await jobOf()).startsWith("job_"),
    getJob: async () => (await client.getJob(id, job.id)).id === job.id,
    listJobs: async () => (await client.listJobs(id)).jobs.some(({ jobId }) => jobId === job.id),
    createDiskCheckpoint: [
      async () => (await point()).startsWith("ckp_"),
      "includes memory if the host supports it",
    ],
    listDiskCheckpoints: () => pointsLeft(checkpoint.id),
    getDiskCheckpoint: async () => (await client.getDiskCheckpoint(id, checkpoint.id)).name === "surface",
    createSnapshot: () => client.createSnapshot(id),
    getSnapshot: () => client.getSnapshot("snp_1"),
    listSnapshots: () => client.listSnapshots(),
    deleteSnapshot: () => client.deleteSnapshot("snp_1"),
    tagSnapshot: () => client.tagSnapshot("snp_1", "tag"),
    getSnapshotLineage: () => client.getSnapshotLineage({ snapshot: "snp_1" }),
    getExecution: async () => (await client.getExecution(await execution(), "5m")).status === "completed",
    listExecutions: async () => (await client.listExecutions(id, 1)).executions.length === 1,
    listEvents: async () => (await client.listEvents(id)).events[0].type === "sandbox.created",
  },
  "create()": instance(box, "create"),
  "connect()": instance(connected, "connect"),
  "createJob()": {
    get: async () => (await job.get()).status === "running",
    stop: async () => (await (await client.getJob(id, await jobOf())).stop()).status === "cancelled",
  },
  "getJob()": {
    get: async () => (await (await client.getJob(id, job.id)).get()).jobId === job.id,
    stop: async () => (await (await client.getJob(id, await jobOf())).stop(true)).status === "cancelled",
  },
  "createDiskCheckpoint()": {
    restore: () => checkpoint.restore(),
    delete: async () => {
      const other = await client.createDiskCheckpoint(id, "deleted");
      return (await other.delete()) === undefined && !(await pointsLeft(other.id));
    },
  },
  "getDiskCheckpoint()": {
    restore: async () => (await client.getDiskCheckpoint(id, checkpoint.id)).restore(),
    delete: async () => {
      const other = await client.getDiskCheckpoint(id, await point());
      return (await other.delete()) === undefined && !(await pointsLeft(other.id));
    },
  },
  core: {
    cliSandboxList: async () => (await core.cliSandboxList(api, { name: "surface" })).total === 1,
    sandboxCreate: async () => isLive((await core.sandboxCreate(api, {})).sandboxId),
    sandboxDestroy: async () => {
      const sandboxId = await fresh();
      return (await core.sandboxDestroy(api, { sandboxId })) === undefined && !(await isLive(sandboxId));
    },
    diskCheckpointCreate: async () =>
      (await core.diskCheckpointCreate(api, { ...at, name: "core" })).name === "core",
    diskCheckpointList: async () => (await core.diskCheckpointList(api, at)).length > 0,
    diskCheckpointRestore: () => core.diskCheckpointRestore(api, { ...at, checkpointId: checkpoint.id }),
    diskCheckpointDelete: async () => {
      const checkpointId = await point();
      await core.diskCheckpointDelete(api, { ...at, checkpointId });
      return !(await pointsLeft(checkpointId));
    },
    sandboxPause: async () => (await core.sandboxPause(api, at)).status === "suspended",
    sandboxResume: async () => {
      await client.pause(id);
      return (await core.sandboxResume(api, at)) === undefined && (await client.get(id)).status === "idle";
    },
    sandboxExecute: async () => {
      await client.pause(id);
      const { autoResumed } = await core.sandboxExecute(api, { ...at, options: { command: ["true"] } });
      return autoResumed === true;
    },
    executionGet: async () =>
      (await core.executionGet(api, { executionId: await execution(), wait: "5s" })).exitCode === 0,
    executionList: async () => (await core.executionList(api, at)).executions.length > 0,
    jobCreate: async () => {
      const options = { command: ["sh", "-c", "echo job > of-a-job; sleep 600"] };
      const { jobId } = await core.jobCreate(api, { ...at, options });
      const wrote = await outputOf("until test -s of-a-job; do sleep 0.1; done; cat of-a-job");
      return jobId.startsWith("job_") && wrote === "job 0";
    },
    jobGet: async () => (await core.jobGet(api, { ...at, jobId: job.id })).jobId === job.id,
    jobList: async () => (await core.jobList(api, at)).jobs.length > 0,
    jobStop: async () =>
      (await core.jobStop(api, { ...at, jobId: await jobOf(), force: true })).status === "cancelled",
    sandboxEventList: async () =>
      (await core.sandboxEventList(api, { ...at, direction: "desc" })).events.length > 0,
    sandboxDownloadArchive: [
      async () =>
        (await new Response(await core.sandboxDownloadArchive(api, at)).arrayBuffer()).byteLength > 20,
      "tar.gz; zip is a 501",
    ],
    sandboxUploadArchive: [
      async () => {
        await client.writeFiles(id, [file("archived", "text")]);
        const archive = new Uint8Array(
          await new Response(await core.sandboxDownloadArchive(api, at)).arrayBuffer(),
        );
        await core.sandboxUploadArchive(api, { ...at, archive, path: "copy" });
        return (await textOf(await client.readFile(id, "copy/archived"))) === "text";
      },
      "tar.gz or tar; zip is a 501",
    ],
    sandboxListFiles: [async () => (await core.sandboxListFiles(api, at)).files.length > 0, LIST],
    sandboxMkDir: async () =>
      (await core.sandboxMkDir(api, { ...at, path: "c/d", recursive: true })) === undefined && isThere("c/d"),
    sandboxReadFile: async () =>
      (await textOf(await core.sandboxReadFile(api, { ...at, path: "/etc/hostname" }))).length > 0,
    sandboxRmDir: async () => {
      await client.writeFiles(id, [file("g/h")]);
      const remove = () => core.sandboxRmDir(api, { ...at, path: "g", recursive: true });
      return (await remove()).found && !(await isThere("g")) && !(await remove()).found;
    },
    sandboxRmFile: async () => {
      await client.writeFiles(id, [file("g")]);
      const remove = () => core.sandboxRmFile(api, { ...at, path: "g" });
      return (await remove()).found && !(await isThere("g")) && !(await remove()).found;
    },
    sandboxSetEnv: [
      async () => {
        await core.sandboxSetEnv(api, { ...at, env: { A: "0", B: "0" } });
        const { env } = await core.sandboxSetEnv(api, { ...at, env: { A: "1", B: null } });
        return env.A === "1" && !("B" in env) && (await outputOf("echo $A $B")) === "1 0";
      },
      ENV,
    ],
    sandboxWriteFiles: async () =>
      (await core.sandboxWriteFiles(api, { ...at, files: [file("written")] })).filesWritten === 1 &&
      (await outputOf("cat written")) === "text 0",
    sandboxGet: async () =>
      (await core.sandboxGet(api, { ...at, waitForStatus: "idle", waitMs: 5_000 })).status === "idle",
    sandboxGetStatus: async () =>
      (await core.sandboxGetStatus(api, { ...at, waitForStatus: ["idle"], waitMs: 5_000 })).status === "idle",
    sandboxList: async () => (await core.sandboxList(api, { limit: 1 })).sandboxes.length === 1,
    sandboxResolve: async () => (await core.sandboxResolve(api, id)).name === "surface",
    sandboxRun: async () =>
      (await core.sandboxRun(api, { options: { command: { exec: ["sh", "-c", "exit 9"] } } })).exitCode === 9,
    runtimeList: async () => (await core.runtimeList(api)).total > 0,
    snapshotBuildFinalize: () =>
      core.snapshotBuildFinalize(api, { snapshotId: "snp_1", sizeBytes: 0, fileCount: 0, files: [] }),
    snapshotBuildInit: () => core.snapshotBuildInit(api, { runtime: "host" }),
    snapshotCreate: () => core.snapshotCreate(api, at),
    snapshotDelete: () => core.snapshotDelete(api, { snapshotId: "snp_1" }),
    snapshotGet: () => core.snapshotGet(api, { snapshotId: "snp_1" }),
    snapshotLineage: () => core.snapshotLineage(api, { name: "a" }),
    snapshotList: () => core.snapshotList(api),
    snapshotPublicGet: () => core.snapshotPublicGet(api, { snapshotRef: "@org/a:1" }),
    snapshotPublicList: () => core.snapshotPublicList(api),
    snapshotTag: () => core.snapshotTag(api, { snapshotId: "snp_1", tag: null }),
    snapshotUpload: () => core.snapshotUpload(api, { snapshotId: "snp_1", body: "x", contentLength: 1 }),
    throwSandboxError: null,
    writeAndDrain: null,
  },
};

/** Returns everything that can be called, by type: methods of prototypes, and functions of objects themselves. */
function methodsOf(value) {
  const names = new Set(Object.keys(value));
  for (
    let kind = Object.getPrototypeOf(value);
    kind && kind !== Object.prototype;
    kind = Object.getPrototypeOf(kind)
  )
    for (const name of Object.getOwnPropertyNames(kind)) names.add(name);
  names.delete("constructor");
  return [...names].filter((name) => typeof value[name] === "function");
}
const exported = Object.keys(core).filter((name) => typeof core[name] === "function" && !/^[A-Z]/.test(name));
const surface = {
  SandboxClient: methodsOf(client),
  "create()": methodsOf(box),
  "connect()": methodsOf(connected),
  "createJob()": methodsOf(job),
  "getJob()": methodsOf(await client.getJob(id, job.id)),
  "createDiskCheckpoint()": methodsOf(checkpoint),
  "getDiskCheckpoint()": methodsOf(await client.getDiskCheckpoint(id, checkpoint.id)),
  core: exported,
};
/** Members without a case above, so that new ones are noticed. */
const classes = Object.keys(core).filter((name) => typeof core[name] === "function" && /^[A-Z]/.test(name));

/** Returns the reason of a refusal, without the parts that differ from call to call. */
const reasonIn = (text) =>
  /Not supported by Holdfast: (.*?)\s*\(not_supported/
    .exec(text)?.[1]
    ?.replaceAll(/\b(sbx|ckp)_[a-z0-9]{16}\b/g, ":id")
    .replace(/^(GET|POST|PUT|PATCH|DELETE) \S+\. /, "") ?? text;

async function find(type, method, given) {
  if (given === null) return { type, method, outcome: "not applicable", note: "makes no request" };
  const [call, note] = Array.isArray(given) ? given : [given];
  try {
    const result = await call();
    if (result !== true) throw new Error(`it answered ${JSON.stringify(result)}`);
    return { type, method, outcome: "works", ...(note ? { note } : {}) };
  } catch (error) {
    const status = error.status ?? Number(/: (\d{3}) \{/.exec(error.message)?.[1]);
    if (status === 501 || /not_supported, req_/.test(error.message))
      return { type, method, outcome: "501", note: reasonIn(error.message) };
    return { type, method, outcome: "failed", note: `${error._tag ?? error.name}: ${error.message}` };
  }
}

const findings = [];
const missing = [];
for (const [type, methods] of Object.entries(surface)) {
  for (const method of methods) {
    const given = cases[type]?.[method];
    if (given === undefined) missing.push(`${type}.${method}`);
    else findings.push(await find(type, method, given));
  }
}
const known = Object.entries(cases).flatMap(([type, methods]) =>
  Object.keys(methods).map((method) => `${type}.${method}`),
);
const found = new Set(
  Object.entries(surface).flatMap(([type, methods]) => methods.map((method) => `${type}.${method}`)),
);
console.log(
  JSON.stringify({ findings, missing, surplus: known.filter((name) => !found.has(name)), classes }),
);
process.exit();
