/**
 * Calls every public method that a published version of the Blaxel client has for sandboxes and drives, as found at run
 * time, against a real server. The outcomes are the last printed line; a method without a case has no outcome.
 *
 *   node blaxel-conformance.mjs <package>
 */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { surfaceOf } from "./blaxel-surface.mjs";
import { thrownShape } from "./blaxel-thrown.mjs";

const [packageName] = process.argv.slice(2);
const client = await import(packageName);
const { SandboxInstance, DriveInstance, VolumeInstance, Snapshot, CodeInterpreter } = client;

const PORT = 4600;
const JUPYTER_PORT = 8888;
/** A server that answers requests to a port, and those to a notebook's server. */
const SERVER = `
const { createServer } = require("node:http");
createServer((request, response) => response.end("hello from " + request.url)).listen(${PORT});
createServer((request, response) => {
  if (request.url === "/contexts") return response.end('{"id":"context-1"}');
  response.end('{"type":"stdout","text":"2"}\\n');
}).listen(${JUPYTER_PORT});
`;

// The client warns about every create without a region.
console.warn = () => {};

let made = 0;
/** Returns a unique name. */
const fresh = (what = "c") => `${what}-${packageName.replace("blaxel-0.", "v")}-${++made}`;
const hour = () => new Date(Date.now() + 3_600_000);
const HOUR = { expirationPolicies: [{ type: "ttl-max-age", value: "1h", action: "delete" }] };

function check(isSo, what) {
  if (!isSo) throw new Error(`it is not so that ${what}`);
}
const equal = (is, wanted) =>
  check(JSON.stringify(is) === JSON.stringify(wanted), `${JSON.stringify(is)} is ${JSON.stringify(wanted)}`);

class NotApplicable extends Error {}
const notApplicable = (why) => {
  throw new NotApplicable(why);
};
/** The method works, with a difference that a user should know. */
const noted = (note) => ({ note });

const box = await SandboxInstance.create({
  name: fresh("box"),
  image: "blaxel/base-image:latest",
  memory: 1024,
});
const name = box.metadata.name;
await box.fs.write("/root/server.js", SERVER);
await box.process.exec({
  name: "server",
  command: "exec node /root/server.js",
  waitForPorts: [PORT, JUPYTER_PORT],
});
const page = await SandboxInstance.list();

/** A sandbox that is deleted afterwards. */
const other = (given = {}) => SandboxInstance.create({ name: fresh(), ...given });
const running = async (given = {}) =>
  box.process.exec({ name: fresh("p"), command: "echo one; exec sleep 300", ...given });
const written = async (text = "text") => {
  const path = `/root/${fresh("f")}`;
  await box.fs.write(path, text);
  return path;
};
/** Returns whether the sandbox itself sees the file. */
const isMounted = async (path) =>
  (await box.process.exec({ command: `grep -q " ${path} " /proc/self/mounts`, waitForCompletion: true }))
    .exitCode === 0;
const drive = () => DriveInstance.create({ name: fresh("d"), labels: { a: "b" } });
const volume = () => VolumeInstance.create({ name: fresh("d"), size: 64 });
const preview = (spec = {}) =>
  box.previews.create({ metadata: { name: fresh("v") }, spec: { port: PORT, public: true, ...spec } });
/** Creates a snapshot, after deleting the earlier ones, because only a few may exist at a time. */
const snapshot = async () => {
  for (const each of await box.snapshots.list()) await each.delete();
  return box.snapshots.create(fresh("s"));
};
const interpreter = () =>
  CodeInterpreter.create({ name: fresh(), image: "blaxel/base-image:latest", ports: [] });
const itemsOf = (listed) => listed.data ?? listed;
const has = (listed, wanted) =>
  check(
    itemsOf(listed).some((each) => (each.metadata?.name ?? each.name) === wanted),
    `${wanted} is listed`,
  );

/** Expects the new object in the listing. */
const listsNew = async (make, list) => {
  const { name: called } = await make();
  has(await list(), called);
};

/** The result of a plain fetch, which does not throw on error statuses. */
async function answerOf(response) {
  const text = await response.text();
  if (!response.ok) throw JSON.parse(text);
  return text;
}
const call = async (method, options) => (await client[method]({ ...options, throwOnError: true })).data;
const inside = (method, options = {}) => call(method, { baseUrl: box.process.url, ...options });

