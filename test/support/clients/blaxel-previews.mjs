/**
 * Runs one scenario of previews, sessions and updates with one published version of the Blaxel client. The result is
 * the last printed line.
 *
 *   node blaxel-previews.mjs <package> <scenario> <arguments as JSON>
 */
import { once } from "node:events";
import { request } from "node:http";
import { thrownShape } from "./blaxel-thrown.mjs";

const [packageName, scenario, given = "{}"] = process.argv.slice(2);
const { SandboxInstance, DriveInstance } = await import(packageName);
const options = JSON.parse(given);
const { HOLDFAST_URL, HOLDFAST_API_KEY, BL_API_URL, BL_RUN_URL } = process.env;
console.warn = () => {};

const PORT = 4700;
const SERVER = `require("node:http").createServer((request, response) => {
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify({ url: request.url, headers: request.headers }));
}).listen(${PORT});`;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const later = (ms) => new Date(Date.now() + ms);
const HOUR_MS = 3_600_000;

async function serving(name) {
  const box = await SandboxInstance.createIfNotExists({ name });
  await box.fs.write("/root/server.js", SERVER);
  await box.process.exec({ name: "web", command: "exec node /root/server.js", waitForPorts: [PORT] });
  return box;
}

async function asleep(name) {
  const headers = { authorization: `Bearer ${HOLDFAST_API_KEY}` };
  for (let tries = 0; tries < 20; tries += 1) {
    const answer = await fetch(`${HOLDFAST_URL}/v1/sandboxes/${name}/standby`, { method: "POST", headers });
    if (answer.ok && (await answer.json()).status === "standby") return;
    await pause(100);
  }
  throw new Error("it does not sleep");
}

async function ask(url, headers = {}, init = {}) {
  const answer = await fetch(url, { ...init, headers });
  const text = await answer.text();
  return answer.ok ? JSON.parse(text) : answer.status;
}
/** Returns the status of a request with exactly this path: `fetch` would normalize it first. */
async function askAsWritten(url, headers) {
  const { hostname, port, origin } = new URL(url);
  const asked = request({ hostname, port, path: url.slice(origin.length), headers }).end();
  const [answer] = await once(asked, "response");
  answer.resume();
  return answer.statusCode;
}
const attempt = (work) => work().catch((error) => thrownShape(error).code);

