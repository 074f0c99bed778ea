/**
 * Runs one scenario with one published version of the Blaxel client in a separate process, because the client reads its
 * environment when it is imported. The result is the last printed line.
 *
 *   node blaxel-client.mjs <package> <scenario> <arguments as JSON>
 */
import { createHash, randomBytes } from "node:crypto";
import { thrownShape } from "./blaxel-thrown.mjs";

const [packageName, scenario, given = "{}"] = process.argv.slice(2);
const { SandboxInstance, DriveInstance, ...client } = await import(packageName);
const options = JSON.parse(given);
const { HOLDFAST_URL, HOLDFAST_API_KEY } = process.env;

const digest = (data) => createHash("sha256").update(data).digest("hex");
const bytesOf = async (blob) => Buffer.from(await blob.arrayBuffer());
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Calls Holdfast's own API, to put a sandbox in standby without the client's knowledge. */
async function holdfast(method, path) {
  const answer = await fetch(`${HOLDFAST_URL}${path}`, {
    method,
    headers: { authorization: `Bearer ${HOLDFAST_API_KEY}` },
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

/**
 * Puts a sandbox in standby. Repeated, because a call that arrives meanwhile keeps it awake, and the client's
 * connections may still be closing.
 */
async function asleep(name) {
  for (let tries = 1; ; tries += 1) {
    try {
      const { status } = await holdfast("POST", `/v1/sandboxes/${name}/standby`);
      if (status === "standby") return;
    } catch (error) {
      if (tries === 5) throw error;
    }
    await pause(50);
  }
}

async function attempt(work) {
  try {
    return { value: await work() };
  } catch (error) {
    return { thrown: thrownShape(error) };
  }
}

const scenarios = {
  /** The usual calls of a working day, each as the first call after a standby. */
  async rounds({ name, drive, rounds }) {
    const seen = [];
    const first = async (work) => {
      await asleep(name);
      return work();
    };
    const image = "blaxel/base-image:latest";
    await SandboxInstance.createIfNotExists({ name, image });
    for (let round = 1; round <= rounds; round += 1) {
      const box = await first(() => SandboxInstance.createIfNotExists({ name, image }));
      await DriveInstance.createIfNotExists({ name: drive });
      const before = await first(() => box.drives.list());
      const mounted = await first(() => box.drives.mount({ driveName: drive, mountPath: "/workspace" }));
      const after = await first(() => box.drives.list());
      const text = `round ${round} ${randomBytes(8).toString("hex")}`;
      const ran = await first(() =>
        box.process.exec({
          command: `echo '${text}' > /workspace/${round}.txt && cat /workspace/${round}.txt`,
          waitForCompletion: true,
        }),
      );
      const read = await first(() => box.fs.read(`/workspace/${round}.txt`));
      const { files } = await first(() => box.fs.ls("/workspace"));
      const listed = await first(() => box.process.list());
      seen.push({
        round,
        text,
        before: before.map(({ mountPath }) => mountPath),
        mounted: { success: mounted.success, driveName: mounted.driveName, mountPath: mounted.mountPath },
        after: after.map(({ driveName, mountPath, drivePath }) => ({ driveName, mountPath, drivePath })),
        ran: { status: ran.status, exitCode: ran.exitCode, stdout: ran.stdout },
        read,
        files: files.map((file) => file.name),
        processes: listed.length,
      });
    }
    return seen;
  },

  /** The same calls without drives. */
  async plainRounds({ name, rounds }) {
    const seen = [];
    const box = await SandboxInstance.createIfNotExists({ name, image: "blaxel/base-image:latest" });
    for (let round = 1; round <= rounds; round += 1) {
      const path = `/root/${round}.txt`;
      await asleep(name);
      const ran = await box.process.exec({ command: `echo ${round} | tee ${path}`, waitForCompletion: true });
      await asleep(name);
      const read = await box.fs.read(path);
      await asleep(name);
      const { files } = await box.fs.ls("/root");
      await asleep(name);
      await box.fs.write(path, `${round} again`);
      seen.push({ stdout: ran.stdout, read, listed: files.some((file) => file.path === path) });
    }
    return seen;
  },

  /**
   * Reproduces reported failures: concurrent rounds right after a mount, and rounds on sandboxes that leave standby.
   */
  async reported({ name, drive, atOnce, rounds, boxes: count }) {
    const round = async (box, file) => {
      const text = randomBytes(8).toString("hex");
      const ran = await box.process.exec({
        command: `echo ${text} > /workspace/${file}`,
        waitForCompletion: true,
      });
      const read = await box.fs.read(`/workspace/${file}`);
      const { files } = await box.fs.ls("/workspace");
      return ran.exitCode === 0 && read === `${text}\n` && files.some((each) => each.name === file);
    };
    await DriveInstance.createIfNotExists({ name: drive });
    const boxes = [];
    for (let index = 0; index < count; index += 1) {
      const box = await SandboxInstance.createIfNotExists({ name: `${name}-${index}` });
      await box.drives.mount({ driveName: drive, mountPath: "/workspace" });
      boxes.push(box);
    }
    const [one] = boxes;
    const parallel = await Promise.all(
      Array.from({ length: atOnce }, (_, index) => round(one, `parallel-${index}`)),
    );
    const woken = [];
    for (let index = 0; index < rounds; index += 1) {
      await Promise.all(boxes.map((box) => asleep(box.metadata.name)));
      woken.push(...(await Promise.all(boxes.map((box, which) => round(box, `${which}-${index}`)))));
    }
    const shared = await Promise.all(
      boxes.map(async (box) => (await box.fs.ls("/workspace")).files.map((file) => file.name).sort()),
    );
    return { parallel, woken, shared };
  },

  /** Many concurrent callers on a sandbox in standby. */
  async together({ name, callers }) {
    await SandboxInstance.createIfNotExists({ name });
    const boxes = await Promise.all(Array.from({ length: callers }, () => SandboxInstance.get(name)));
    await boxes[0].process.exec({ command: "rm -f /root/ran", waitForCompletion: true });
    await asleep(name);
    const { items } = await holdfast("GET", `/v1/sandboxes/${name}/events?limit=1000`);
    const woke = items.filter(({ type }) => type === "sandbox.woke").length;
    const outputs = await Promise.all(
      boxes.map(async (box, index) => {
        const ran = await box.process.exec({
          command: `echo ${index} >> /root/ran; echo ${index}`,
          waitForCompletion: true,
        });
        return ran.stdout;
      }),
    );
    const later = await holdfast("GET", `/v1/sandboxes/${name}/events?limit=1000`);
    return {
      outputs,
      ran: (await boxes[0].fs.read("/root/ran")).trim().split("\n"),
      wakes: later.items.filter(({ type }) => type === "sandbox.woke").length - woke,
    };
  },

  async lifecycle({ name }) {
    const made = await SandboxInstance.create({
      name,
      image: "blaxel/base-image:latest",
      memory: 512,
      ttl: "2h",
      externalId: `external-${name}`,
      envs: [{ name: "GREETING", value: "hello" }],
      labels: { team: "a", "any text, is/a:key": "ü".repeat(300) },
    });
    const again = await attempt(() => SandboxInstance.create({ name }));
    const same = await SandboxInstance.createIfNotExists({ name });
    const env = await made.process.exec({ command: 'echo "$GREETING $(id -u)"', waitForCompletion: true });
    const list = await SandboxInstance.list();
    const [listed] = (list.data ?? list).filter(({ metadata }) => metadata.name === name);
    const external = await SandboxInstance.getByExternalId?.(`external-${name}`);
    await asleep(name);
    const sleeping = await SandboxInstance.get(name);
    const removed = await SandboxInstance.delete(name);
    const gone = await attempt(() => SandboxInstance.get(name));
    const shape = ({ metadata, status, spec, sandbox }) => ({
      ...{ name: metadata.name, url: metadata.url, labels: metadata.labels, workspace: metadata.workspace },
      ...{ status, state: sandbox?.state, memory: spec.runtime.memory, image: spec.runtime.image },
      ...{ ttl: spec.runtime.ttl, expiresIn: sandbox?.expiresIn, lastUsedAt: sandbox?.lastUsedAt },
      events: sandbox?.events?.map(({ type }) => type),
    });
    return {
      made: shape(made),
      again,
      same: shape(same),
      env: env.stdout,
      listed: shape(listed),
      external: external?.metadata.name ?? null,
      sleeping: shape(sleeping),
      removed: { name: removed.metadata.name, status: removed.status },
      gone,
    };
  },

  async drives({ name, drive, other }) {
    const made = await DriveInstance.create({ name: drive, labels: { team: "a" }, displayName: "My drive" });
    const again = await attempt(() => DriveInstance.create({ name: drive }));
    const same = await DriveInstance.createIfNotExists({ name: drive });
    const listed = await DriveInstance.list();
    const box = await SandboxInstance.createIfNotExists({ name });
    const second = await SandboxInstance.create({
      name: other,
      volumes: [{ name: drive, mountPath: "/shared" }],
    });
    const mounted = await box.drives.mount({ driveName: drive, mountPath: "/data", drivePath: "/part" });
    const repeated = await box.drives.mount({ driveName: drive, mountPath: "/data", drivePath: "/part" });
    await box.fs.write("/data/a.txt", "from one");
    const seen = await second.fs.read("/shared/part/a.txt");
    const inUse = await attempt(() => DriveInstance.delete(drive));
    const unmounted = await box.drives.unmount("/data");
    const left = await box.drives.list();
    const below = await attempt(() => box.fs.read("/data/a.txt"));
    const notThere = await attempt(() => box.drives.unmount("/data"));
    await SandboxInstance.delete(other);
    const removed = await DriveInstance.delete(drive);
    const gone = await attempt(() => DriveInstance.get(drive));
    return {
      made: {
        name: made.name,
        displayName: made.displayName,
        status: made.status,
        labels: made.metadata.labels,
      },
      again,
      same: same.name,
      listed: (listed.data ?? listed).map((each) => each.name),
      ...{ mounted, repeated, seen, inUse, unmounted, left, below, notThere },
      removed: removed.status,
      gone,
    };
  },

  async processes({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    const { process: processes } = box;
    const received = { stdout: [], stderr: [], logs: [] };
    const streamed = await processes.exec({
      command: "echo one; sleep 0.3; echo two >&2; sleep 0.3; printf '\\303\\244 end'; exit 3",
      waitForCompletion: true,
      onStdout: (text) => received.stdout.push(text),
      onStderr: (text) => received.stderr.push(text),
      onLog: (text) => received.logs.push(text),
    });
    const background = await processes.exec({
      name: "ticker",
      command: "for i in 1 2 3; do echo tick $i; sleep 0.3; done",
    });
    const followed = [];
    const stream = processes.streamLogs("ticker", { onLog: (text) => followed.push(text) });
    const twice = await attempt(() => processes.exec({ name: "ticker", command: "true" }));
    const waited = await processes.wait("ticker", { interval: 100 });
    await stream.wait?.();
    const byPid = await processes.get(background.pid);
    const logs = {
      all: await processes.logs("ticker"),
      stdout: await processes.logs(background.pid, "stdout"),
      stderr: await processes.logs(background.pid, "stderr"),
    };
    const reused = await processes.exec({ name: "ticker", command: "echo another", waitForCompletion: true });
    const latest = await processes.get("ticker");
    const first = await processes.get(background.pid);
    const sleeper = await processes.exec({ name: "sleeper", command: "exec sleep 300" });
    const killed = await processes.kill(sleeper.pid);
    const afterKill = await processes.get("sleeper");
    await processes.exec({ name: "term", command: "exec sleep 300" });
    await processes.stop("term");
    const afterStop = await processes.wait("term", { interval: 100 });
    const late = await processes.exec({
      command: "echo begun; exec sleep 300",
      timeout: 1,
      waitForCompletion: true,
    });
    const cwd = await processes.exec({
      command: "pwd",
      workingDir: "/usr",
      env: { A: "b" },
      waitForCompletion: true,
    });
    const listening = await processes.exec({
      name: "server",
      command: "exec node -e 'require(\"net\").createServer().listen(4567)'",
      waitForPorts: [4567],
    });
    await processes.kill("server");
    const list = await processes.list();
    const both = await processes.exec({
      command: "echo out; sleep 0.3; echo err >&2; sleep 0.3; echo out again",
      waitForCompletion: true,
    });
    return {
      streamed: pick(streamed),
      received: {
        stdout: received.stdout.join(""),
        stderr: received.stderr.join(""),
        logs: received.logs.join(""),
      },
      background: pick(background),
      twice,
      waited: pick(waited),
      followed,
      byPid: byPid.pid === background.pid,
      logs,
      reused: { ...pick(reused), isOther: reused.pid !== background.pid },
      latest: pick(latest),
      first: pick(first),
      ...{ killed, afterKill: pick(afterKill), afterStop: pick(afterStop), late: pick(late), cwd: pick(cwd) },
      listening: pick(listening),
      list: list.map(({ name: called }) => called),
      both: both.logs,
    };
  },

  /** A process that fails and is restarted. */
  async restarts({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    const { process: processes } = box;
    const third = "echo x >> /root/runs; n=$(wc -l < /root/runs); echo run $n; [ $n -ge 3 ]";
    const begun = await processes.exec({
      name: "third time",
      command: third,
      restartOnFailure: true,
      maxRestarts: 5,
    });
    const lines = [];
    const stream = processes.streamLogs(begun.pid, { onLog: (line) => lines.push(line) });
    const taken = await attempt(() => processes.exec({ name: "third time", command: "true" }));
    const waited = await processes.wait(begun.pid, { interval: 200 });
    await stream.wait?.();
    const failing = await processes.exec({ command: "exit 3", restartOnFailure: true, maxRestarts: 1 });
    const given = await processes.wait(failing.pid, { interval: 200 });
    const again = await processes.exec({ name: "third time", command: "echo over", waitForCompletion: true });
    await processes.exec({ name: "server", command: "exec sleep 300", restartOnFailure: true });
    await processes.stop("server");
    const stopped = await processes.get("server");
    const shape = (one) => ({ ...pick(one), restarts: one.restartCount, ofMost: one.maxRestarts });
    return {
      begun: { status: begun.status, restarts: begun.restartOnFailure },
      taken,
      waited: shape(waited),
      samePid: waited.pid === begun.pid,
      byName: (await processes.get(begun.pid)).name,
      lines,
      given: shape(given),
      again: again.stdout,
      stopped: stopped.status,
      listed: (await processes.list()).filter(({ restartOnFailure }) => restartOnFailure).length,
    };
  },

  named: ({ name, command }) =>
    attempt(async () => {
      const box = await SandboxInstance.createIfNotExists({ name });
      const { status } = await box.process.exec({ name: "by name / ü", command });
      return status;
    }),

  async ended({ name }) {
    const box = await SandboxInstance.get(name);
    const { status, stdout } = await box.process.get("by name / ü");
    await box.process.kill("by name / ü");
    return { status, stdout, killed: (await box.process.get("by name / ü")).status };
  },

  /** Requests a failed sandbox again. */
  async failed({ name }) {
    const box = await SandboxInstance.get(name);
    const status = ({ status: is }) => is;
    return {
      found: box.status,
      errors: box.sandbox.errors.map(({ code, fatal }) => ({ code, fatal })),
      again: await attempt(() => SandboxInstance.createIfNotExists({ name }).then(status)),
      over: await attempt(() => SandboxInstance.create({ name }).then(status)),
      ran: await attempt(() => box.process.exec({ command: "true" })),
    };
  },

  async stdin({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    const started = await box.process.exec({ name: "reader", command: "cat; echo over", stdin: true });
    await box.process.writeStdin("reader", "one\n");
    await box.process.writeStdin("reader", "two\n");
    await box.process.closeStdin("reader");
    const ended = await box.process.wait("reader", { interval: 100 });
    await box.process.closeStdin("reader");
    const late = await attempt(() => box.process.writeStdin("reader", "three\n"));
    return { started: started.status, stdout: ended.stdout, late };
  },

  /** A background process keeps running while a client waits for it, although it does not keep the sandbox awake. */
  async patience({ name, seconds }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    await box.process.exec({ name: "slow", command: `sleep ${seconds}; echo done` });
    const ended = await box.process.wait("slow", { maxWait: (seconds + 20) * 1_000 });
    return { status: ended.status, stdout: ended.stdout };
  },

  async files({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    const { fs } = box;
    const small = randomBytes(100_000);
    const large = randomBytes(12 * 1_048_576 + 17);
    const odd = "/root/dir with space/ü ?#%41+&.txt";
    await fs.write("/root/a.txt", "täxt\n");
    await fs.write(odd, "odd");
    await fs.write("/root/empty.txt", "");
    await fs.write("root/relative.txt", "relative");
    await fs.mkdir("/root/made/deep", "0700");
    await fs.writeBinary("/root/small.bin", small);
    await fs.writeBinary("/root/large.bin", large);
    const text = "0123456789abcdef".repeat(400_000);
    await fs.write("/root/large.txt", text);
    const tree = await fs.writeTree(
      [
        { path: "src/main.js", content: "const needle = 1;\n" },
        { path: "src/deep/other.js", content: "// Needle\n// none\n" },
        { path: ".hidden/x.js", content: "needle\n" },
        { path: "node_modules/y.js", content: "needle\n" },
      ],
      "/root/tree",
    );
    await fs.cp("/root/a.txt", "/root/copy.txt");
    const listing = await fs.ls("/root");
    const uploads = await attempt(() => fs.ls("/var/tmp/.blaxel-uploads"));
    await fs.rm("/root/copy.txt");
    const removed = await attempt(() => fs.read("/root/copy.txt"));
    const full = await attempt(() => fs.rm("/root/tree"));
    const mode = await box.process.exec({
      command: "stat -c %a:%U /root/a.txt /root/made/deep",
      waitForCompletion: true,
    });
    const answer = {
      text: await fs.read("/root/a.txt"),
      odd: await fs.read(odd),
      empty: await fs.read("/root/empty.txt"),
      emptyBinary: (await bytesOf(await fs.readBinary("/root/empty.txt"))).length,
      relative: await fs.read("/root/relative.txt"),
      small: digest(await bytesOf(await fs.readBinary("/root/small.bin"))) === digest(small),
      large: digest(await bytesOf(await fs.readBinary("/root/large.bin"))) === digest(large),
      largeText: (await fs.read("/root/large.txt")) === text,
      listing: {
        path: listing.path,
        files: listing.files.map((file) => file.name).sort(),
        directories: listing.subdirectories.map((directory) => directory.path).sort(),
        a: listing.files.find((file) => file.name === "a.txt"),
      },
      tree: tree.subdirectories.map((directory) => directory.name).sort(),
      uploads: uploads.value?.subdirectories ?? [],
      ...{ removed, full, mode: mode.stdout },
    };
    await fs.rm("/root/tree", true);
    return { ...answer, treeGone: await attempt(() => fs.ls("/root/tree")) };
  },

  async searches({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    await box.fs.writeTree(
      [
        { path: "src/main.js", content: "const needle = 1;\n" },
        { path: "src/deep/other.ts", content: "// Needle\n// none\n" },
        { path: ".hidden/x.js", content: "needle\n" },
        { path: "node_modules/y.js", content: "needle\n" },
      ],
      "/root/tree",
    );
    const sorted = ({ matches }) => matches.map(({ path }) => path).sort();
    const insensitive = await box.fs.grep("needle", "/root/tree");
    const sensitive = await box.fs.grep("needle", "/root/tree", { caseSensitive: true, filePattern: "*.js" });
    return {
      all: sorted(await box.fs.find("/root/tree", { maxResults: 100 })),
      js: sorted(await box.fs.find("/root/tree", { patterns: ["*.js"] })),
      hidden: sorted(await box.fs.find("/root/tree", { patterns: ["*.js"], excludeHidden: false })),
      directories: sorted(await box.fs.find("/root/tree", { type: "directory" })),
      one: (await box.fs.find("/root/tree", { maxResults: 1 })).matches.length,
      insensitive: insensitive.matches.map(({ path, line, column }) => `${path}:${line}:${column}`).sort(),
      sensitive: sensitive.matches.map(({ path, text }) => `${path}: ${text}`),
      fuzzy: await attempt(() => box.fs.search("main", "/root/tree")),
    };
  },

  async watch({ name }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    await box.fs.mkdir("/root/watched/below");
    const seen = [];
    const failed = [];
    const onError = (error) => failed.push(String(error));
    const watching = box.fs.watch("/root/watched/**", (change) => seen.push(change), {
      ignore: ["skip"],
      onError,
    });
    for (let tries = 0; seen.length < 2 && tries < 50; tries += 1) {
      await box.fs.write("/root/watched/below/skip.txt", "x");
      await box.fs.write("/root/watched/below/new.txt", "x");
      await pause(100);
    }
    watching.close();
    return { seen, failed };
  },

  async bad({ name, drive }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    const nobody = new SandboxInstance({ metadata: { name: "nobody" }, spec: {} });
    const table = {
      "an unknown sandbox": () => SandboxInstance.get("nobody"),
      "a command in an unknown sandbox": () => nobody.process.exec({ command: "true" }),
      "a file of an unknown sandbox": () => nobody.fs.read("/etc/hostname"),
      "the mounts of an unknown sandbox": () => nobody.drives.list(),
      "an unknown image": () => SandboxInstance.create({ name: "other", image: "nobody/knows:it" }),
      "a bad name": () => SandboxInstance.create({ name: "Not A Name" }),
      "a taken name": () => SandboxInstance.create({ name }),
      "a duration that is none": () => SandboxInstance.create({ name: "other", ttl: "soon" }),
      "too little memory": () => SandboxInstance.create({ name: "other", memory: 1 }),
      "ports at create that are not TCP": () =>
        SandboxInstance.create({ name: "other", ports: [{ target: 80, protocol: "UDP" }] }),
      "a network at create": () => SandboxInstance.create({ name: "other", network: { subnet: "x" } }),
      "idle expiry after no duration": () =>
        SandboxInstance.create({
          name: "other",
          lifecycle: { expirationPolicies: [{ type: "ttl-idle", value: "soon", action: "delete" }] },
        }),
      "an unknown drive": () => DriveInstance.get("nowhere"),
      "mounting an unknown drive": () => box.drives.mount({ driveName: "nowhere", mountPath: "/data" }),
      "a volume that is no drive": () =>
        SandboxInstance.create({ name: "other", volumes: [{ name: "nowhere", mountPath: "/data" }] }),
      "a volume that lasts no longer than the sandbox": () =>
        SandboxInstance.create({
          name: "other",
          volumes: [{ name: "x", mountPath: "/data", type: "ephemeral", sizeMb: 10 }],
        }),
      "a path that leads up": () => box.fs.read("/root/../etc/shadow"),
      "a path of the keeper's": () => box.fs.read("/.holdfast/keeper"),
      "a file that is not there": () => box.fs.read("/root/nothing"),
      "a directory that is not there": () => box.fs.ls("/root/nothing"),
      "a directory where a file is": () => box.fs.write("/root", "x"),
      "permissions that are none": () => box.fs.mkdir("/root/x", "rwx"),
      "an unknown process": () => box.process.get("nothing"),
      "logs of an unknown process": () => box.process.logs("nothing"),
      "killing an unknown process": () => box.process.kill("nothing"),
      "a directory to run in that is not there": () =>
        box.process.exec({ command: "true", workingDir: "/nowhere", waitForCompletion: true }),
      "a variable that can't be one": () => box.process.exec({ command: "true", env: { "a b": "c" } }),
      "restarts that are waited for": () =>
        box.process.exec({ command: "true", restartOnFailure: true, waitForCompletion: true }),
      "how long a deleted sandbox is kept": () =>
        SandboxInstance.updateLifecycle(name, { terminatedRetention: "1h" }),
      "a preview of no port": () => box.previews.create({ metadata: { name: "p" }, spec: { port: 99_999 } }),
      "a preview with a URL of one's own": () =>
        box.previews.create({ metadata: { name: "p" }, spec: { port: 3000, prefixUrl: "mine" } }),
      "an unknown preview": () => box.previews.get("nothing"),
      "a session with headers": () => box.sessions.create({ responseHeaders: { a: "b" } }),
      "a session that is over": () => box.sessions.create({ expiresAt: new Date(0) }),
      "a volume from a template": () =>
        client.VolumeInstance.create({ name: "v", size: 64, template: "mine:1" }),
      "code generation": () => box.codegen.reranking("/", "x"),
      "upgrading it": () => box.system?.upgrade() ?? box.codegen.fastapply("/a", "b"),
    };
    if (drive) {
      await DriveInstance.createIfNotExists({ name: drive });
      await DriveInstance.createIfNotExists({ name: `${drive}-2` });
      await box.drives.mount({ driveName: drive, mountPath: "/taken" });
      const other = `${drive}-2`;
      table["another drive at the same path"] = () =>
        box.drives.mount({ driveName: other, mountPath: "/taken" });
      table["a mount within a mount"] = () =>
        box.drives.mount({ driveName: other, mountPath: "/taken/below" });
      table["a mount that leads up"] = () => box.drives.mount({ driveName: other, mountPath: "/a/../b" });
      table["a mount over the root"] = () => box.drives.mount({ driveName: other, mountPath: "/" });
      table["a taken drive name"] = () => DriveInstance.create({ name: drive });
      table["a drive that is mounted"] = () => DriveInstance.delete(drive);
    }
    const answers = {};
    for (const [what, work] of Object.entries(table)) answers[what] = await attempt(work);
    return answers;
  },

  /** Calls with an unknown key. */
  async stranger({ name }) {
    const box = new SandboxInstance({ metadata: { name }, spec: {} });
    return {
      control: await attempt(() => SandboxInstance.get(name)),
      data: await attempt(() => box.process.exec({ command: "true" })),
      drives: await attempt(() => box.drives.list()),
    };
  },
};

const pick = ({ status, exitCode, stdout, stderr, logs, command, name, workingDir, completedAt }) => ({
  ...{ status, exitCode, stdout, stderr, logs, command, name, workingDir },
  isCompleted: completedAt !== "",
});

const result = await scenarios[scenario](options);
process.stdout.write(`\n${JSON.stringify(result)}\n`);
process.exit(0);