const cases = {
  "SandboxInstance.create": async () => {
    const one = await other({ memory: 256, ttl: "1h", labels: { a: "b" } });
    equal([one.status, one.spec.runtime.memory, one.metadata.labels], ["DEPLOYED", 256, { a: "b" }]);
  },
  "SandboxInstance.createIfNotExists": async () => {
    equal((await SandboxInstance.createIfNotExists({ name })).metadata.name, name);
  },
  "SandboxInstance.get": async () => equal((await SandboxInstance.get(name)).metadata.name, name),
  "SandboxInstance.getByExternalId": async () => {
    const externalId = fresh("x");
    const one = await other({ externalId });
    equal((await SandboxInstance.getByExternalId(externalId)).metadata.name, one.metadata.name);
  },
  "SandboxInstance.list": async () => {
    const one = await other({ labels: { team: fresh("t") } });
    const listed = await SandboxInstance.list({
      q: one.metadata.labels.team.toUpperCase(),
      sort: "name:asc",
    });
    has(listed, one.metadata.name);
    // The older client sends no query and receives everything.
    if (Array.isArray(listed)) has(listed, name);
    else equal(listed.data.length, 1);
  },
  "SandboxInstance.delete": async () => {
    const one = await other();
    equal((await SandboxInstance.delete(one.metadata.name)).status, "TERMINATED");
  },
  "SandboxInstance.updateMetadata": async () => {
    const one = await other({ labels: { a: "b", c: "d" } });
    const after = await SandboxInstance.updateMetadata(one.metadata.name, {
      labels: { a: "e" },
      displayName: "One",
    });
    equal([after.metadata.labels, after.metadata.displayName], [{ a: "e" }, "One"]);
  },
  "SandboxInstance.updateTtl": async () => {
    const one = await other();
    const after = await SandboxInstance.updateTtl(one.metadata.name, "2h");
    check(after.expiresIn > 7_000 && after.expiresIn <= 7_200, `it has two hours, not ${after.expiresIn} s`);
  },
  "SandboxInstance.updateLifecycle": async () => {
    const one = await other();
    const after = await SandboxInstance.updateLifecycle(one.metadata.name, HOUR);
    check(after.expiresIn > 3_500 && after.expiresIn <= 3_600, `it has an hour, not ${after.expiresIn} s`);
  },
  "SandboxInstance.updateNetwork": () =>
    SandboxInstance.updateNetwork(name, { network: { allowedDomains: ["example.com"] } }),
  "SandboxInstance.archive": () => SandboxInstance.archive(name, { wait: false }),
  "SandboxInstance.unarchive": () => SandboxInstance.unarchive(name, { wait: false }),
  "SandboxInstance.fromSession": async () => {
    const one = await SandboxInstance.fromSession(await box.sessions.create());
    const { stdout } = await one.process.exec({ command: "echo session", waitForCompletion: true });
    equal(stdout, "session\n");
  },
  "sandbox.fetch": async () => equal(await answerOf(await box.fetch(PORT, "/a")), "hello from /a"),
  "sandbox.wait": async () => equal(await box.wait(), box),
  "sandbox.delete": async () => equal((await (await other()).delete()).status, "TERMINATED"),
  "sandbox.snapshot": async () => equal((await box.snapshot()).status, "ready"),
  "sandbox.listSnapshots": async () => listsNew(snapshot, () => box.listSnapshots()),
  "sandbox.deleteSnapshot": async () => {
    const { id } = await snapshot();
    await box.deleteSnapshot(id);
    check(!(await box.listSnapshots()).some((each) => each.id === id), "it is gone");
  },
  "sandbox.restore": async () => box.restore((await snapshot()).id),
  "sandbox.fork": async () => {
    const path = await written("before");
    const target = fresh();
    equal((await box.fork(target)).name, target);
    equal(await (await SandboxInstance.get(target)).fs.read(path), "before");
  },
  "sandbox.archive": () => box.archive({ wait: false }),
  "sandbox.unarchive": () => box.unarchive({ wait: false }),

  "SandboxAction.handleResponseError": () => {
    const wasGood = () => box.fs.handleResponseError(new Response("{}"), {}, undefined);
    equal(wasGood(), undefined);
    return noted("an internal helper of the client's other calls");
  },

  "sandbox.process.exec": async () => {
    const { stdout } = await box.process.exec({ command: "echo one", waitForCompletion: true });
    equal(stdout, "one\n");
  },
  "sandbox.process.streamLogs": async () => {
    const { pid } = await box.process.exec({ command: "sleep 0.2; echo one" });
    const lines = [];
    const stream = box.process.streamLogs(pid, { onLog: (line) => lines.push(line) });
    await box.process.wait(pid, { interval: 100 });
    await stream.wait?.();
    equal(lines, ["one"]);
  },
  "sandbox.process.wait": async () => {
    const { pid } = await box.process.exec({ command: "sleep 0.2; exit 3" });
    equal((await box.process.wait(pid, { interval: 100 })).exitCode, 3);
  },
  "sandbox.process.get": async () => equal((await box.process.get("server")).status, "running"),
  "sandbox.process.list": async () => has(await box.process.list(), "server"),
  "sandbox.process.logs": async () => {
    const { pid } = await box.process.exec({ command: "echo one", waitForCompletion: true });
    equal(await box.process.logs(pid), "one\n");
  },
  "sandbox.process.stop": async () => {
    const { pid } = await running();
    await box.process.stop(pid);
    equal((await box.process.wait(pid, { interval: 100 })).status, "stopped");
  },
  "sandbox.process.kill": async () => {
    const { pid } = await running();
    await box.process.kill(pid);
    equal((await box.process.get(pid)).status, "killed");
  },
  "sandbox.process.writeStdin": () => echoed(),
  "sandbox.process.closeStdin": () => echoed(),

  "sandbox.fs.mkdir": async () => {
    const path = `/root/${fresh("f")}`;
    await box.fs.mkdir(path);
    equal((await box.fs.ls(path)).files, []);
  },
  "sandbox.fs.write": async () => equal(await box.fs.read(await written("täxt")), "täxt"),
  "sandbox.fs.writeBinary": async () => {
    const path = `/root/${fresh("f")}`;
    await box.fs.writeBinary(path, Buffer.alloc(6 * 1_048_576, 1));
    equal((await (await box.fs.readBinary(path)).arrayBuffer()).byteLength, 6 * 1_048_576);
  },
  "sandbox.fs.writeTree": async () => {
    const tree = await box.fs.writeTree([{ path: "a/b.txt", content: "x" }], `/root/${fresh("f")}`);
    equal(
      tree.subdirectories.map((each) => each.name),
      ["a"],
    );
  },
  "sandbox.fs.read": async () => equal(await box.fs.read(await written()), "text"),
  "sandbox.fs.readBinary": async () => equal((await box.fs.readBinary(await written())).size, 4),
  "sandbox.fs.download": async () => {
    const directory = mkdtempSync(join(tmpdir(), "holdfast-blaxel-"));
    try {
      await box.fs.download(await written(), join(directory, "a"));
      equal(readFileSync(join(directory, "a"), "utf8"), "text");
    } finally {
      rmSync(directory, { recursive: true });
    }
  },
  "sandbox.fs.rm": async () => {
    const path = await written();
    await box.fs.rm(path);
    equal((await box.process.exec({ command: `test -e ${path}`, waitForCompletion: true })).exitCode, 1);
  },
  "sandbox.fs.ls": async () => {
    const path = await written();
    check(
      (await box.fs.ls("/root")).files.some((file) => file.path === path),
      "the file is listed",
    );
  },
  "sandbox.fs.search": async () => {
    const path = await written();
    try {
      await box.fs.search(path.slice("/root/".length), "/root");
    } catch (error) {
      if (thrownShape(error).errorCode !== "invalid_request") throw error;
      notApplicable("the client does not send the search text (400); `find` and `grep` do");
    }
  },
  "sandbox.fs.find": async () => {
    const path = await written();
    const { matches } = await box.fs.find("/root", { patterns: [path.slice("/root/".length)] });
    equal(matches.length, 1);
  },
  "sandbox.fs.grep": async () => {
    await box.fs.writeTree([{ path: "a.txt", content: "1\n2\nneedle\n4\n5\n" }], "/root/grepped");
    const { matches } = await box.fs.grep("needle", "/root/grepped", { contextLines: 1 });
    equal(
      [matches.length, matches[0].line, matches[0].text, matches[0].context],
      [1, 3, "needle", "2\nneedle\n4"],
    );
  },
  "sandbox.fs.cp": async () => {
    const path = await written();
    await box.fs.cp(path, `${path}.copy`);
    equal(await box.fs.read(`${path}.copy`), "text");
  },
  "sandbox.fs.watch": async () => {
    await box.fs.mkdir("/root/watched");
    const seen = Promise.withResolvers();
    const watching = box.fs.watch("/root/watched", seen.resolve, { onError: seen.reject });
    const writing = setInterval(() => box.fs.write("/root/watched/a", "x").catch(seen.reject), 100);
    equal((await seen.promise).name, "a");
    clearInterval(writing);
    watching.close();
  },

  "sandbox.drives.mount": async () => {
    const { name: driveName } = await drive();
    equal((await box.drives.mount({ driveName, mountPath: `/mnt/${driveName}` })).success, true);
    equal(await isMounted(`/mnt/${driveName}`), true);
  },
  "sandbox.drives.unmount": async () => {
    const { name: driveName } = await drive();
    await box.drives.mount({ driveName, mountPath: `/mnt/${driveName}` });
    equal((await box.drives.unmount(`/mnt/${driveName}`)).success, true);
    equal(await isMounted(`/mnt/${driveName}`), false);
  },
  "sandbox.drives.list": async () => {
    const { name: driveName } = await drive();
    await box.drives.mount({ driveName, mountPath: `/mnt/${driveName}` });
    check(
      (await box.drives.list()).some((mount) => mount.driveName === driveName),
      "the mount is listed",
    );
  },

  "sandbox.network.fetch": async () =>
    equal(await answerOf(await box.network.fetch(PORT, "/b?c=d")), "hello from /b?c=d"),

  "sandbox.previews.create": async () => {
    const { spec } = await preview();
    equal(await answerOf(await fetch(`${spec.url}/p`)), "hello from /p");
  },
  "sandbox.previews.createIfNotExists": async () => {
    const { metadata, spec } = await preview();
    equal((await box.previews.createIfNotExists({ metadata, spec: { port: PORT } })).spec.url, spec.url);
  },
  "sandbox.previews.get": async () => {
    const { metadata, spec } = await preview();
    equal((await box.previews.get(metadata.name)).spec.url, spec.url);
  },
  "sandbox.previews.list": async () => listsNew(preview, () => box.previews.list()),
  "sandbox.previews.delete": async () => {
    const { name: called, spec } = await preview();
    await box.previews.delete(called);
    equal((await fetch(`${spec.url}/p`)).status, 401);
  },
  "preview.tokens.create": async () => {
    const made = await preview({ public: false });
    const { value } = await made.tokens.create(hour());
    equal((await fetch(`${made.spec.url}/p`)).status, 401);
    equal(await answerOf(await fetch(`${made.spec.url}/p?bl_preview_token=${value}`)), "hello from /p");
  },
  "preview.tokens.list": async () => {
    const made = await preview({ public: false });
    const { value } = await made.tokens.create(hour());
    const all = await made.tokens.list();
    equal(
      all.map((token) => [token.value, token.expired]),
      [[value, false]],
    );
  },
  "preview.tokens.delete": async () => {
    const made = await preview({ public: false });
    const { value, previewToken } = await made.tokens.create(hour());
    await made.tokens.delete(previewToken.metadata.name);
    equal((await fetch(`${made.spec.url}/p?bl_preview_token=${value}`)).status, 403);
    const other = await made.tokens.create(hour());
    await made.tokens.delete(other.value);
    equal(await made.tokens.list(), []);
  },

  "sandbox.sessions.create": async () => {
    const { url, token } = await box.sessions.create();
    check(url !== "" && token !== "", "it has a URL and a token");
  },
  "sandbox.sessions.createIfExpired": async () => {
    const one = await other();
    const first = await one.sessions.createIfExpired({ expiresAt: hour() }, 60_000);
    equal((await one.sessions.createIfExpired({}, 60_000)).token, first.token);
  },
  "sandbox.sessions.list": async () =>
    listsNew(
      () => box.sessions.create(),
      () => box.sessions.list(),
    ),
  "sandbox.sessions.get": async () => {
    const session = await box.sessions.create();
    equal((await box.sessions.get(session.name)).token, session.token);
  },
  "sandbox.sessions.getToken": async () => {
    const session = await box.sessions.create();
    equal((await box.sessions.getToken(session.name)).spec.token, session.token);
  },
  "sandbox.sessions.delete": async () => {
    const session = await box.sessions.create();
    await box.sessions.delete(session.name);
    const late = await SandboxInstance.fromSession(session);
    const refused = await late.process.exec({ command: "true" }).catch(thrownShape);
    check(refused.code === 403, `a session that is gone is refused, not ${JSON.stringify(refused)}`);
  },

  "sandbox.snapshots.create": async () => equal((await snapshot()).status, "ready"),
  "sandbox.snapshots.list": async () => listsNew(snapshot, () => box.snapshots.list()),
  "sandbox.snapshots.get": async () => {
    const { name: called, id } = await snapshot();
    equal((await box.snapshots.get(called)).id, id);
  },
  "sandbox.snapshots.delete": async () => {
    const { name: called } = await snapshot();
    await box.snapshots.delete(called);
    check(!(await box.snapshots.list()).some((each) => each.name === called), "it is gone");
  },
  "sandbox.snapshots.restore": async () => box.snapshots.restore((await snapshot()).name),
  "Snapshot.create": async () => {
    const called = fresh("s");
    equal((await Snapshot.create({ name: called, source: { name } })).name, called);
  },
  "Snapshot.get": async () => {
    const { id } = await snapshot();
    equal((await Snapshot.get(id)).source, { name, kind: "sandbox", deleted: false });
  },
  "Snapshot.list": async () => {
    const { id } = await snapshot();
    const all = await (await Snapshot.list()).autoPagingToArray({ limit: 1_000 });
    check(
      all.some((each) => each.id === id),
      "it is listed",
    );
  },
  "Snapshot.delete": async () => {
    const { id } = await snapshot();
    await Snapshot.delete(id);
    equal((await Snapshot.get(id).catch(thrownShape)).code, 404);
  },
  "snapshot.delete": async () => {
    const one = await snapshot();
    await one.delete();
    equal((await Snapshot.get(one.id).catch(thrownShape)).code, 404);
  },
  "snapshot.fork": async () => {
    const path = await written("before");
    const one = await snapshot();
    await box.fs.write(path, "after");
    const target = fresh();
    const envs = [{ name: "ADDED", value: "1" }];
    equal((await one.fork(target, { envs })).snapshotId, one.id);
    const forked = await SandboxInstance.get(target);
    equal(await forked.fs.read(path), "before");
    equal((await forked.process.exec({ command: "echo $ADDED", waitForCompletion: true })).stdout, "1\n");
  },

  "sandbox.schedules.list": () => box.schedules.list(),
  "sandbox.schedules.create": () =>
    box.schedules.create({ type: "cron", value: "0 * * * *", input: { command: "true" } }),
  "sandbox.schedules.get": () => box.schedules.get("any"),
  "sandbox.schedules.update": () => box.schedules.update("any", { type: "cron", value: "0 * * * *" }),
  "sandbox.schedules.delete": () => box.schedules.delete("any"),
  "sandbox.schedules.executions": () => box.schedules.executions(),

  "sandbox.codegen.fastapply": () => box.codegen.fastapply("/root/a.js", "let a;"),
  "sandbox.codegen.reranking": () => box.codegen.reranking("/root", "a"),
  "sandbox.system.upgrade": () => box.system.upgrade({ version: "latest" }),

  "DriveInstance.create": async () => equal((await drive()).status, "DEPLOYED"),
  "DriveInstance.createIfNotExists": async () => {
    const { name: called } = await drive();
    equal((await DriveInstance.createIfNotExists({ name: called })).name, called);
  },
  "DriveInstance.get": async () => {
    const { name: called } = await drive();
    equal((await DriveInstance.get(called)).name, called);
  },
  "DriveInstance.list": () => listsNew(drive, () => DriveInstance.list({ limit: 200 })),
  "DriveInstance.delete": async () =>
    equal((await DriveInstance.delete((await drive()).name)).status, "TERMINATED"),
  "DriveInstance.update": async () => {
    const { name: called } = await drive();
    const after = await DriveInstance.update(called, { displayName: "Mine", labels: { c: "d" } });
    equal([after.displayName, after.metadata.labels], ["Mine", { c: "d" }]);
  },
  "drive.delete": async () => equal((await (await drive()).delete()).status, "TERMINATED"),
  "drive.update": async () =>
    equal((await (await drive()).update({ displayName: "Mine" })).displayName, "Mine"),

  "VolumeInstance.create": async () => {
    const { name: called, size } = await volume();
    equal(size, 64);
    const one = await other({ volumes: [{ name: called, mountPath: "/data" }] });
    equal((await one.drives.list())[0].driveName, called);
    return noted("a drive with a size; any number of sandboxes may mount it");
  },
  "VolumeInstance.createIfNotExists": async () => {
    const { name: called } = await volume();
    equal((await VolumeInstance.createIfNotExists({ name: called })).name, called);
  },
  "VolumeInstance.get": async () => {
    const { name: called } = await volume();
    equal((await VolumeInstance.get(called)).name, called);
  },
  "VolumeInstance.list": () => listsNew(volume, () => VolumeInstance.list()),
  "VolumeInstance.delete": async () =>
    equal((await VolumeInstance.delete((await volume()).name)).status, "TERMINATED"),
  "VolumeInstance.update": async () => {
    const { name: called } = await volume();
    equal((await VolumeInstance.update(called, { displayName: "Mine" })).displayName, "Mine");
    return noted("the size can't be changed");
  },
  "volume.delete": async () => equal((await (await volume()).delete()).status, "TERMINATED"),
  "volume.update": async () =>
    equal((await (await volume()).update({ displayName: "Mine" })).displayName, "Mine"),

  "CodeInterpreter.create": async () => {
    equal((await interpreter()).status, "DEPLOYED");
    return noted(
      "needs an image with a notebook server; the name `blaxel/jupyter-server` needs an image alias",
    );
  },
  "CodeInterpreter.createIfNotExists": async () => {
    const one = await CodeInterpreter.createIfNotExists({ name, image: "blaxel/base-image:latest" });
    equal(one.metadata.name, name);
  },
  "CodeInterpreter.get": async () => equal((await CodeInterpreter.get(name)).metadata.name, name),
  "CodeInterpreter.Context.fromJson": () => equal(CodeInterpreter.Context.fromJson({ id: "a" }).id, "a"),
  "interpreter.runCode": async () => {
    const ran = await (await CodeInterpreter.get(name)).runCode("1 + 1");
    equal(ran.logs.stdout, ["2"]);
  },
  "interpreter.createCodeContext": async () =>
    equal((await (await CodeInterpreter.get(name)).createCodeContext()).id, "context-1"),

  "page.nextPage": async () => {
    await other();
    const first = await SandboxInstance.list({ limit: 1 });
    const second = await first.nextPage();
    check(second.data[0].metadata.name !== first.data[0].metadata.name, "it is another sandbox");
  },
  "page.autoPagingEach": async () => {
    const seen = [];
    await (await SandboxInstance.list({ limit: 1 })).autoPagingEach((each) => {
      seen.push(each.metadata.name);
    });
    check(seen.includes(name), "it is among them");
  },
  "page.autoPagingToArray": async () =>
    has(await (await SandboxInstance.list({ limit: 1 })).autoPagingToArray({ limit: 1_000 }), name),
  "page.[Symbol.asyncIterator]": async () => {
    await other();
    const seen = [];
    for await (const each of await SandboxInstance.list({ limit: 1 })) seen.push(each);
    has(seen, name);
  },

  ...functionCases(),
};