const scenarios = {
  /** A background program, accessed from outside. */
  async previews({ name }) {
    const box = await serving(name);
    const open = await box.previews.create({
      metadata: { name: "open" },
      spec: { port: PORT, public: true },
    });
    await asleep(name);
    const seen = await ask(`${open.spec.url}/a?b=c`, {
      "x-blaxel-authorization": `Bearer ${HOLDFAST_API_KEY}`,
    });
    const shut = await box.previews.create({
      metadata: { name: "shut" },
      spec: { port: PORT, public: false },
    });
    const before = await shut.tokens.list();
    const token = await shut.tokens.create(later(HOUR_MS));
    const brief = await shut.tokens.create(later(1_500));
    const other = await box.previews.create({ metadata: { name: "other" }, spec: { port: PORT } });
    const header = { "X-Blaxel-Preview-Token": token.value };
    const answers = {
      none: await ask(`${shut.spec.url}/`),
      query: (await ask(`${shut.spec.url}/q?bl_preview_token=${token.value}`)).url,
      header: (await ask(`${shut.spec.url}/h`, header)).url,
      brief: (await ask(`${shut.spec.url}/h`, { "X-Blaxel-Preview-Token": brief.value })).url,
      tampered: await ask(`${shut.spec.url}/`, { "X-Blaxel-Preview-Token": `${token.value.slice(0, -2)}AA` }),
      "another preview's": await ask(`${other.spec.url}/`, header),
      "as a key": await ask(`${BL_API_URL}/sandboxes`, { "x-blaxel-authorization": `Bearer ${token.value}` }),
    };
    await pause(1_600);
    const expired = await ask(`${shut.spec.url}/`, { "X-Blaxel-Preview-Token": brief.value });
    const listed = (await shut.tokens.list()).map(({ value, expired: isOver }) => [value, isOver]);
    await shut.tokens.delete(
      (await shut.tokens.list()).find(({ value }) => value === token.value).previewToken.metadata.name,
    );
    return {
      seen: { url: seen.url, keys: JSON.stringify(seen.headers).includes(HOLDFAST_API_KEY) },
      names: (await box.previews.list()).map((preview) => preview.name),
      again: (await box.previews.createIfNotExists({ metadata: { name: "open" }, spec: { port: 1 } })).spec
        .port,
      taken: await attempt(() => box.previews.create({ metadata: { name: "open" }, spec: { port: PORT } })),
      before: before.length,
      answers,
      expired,
      listed: [
        [listed[0][0] === token.value, listed[0][1]],
        [listed[1][0] === brief.value, listed[1][1]],
      ],
      revoked: await ask(`${shut.spec.url}/`, header),
      fetched: await (await box.fetch(PORT, "/f?g=h", { headers: { authorization: "Bearer mine" } })).json(),
      closed: (await box.fetch(PORT + 1)).status,
    };
  },

  /** What the vendor's own suite asks of previews. */
  async suite({ name, previews: total }) {
    const box = await serving(name);
    const create = (called, spec) =>
      box.previews.create({ metadata: { name: called }, spec: { port: PORT, ...spec } });
    const status = async (url, init) => {
      const answer = await fetch(url, init);
      await answer.text();
      return answer.status;
    };
    const race = async (index) => {
      const made = { metadata: { name: `race-${index}` }, spec: { port: PORT, public: true } };
      const before = await box.previews.createIfNotExists(made);
      const first = await status(before.spec.url);
      await box.previews.delete(made.metadata.name);
      const closed = await status(before.spec.url);
      const after = await box.previews.createIfNotExists(made);
      return [first, closed, await status(after.spec.url), before.spec.url === after.spec.url].join(" ");
    };
    const races = await Promise.all(Array.from({ length: total }, (_, index) => race(index)));

    const shut = await create("shut", { public: false });
    const none = await status(shut.spec.url);
    const [token, kept] = [
      await shut.tokens.create(later(HOUR_MS)),
      await shut.tokens.create(later(HOUR_MS)),
    ];
    await shut.tokens.delete(token.value);
    const left = (await shut.tokens.list()).map(({ value }) => value === kept.value);
    const revoked = await status(`${shut.spec.url}?bl_preview_token=${token.value}`);
    await box.previews.delete("shut");
    const missing = await attempt(() => box.previews.get("shut"));
    await create("shut", { public: true });
    const opened = await status(shut.spec.url);

    const responseHeaders = {
      "Access-Control-Allow-Origin": "*",
      "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    };
    const cors = await create("cors", {
      public: true,
      responseHeaders,
      requestHeaders: { "X-Tenant": "7" },
    });
    const origin = { Origin: "https://elsewhere.example" };
    const preflight = await fetch(cors.spec.url, {
      method: "OPTIONS",
      headers: { ...origin, "Access-Control-Request-Method": "POST" },
    });
    const crossed = await fetch(cors.spec.url, { headers: origin });
    const allowed = (answer) => answer.headers.get("access-control-allow-origin");
    return {
      races: [...new Set(races)],
      none,
      left,
      revoked,
      missing,
      opened,
      stored: (await box.previews.get("cors")).spec.responseHeaders,
      preflight: [preflight.status, allowed(preflight)],
      crossed: [crossed.status, allowed(crossed), (await crossed.json()).headers["x-tenant"]],
    };
  },

  /** What the vendor's own suite asks of the environment and of processes without a name. */
  async environment({ name }) {
    const envs = [
      { name: "PLAIN", value: "a\nb" },
      { name: "EMPTY", value: "" },
      { name: "KEY", value: "hidden", secret: true },
    ];
    const box = await SandboxInstance.create({ metadata: { name }, spec: { runtime: { envs } } });
    const byName = (all) => all.toSorted((a, b) => (a.name < b.name ? -1 : 1));
    const read = async () => byName((await SandboxInstance.get(name)).spec.runtime.envs);
    const before = await read();
    await SandboxInstance.updateMetadata(name, { labels: { a: "b" } });
    const {
      name: generated,
      pid,
      stdout,
    } = await box.process.exec({
      command: 'printf "%s,%s,%s" "$PLAIN" "$EMPTY" "$KEY"',
      waitForCompletion: true,
    });
    return {
      before,
      same: JSON.stringify(before) === JSON.stringify(await read()),
      stdout,
      generated: /^proc-/.test(generated),
      found: (await box.process.get(generated)).pid === pid,
      logs: await box.process.logs(generated),
    };
  },

  /** Requests that a session grants. */
  async sessions({ name, drive }) {
    const box = await SandboxInstance.createIfNotExists({ name });
    await SandboxInstance.createIfNotExists({ name: `${name}-other` });
    await DriveInstance.createIfNotExists({ name: drive });
    await box.drives.mount({ driveName: drive, mountPath: "/data" });
    const session = await box.sessions.create({ expiresAt: later(HOUR_MS) });
    const guest = await SandboxInstance.fromSession(session);
    await asleep(name);
    const ran = await guest.process.exec({ command: "echo session", waitForCompletion: true });
    await guest.fs.write("/data/a.txt", "by a guest");
    await guest.fs.writeBinary("/root/large.bin", Buffer.alloc(6 * 1_048_576, 7));
    const streamed = [];
    await guest.process.exec({
      command: "echo one; sleep 0.2; echo two",
      waitForCompletion: true,
      onStdout: (text) => streamed.push(text),
    });
    return {
      ran: ran.stdout,
      read: await box.fs.read("/data/a.txt"),
      size: (await box.fs.readBinary("/root/large.bin")).size,
      streamed: streamed.join(""),
      listed: (await guest.fs.ls("/data")).files.map((file) => file.name),
      mounts: (await guest.drives.list()).map(({ driveName }) => driveName),
      processes: (await guest.process.list()).length > 0,
      sessions: (await box.sessions.list()).map(({ name: called, token }) => [
        called === session.name,
        token === session.token,
      ]),
      same: (await box.sessions.createIfExpired({}, 60_000)).token === session.token,
    };
  },

  /** Requests that a session does not grant. */
  async strangers({ name }) {
    const box = await serving(name);
    const otherBox = await SandboxInstance.createIfNotExists({ name: `${name}-other` });
    const session = await box.sessions.create({ expiresAt: later(HOUR_MS) });
    const otherSession = await otherBox.sessions.create({ expiresAt: later(HOUR_MS) });
    const preview = await box.previews.create({ metadata: { name: "web" }, spec: { port: PORT } });
    const portToken = await preview.tokens.create(later(HOUR_MS));
    const native = await fetch(`${HOLDFAST_URL}/v1/sandboxes/${name}/previews`, {
      method: "POST",
      headers: { authorization: `Bearer ${HOLDFAST_API_KEY}`, "content-type": "application/json" },
      body: JSON.stringify({ port: 443, name: "session-1" }),
    }).then((answer) => answer.json());
    const by = (token) => ({ "X-Blaxel-Preview-Token": token });
    const asKey = { "x-blaxel-authorization": `Bearer ${session.token}` };
    const { origin } = new URL(HOLDFAST_URL);
    const sessionOf = (id) => `${origin}/compat/blaxel/session/${id}/process`;
    const table = {
      "its own sandbox": [`${session.url}/process`, by(session.token)],
      "its own sandbox, by the URL": [`${session.url}/process?bl_preview_token=${session.token}`, {}],
      "no token": [`${session.url}/process`, {}],
      "a tampered token": [`${session.url}/process`, by(`${session.token.slice(0, -3)}AAA`)],
      "another session's token": [`${session.url}/process`, by(otherSession.token)],
      "another session": [`${otherSession.url}/process`, by(session.token)],
      "a token of a port": [`${session.url}/process`, by(portToken.value)],
      "a preview of a port as a session": [sessionOf(preview.preview.holdfast.id), by(portToken.value)],
      "a preview of port 443 as a session": [sessionOf(native.id), by(native.token)],
      "another sandbox": [`${BL_RUN_URL}/demo/sandboxes/${name}-other/process`, by(session.token)],
      "its own sandbox, elsewhere": [`${BL_RUN_URL}/demo/sandboxes/${name}/process`, by(session.token)],
      "the control plane": [`${BL_API_URL}/sandboxes`, by(session.token)],
      "the control plane, as a key": [`${BL_API_URL}/sandboxes`, asKey],
      "the native API": [
        `${HOLDFAST_URL}/v1/sandboxes`,
        { ...by(session.token), authorization: asKey["x-blaxel-authorization"] },
      ],
    };
    const answers = {};
    for (const [what, [url, headers]] of Object.entries(table)) {
      const answer = await ask(url, headers);
      answers[what] = Array.isArray(answer) ? "opened" : answer;
    }
    for (const path of ["/../../v0/sandboxes", "/%2e%2e/%2e%2e/v0/sandboxes", "/..%2f..%2fv0%2fsandboxes"])
      answers[path] = await askAsWritten(`${session.url}${path}`, by(session.token));
    const brief = await box.sessions.create({ expiresAt: later(1_500) });
    const guest = await SandboxInstance.fromSession(session);
    const { name: driveName } = await DriveInstance.create({ name: `${name}-others` });
    answers["a drive that the sandbox does not have"] = await ask(
      `${session.url}/drives/mount`,
      { ...by(session.token), "content-type": "application/json" },
      { method: "POST", body: JSON.stringify({ driveName, mountPath: "/mnt/others" }) },
    );
    answers.mounts = (await guest.drives.list()).length;
    const { pid } = await guest.process.exec({ command: "for i in $(seq 300); do echo $i; sleep 0.1; done" });
    const reading = await fetch(`${session.url}/process/${pid}/logs/stream`, { headers: by(session.token) });
    const read = reading.text().then(
      () => "ended",
      () => "cut",
    );
    await pause(1_600);
    answers.expired = await ask(`${brief.url}/process`, by(brief.token));
    await box.sessions.delete(session.name);
    answers.revoked = await ask(`${session.url}/process`, by(session.token));
    answers.stream = await Promise.race([read, pause(5_000).then(() => "goes on")]);
    await box.process.kill(pid);
    return answers;
  },

  /** Updates of a running sandbox. */
  async updates({ name }) {
    await SandboxInstance.create({ name, ttl: "30m", labels: { a: "b", "any key": "x" } });
    const shape = ({ metadata, spec, expiresIn, sandbox }) => ({
      ...{ labels: metadata.labels, displayName: metadata.displayName, ttl: spec.runtime.ttl ?? null },
      policies: spec.lifecycle?.expirationPolicies ?? null,
      minutes: Math.round((expiresIn ?? sandbox?.expiresIn ?? 0) / 60),
    });
    const policies = (type, value) => ({ expirationPolicies: [{ type, value, action: "delete" }] });
    return {
      labels: shape(await SandboxInstance.updateMetadata(name, { labels: { c: "d" }, displayName: "Mine" })),
      ttl: shape(await SandboxInstance.updateTtl(name, "2h")),
      policy: shape(await SandboxInstance.updateLifecycle(name, policies("ttl-max-age", "1h"))),
      idle: shape(await SandboxInstance.updateLifecycle(name, policies("ttl-idle", "20m"))),
      untimed: shape(await SandboxInstance.updateTtl(name, "")),
      free: shape(await SandboxInstance.updateLifecycle(name)),
      read: shape(await SandboxInstance.get(name)),
    };
  },

  /** One of two sandboxes is not used. */
  async idleness({ name }) {
    const lifecycle = { expirationPolicies: [{ type: "ttl-idle", value: "2s", action: "delete" }] };
    const busy = await SandboxInstance.create({ name: `${name}-busy`, lifecycle });
    await busy.process.exec({ name: "work", command: "sleep 300" });
    await SandboxInstance.create({ name: `${name}-idle`, lifecycle });
    const status = (which) => attempt(async () => (await SandboxInstance.get(`${name}-${which}`)).status);
    const isGone = async (which) => {
      for (let tries = 0; tries < 200; tries += 1) {
        if ((await status(which)) === 404) return true;
        await pause(100);
      }
      return false;
    };
    const idle = await isGone("idle");
    const kept = await status("busy");
    await busy.process.kill("work");
    return { idle, kept, afterwards: await isGone("busy") };
  },
};

const result = await scenarios[scenario](options);
process.stdout.write(`\n${JSON.stringify(result)}\n`);
process.exit(0);