/** Cases for the same calls as plain functions, without classes. */
function functionCases() {
  const atSandbox = { path: { sandboxName: name } };
  const previewNamed = (previewName) => ({ path: { sandboxName: name, previewName } });
  const table = {
    createSandbox: async () => {
      const called = fresh();
      const body = { metadata: { name: called }, spec: { runtime: { image: "blaxel/base-image:latest" } } };
      equal((await call("createSandbox", { body })).metadata.name, called);
    },
    getSandbox: async () => equal((await call("getSandbox", atSandbox)).metadata.name, name),
    getSandboxByExternalId: async () => {
      const externalId = fresh("x");
      await other({ externalId });
      equal((await call("getSandboxByExternalId", { path: { externalId } })).metadata.externalId, externalId);
    },
    listSandboxes: async () => has(await call("listSandboxes", {}), name),
    updateSandbox: async () => {
      const { sandbox } = await other();
      const body = { ...sandbox, metadata: { ...sandbox.metadata, labels: { a: "b" } } };
      const path = { sandboxName: sandbox.metadata.name };
      equal((await call("updateSandbox", { path, body })).metadata.labels, { a: "b" });
    },
    deleteSandbox: async () => {
      const sandboxName = (await other()).metadata.name;
      equal((await call("deleteSandbox", { path: { sandboxName } })).status, "TERMINATED");
    },
    listSandboxHubDefinitions: () => call("listSandboxHubDefinitions", {}),
    archiveSandbox: () => call("archiveSandbox", atSandbox),
    unarchiveSandbox: () => call("unarchiveSandbox", atSandbox),

    createSandboxPreview: async () => {
      const body = { metadata: { name: fresh("v") }, spec: { port: PORT, public: true } };
      const { spec } = await call("createSandboxPreview", { ...atSandbox, body });
      equal(await answerOf(await fetch(`${spec.url}/p`)), "hello from /p");
    },
    getSandboxPreview: async () => {
      const { name: called, spec } = await preview();
      equal((await call("getSandboxPreview", previewNamed(called))).spec.url, spec.url);
    },
    listSandboxPreviews: async () => listsNew(preview, () => call("listSandboxPreviews", atSandbox)),
    updateSandboxPreview: async () => {
      const { name: called, metadata, spec } = await preview();
      const body = { metadata, spec: { ...spec, public: false } };
      equal((await call("updateSandboxPreview", { ...previewNamed(called), body })).spec.public, false);
      equal((await fetch(`${spec.url}/p`)).status, 401);
    },
    deleteSandboxPreview: async () => {
      const { name: called, spec } = await preview();
      await call("deleteSandboxPreview", previewNamed(called));
      equal((await fetch(`${spec.url}/p`)).status, 401);
    },
    createSandboxPreviewToken: async () => {
      const { name: called } = await preview({ public: false });
      const body = { metadata: { name: fresh("t") }, spec: { expiresAt: hour().toISOString() } };
      check(
        (await call("createSandboxPreviewToken", { ...previewNamed(called), body })).spec.token !== "",
        "it has a token",
      );
    },
    listSandboxPreviewTokens: async () => {
      const one = await preview({ public: false });
      const { value } = await one.tokens.create(hour());
      equal((await call("listSandboxPreviewTokens", previewNamed(one.name)))[0].spec.token, value);
    },
    deleteSandboxPreviewToken: async () => {
      const one = await preview({ public: false });
      const { previewToken } = await one.tokens.create(hour());
      const path = { sandboxName: name, previewName: one.name, tokenName: previewToken.metadata.name };
      await call("deleteSandboxPreviewToken", { path });
      equal(await one.tokens.list(), []);
    },

    createSandboxSnapshot: async () =>
      equal((await call("createSandboxSnapshot", { ...atSandbox, body: {} })).sandboxName, name),
    listSandboxSnapshots: async () => listsNew(snapshot, () => call("listSandboxSnapshots", atSandbox)),
    deleteSandboxSnapshot: async () => {
      const { id: snapshotId } = await snapshot();
      await call("deleteSandboxSnapshot", { path: { sandboxName: name, snapshotId } });
      equal((await Snapshot.get(snapshotId).catch(thrownShape)).code, 404);
    },
    restoreSandboxSnapshot: async () =>
      call("restoreSandboxSnapshot", { path: { sandboxName: name, snapshotId: (await snapshot()).id } }),
    createSnapshot: async () =>
      equal((await call("createSnapshot", { body: { source: { name } } })).source.name, name),
    getSnapshot: async () => {
      const { id } = await snapshot();
      equal((await call("getSnapshot", { path: { snapshotName: id } })).id, id);
    },
    listSnapshots: () => listsNew(snapshot, () => call("listSnapshots", { query: { limit: 200 } })),
    deleteSnapshot: async () => {
      const { id } = await snapshot();
      await call("deleteSnapshot", { path: { snapshotName: id } });
      equal((await Snapshot.get(id).catch(thrownShape)).code, 404);
    },
    forkSandbox: async () => {
      const body = { targetName: fresh(), targetType: "sandbox" };
      equal((await call("forkSandbox", { ...atSandbox, body })).name, body.targetName);
    },
    forkSnapshot: async () => {
      const { id } = await snapshot();
      const body = { targetName: fresh(), targetType: "sandbox" };
      equal((await call("forkSnapshot", { path: { snapshotName: id }, body })).name, body.targetName);
    },

    listSandboxSchedules: () => call("listSandboxSchedules", atSandbox),
    createSandboxSchedule: () =>
      call("createSandboxSchedule", { ...atSandbox, body: { type: "cron", value: "0 * * * *" } }),
    getSandboxSchedule: () => call("getSandboxSchedule", { path: { sandboxName: name, scheduleId: "any" } }),
    updateSandboxSchedule: () =>
      call("updateSandboxSchedule", { path: { sandboxName: name, scheduleId: "any" }, body: {} }),
    deleteSandboxSchedule: () =>
      call("deleteSandboxSchedule", { path: { sandboxName: name, scheduleId: "any" } }),
    listSandboxScheduleExecutions: () => call("listSandboxScheduleExecutions", atSandbox),
    getSandboxScheduleMetrics: () => call("getSandboxScheduleMetrics", {}),
    listSchedules: () => call("listSchedules", {}),
    listScheduleExecutions: () => call("listScheduleExecutions", {}),

    createDrive: async () => {
      const called = fresh("d");
      equal(
        (await call("createDrive", { body: { metadata: { name: called }, spec: {} } })).metadata.name,
        called,
      );
    },
    getDrive: async () => {
      const { name: driveName } = await drive();
      equal((await call("getDrive", { path: { driveName } })).metadata.name, driveName);
    },
    getDriveByExternalId: async () => {
      const called = fresh("d");
      const externalId = fresh("x");
      await call("createDrive", { body: { metadata: { name: called, externalId }, spec: {} } });
      equal((await call("getDriveByExternalId", { path: { externalId } })).metadata.name, called);
    },
    listDrives: async () => listsNew(drive, () => call("listDrives", { query: { limit: 200 } })),
    updateDrive: async () => {
      const { name: driveName } = await drive();
      const body = { metadata: { name: driveName, labels: { c: "d" } }, spec: {} };
      equal((await call("updateDrive", { path: { driveName }, body })).metadata.labels, { c: "d" });
    },
    deleteDrive: async () => {
      const { name: driveName } = await drive();
      equal((await call("deleteDrive", { path: { driveName } })).status, "TERMINATED");
    },
    createDriveAccessToken: async () => {
      const { name: driveName } = await drive();
      return call("createDriveAccessToken", { path: { driveName } });
    },
    getDriveJwks: () => call("getDriveJwks", {}),

    createVolume: async () => {
      const body = { metadata: { name: fresh("d") }, spec: { size: 64 } };
      const { metadata, spec } = await call("createVolume", { body });
      equal([metadata.name, spec.size], [body.metadata.name, 64]);
    },
    getVolume: async () => {
      const { name: volumeName } = await volume();
      equal((await call("getVolume", { path: { volumeName } })).metadata.name, volumeName);
    },
    getVolumeByExternalId: async () => {
      const metadata = { name: fresh("d"), externalId: fresh("x") };
      await call("createVolume", { body: { metadata, spec: { size: 64 } } });
      const path = { externalId: metadata.externalId };
      equal((await call("getVolumeByExternalId", { path })).metadata.name, metadata.name);
    },
    listVolumes: () => listsNew(volume, () => call("listVolumes", { query: { limit: 200 } })),
    updateVolume: async () => {
      const { name: volumeName } = await volume();
      const body = { metadata: { name: volumeName, labels: { c: "d" } }, spec: {} };
      equal((await call("updateVolume", { path: { volumeName }, body })).metadata.labels, { c: "d" });
    },
    deleteVolume: async () => {
      const { name: volumeName } = await volume();
      equal((await call("deleteVolume", { path: { volumeName } })).status, "TERMINATED");
    },

    getFilesystemByPath: async () =>
      equal((await inside("getFilesystemByPath", { path: { path: await written() } })).content, "text"),
    putFilesystemByPath: async () => {
      const path = `/root/${fresh("f")}`;
      await inside("putFilesystemByPath", { path: { path }, body: { content: "put" } });
      equal(await box.fs.read(path), "put");
    },
    deleteFilesystemByPath: async () => {
      const path = await written();
      await inside("deleteFilesystemByPath", { path: { path } });
      equal((await box.fs.read(path).catch(thrownShape)).code, 404);
    },
    postProcess: async () => {
      const body = { command: "echo one", waitForCompletion: true };
      equal((await inside("postProcess", { body })).stdout, "one\n");
    },
    getProcess: async () => has(await inside("getProcess"), "server"),
    getProcessByIdentifier: async () =>
      equal((await inside("getProcessByIdentifier", { path: { identifier: "server" } })).status, "running"),
    getProcessByIdentifierLogs: async () => {
      const { pid: identifier } = await box.process.exec({ command: "echo one", waitForCompletion: true });
      equal((await inside("getProcessByIdentifierLogs", { path: { identifier } })).stdout, "one\n");
    },
    getProcessByIdentifierLogsStream: async () => {
      const { pid: identifier } = await box.process.exec({ command: "echo one", waitForCompletion: true });
      const text = await inside("getProcessByIdentifierLogsStream", {
        path: { identifier },
        parseAs: "text",
      });
      check(text.includes("stdout:one\n"), `${JSON.stringify(text)} has the line`);
    },
    deleteProcessByIdentifier: async () => {
      const { pid: identifier } = await running();
      await inside("deleteProcessByIdentifier", { path: { identifier } });
      equal((await box.process.wait(identifier, { interval: 100 })).status, "stopped");
    },
    deleteProcessByIdentifierKill: async () => {
      const { pid: identifier } = await running();
      await inside("deleteProcessByIdentifierKill", { path: { identifier } });
      equal((await box.process.get(identifier)).status, "killed");
    },
    getNetworkProcessByPidPorts: () => inside("getNetworkProcessByPidPorts", { path: { pid: 1 } }),
    postNetworkProcessByPidMonitor: () =>
      inside("postNetworkProcessByPidMonitor", {
        path: { pid: 1 },
        body: { callback: "http://127.0.0.1:1" },
      }),
    deleteNetworkProcessByPidMonitor: () => inside("deleteNetworkProcessByPidMonitor", { path: { pid: 1 } }),
    getCodegenRerankingByPath: () =>
      inside("getCodegenRerankingByPath", { path: { path: "/root" }, query: { query: "a" } }),
    putCodegenFastapplyByPath: () =>
      inside("putCodegenFastapplyByPath", { path: { path: "/root/a" }, body: { codeEdit: "a" } }),
  };
  return Object.fromEntries(Object.entries(table).map(([method, work]) => [`functions.${method}`, work]));
}

async function echoed() {
  const { pid } = await box.process.exec({ name: fresh("p"), command: "cat", stdin: true });
  await box.process.writeStdin(pid, "one\n");
  await box.process.closeStdin(pid);
  equal((await box.process.wait(pid, { interval: 100 })).stdout, "one\n");
}

/** Returns the server's reason from an error message, without the words that name the request. */
function refusal({ message = "" }) {
  const why = message.replace(/^Not supported by Holdfast: .*?\.(?: |$)/s, "");
  return why === "" ? { failure: `no reason is given: ${message}` } : { outcome: "501", note: why };
}

async function found({ type, method }) {
  const work = cases[`${type}.${method}`];
  if (work === undefined) return { type, method, failure: "no case is written for it" };
  try {
    return { type, method, outcome: "works", ...(await work()) };
  } catch (error) {
    if (error instanceof NotApplicable)
      return { type, method, outcome: "not applicable", note: error.message };
    const thrown = thrownShape(error);
    if (thrown.code === 501 && thrown.errorCode === "not_supported")
      return { type, method, ...refusal(thrown) };
    return { type, method, failure: thrown.text ?? JSON.stringify(error) };
  }
}

const findings = [];
for (const each of await surfaceOf(packageName, client, page)) findings.push(await found(each));
process.stdout.write(`\n${JSON.stringify(findings)}\n`);
process.exit(0);
