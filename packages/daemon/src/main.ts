/** The one file that knows every part: wires them, listens, recovers, and lets go again. */
import { realpathSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { SandboxId } from "@holdfast/contract";
import {
  checkHost,
  checkStateDir,
  createOciDriver,
  haltSandboxes,
  type OciMachine,
  type OciOptions,
} from "@holdfast/drivers/oci";
import { createEngine, type Driver, type Log, type Ports, systemClock, systemIds } from "@holdfast/engine";
import { keeperBinaries } from "@holdfast/keeper";
import { holdStateDirectory, openStore } from "@holdfast/store";
import { ensureAdminKey } from "./admin-key.ts";
import { announce } from "./announcement.ts";
import { type Config, readConfig } from "./config.ts";
import type { App } from "./context.ts";
import { createScrub } from "./errors.ts";
import { buildHttp } from "./http.ts";
import { LogBook } from "./log-book.ts";
import { createLogger } from "./logger.ts";
import { Metrics } from "./metrics.ts";
import { selfTest } from "./selftest.ts";
import { closeOnSignal, endOnBugs } from "./signals.ts";
import { explain, StartFailure } from "./start-failure.ts";
import { makeStateDir } from "./state-dir.ts";
import { VERSION } from "./version.ts";
import { createWebhook } from "./webhook.ts";

const REPOSITORY = join(import.meta.dirname, "..", "..", "..");

export interface RunningServer {
  url: string;
  keyFile: string;
  key: string;
  driver: Driver;
  /** Sandboxes run on; the next server finds them. */
  close(): Promise<void>;
}

/**
 * Starts a server, or fails having let go of everything it took. The port is taken before recovery, so that a second
 * server is told so before it touches a sandbox; until recovery is done calls are held. Tests put faults between the
 * engine and its ports with `wrap`.
 */
export async function startServer(
  config: Config,
  log: Log,
  wrap: (ports: Ports) => Ports = (ports) => ports,
  book?: LogBook,
): Promise<RunningServer> {
  await using taken = new AsyncDisposableStack();
  checkRights();
  refuseSeenStateDir(config.stateDir);
  makeStateDir(config.stateDir);
  const announcement = announce({ stateDir: config.stateDir, repository: REPOSITORY });
  process.once("exit", () => announcement.withdraw());
  taken.defer(() => announcement.withdraw());
  const hold = holdStateDirectory(config.stateDir);
  taken.defer(() => hold.release());
  book?.open(join(config.stateDir, "logs"));
  taken.defer(() => book?.close());
  const store = await openStore({
    path: join(config.stateDir, "holdfast.db"),
    onUnreadable: (error) => log.error({ err: error }, "a record can't be read; it is kept and left out"),
    onFull: () => {
      log.error({}, "the disk is full: sandboxes are halted until the database is open");
      return haltSandboxes(config.stateDir, systemClock);
    },
  });
  taken.defer(() => store.close());
  const { stateDir, numbers, runtime } = config;
  const { installation } = store;
  const { driver, drives, images, journals } = await openDriver({
    stateDir,
    installation,
    clock: systemClock,
    log: log.child({ part: "oci" }),
    heartbeatMs: numbers.heartbeatMs,
    deadMs: numbers.linkDeadMs,
    ...(runtime === undefined ? {} : { runtime }),
  });
  taken.defer(() => driver.close());

  const metrics = new Metrics();
  const hostPaths = [stateDir, realpathSync(stateDir), REPOSITORY, "/sys/fs/cgroup"];
  const scrub = createScrub(hostPaths);
  const ports = wrap({
    installation,
    clock: systemClock,
    ids: systemIds,
    log: log.child({ part: "engine" }),
    store: metrics.watchStore(store),
    driver: metrics.watchDriver(driver),
    drives,
    images,
    journals,
    notifier: config.webhook === undefined ? null : createWebhook(config.webhook, { installation, scrub }),
  });
  const engine = createEngine(ports, numbers);
  taken.defer(() => engine.stop());
  const { file: keyFile, secret: key, isNew } = await ensureAdminKey(stateDir, store.keys);
  if (isNew) log.info({ file: keyFile }, "a new admin key was made");

  const recovered = Promise.withResolvers<void>();
  const app = buildHttp({
    engine,
    keys: store.keys,
    log: log.child({ part: "http" }),
    numbers,
    version: VERSION,
    installation,
    metrics,
    started: recovered.promise,
    hostPaths,
    logs: book,
    imageAliases: config.imageAliases,
    previewDomain: config.previewDomain,
    linkSecret: key,
  });
  taken.defer(() => closeHttp(app, numbers.shutdownMs / 2));
  await app.listen({ host: config.host, port: config.port });
  await engine.start();
  recovered.resolve();
  const url = urlOf(app, config.host);
  announcement.serving(url);
  log.info({ url, version: VERSION, installation, stateDir }, "serving");
  const owned = taken.move();
  return { url, keyFile, key, driver, close: () => owned.disposeAsync() };
}

function refuseSeenStateDir(stateDir: string): void {
  try {
    checkStateDir(stateDir);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new StartFailure(reason, "Set HOLDFAST_DIR to another directory.", { cause: error });
  }
}

function checkRights(): void {
  if (process.getuid?.() !== 0) {
    throw new StartFailure(
      "Holdfast must run as root: mounts, cgroups and id maps need it. Sandboxes don't get it.",
      "Start it with sudo.",
    );
  }
  try {
    keeperBinaries();
  } catch (error) {
    const fix = "Run 'npm start', which builds it, or 'node packages/keeper/build.mjs'.";
    throw new StartFailure("The keeper is not built.", fix, { cause: error });
  }
}

/** The driver; where it can't be had, what the host lacks. */
async function openDriver(options: OciOptions): Promise<OciMachine> {
  try {
    return await createOciDriver(options);
  } catch (error) {
    const lacking = (await checkHost(options.stateDir)).filter(({ ok, required }) => required && !ok);
    const fixes = lacking.map(({ name, found, fix }) => `${fix} (${name}: ${found})`);
    if (options.runtime) fixes.push("Unset HOLDFAST_RUNTIME, or name a runtime that starts here.");
    const { message, fix } = explain(error);
    throw new StartFailure(message, fixes.join(" ") || fix, { cause: error });
  }
}

/** Lets requests under way finish, for a while. */
async function closeHttp(app: App, withinMs: number): Promise<void> {
  const timer = setTimeout(() => app.server.closeAllConnections(), withinMs);
  await app.close();
  clearTimeout(timer);
}

function urlOf(app: App, host: string): string {
  const address = app.server.address();
  const port = typeof address === "object" && address ? address.port : 0;
  const reachable = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "::1" : host;
  return `http://${reachable.includes(":") ? `[${reachable}]` : reachable}:${port}`;
}

async function runSelfTest(server: RunningServer): Promise<boolean> {
  const { url, key, driver } = server;
  const soon = () => AbortSignal.timeout(10_000);
  return selfTest({
    url,
    key,
    print: (line) => console.log(line),
    keeperPid: async (id) => {
      const seen = (await driver.observe([id as SandboxId], soon())).get(id as SandboxId);
      if (seen?.seen !== "present") throw new Error(`its keeper is ${seen?.seen ?? "unknown"}`);
      return seen.pid;
    },
    remains: async (ids) => {
      const found = (await driver.list(soon())).filter(({ sandboxId }) => ids.includes(sandboxId));
      return found.flatMap(({ sandboxId, things }) => things.map((thing) => `${sandboxId}: ${thing}`));
    },
  });
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { "self-test": { type: "boolean", default: false } } });
  const config = readConfig(process.env, {
    uid: process.getuid?.() ?? 0,
    isTerminal: process.stderr.isTTY === true,
  });
  // Helpers inherit the environment.
  delete process.env.HOLDFAST_WEBHOOK_SECRET;
  const book = new LogBook(config.numbers);
  const log = createLogger({ level: config.logLevel, book });
  endOnBugs(log);
  const server = await startServer(config, log, undefined, book);
  closeOnSignal(() => server.close(), log, config.numbers.shutdownMs);
  if (values["self-test"] && process.env.HOLDFAST_SELF_TEST !== "0") {
    console.log("\nSelf-test");
    if (!(await runSelfTest(server))) {
      console.error("\nThe self-test failed: this host does not keep Holdfast's promises as it is.");
      console.error("Fix: run 'holdfast doctor', which says what is missing and how to get it.");
      await server.close();
      process.exit(1);
    }
  }
  console.log(
    `\nHoldfast is up.\n  URL   ${server.url}\n  key   ${server.keyFile}\n  docs  ${server.url}/docs\n`,
  );
}

if (import.meta.main) {
  main().catch((error: unknown) => {
    const { message, fix } = explain(error);
    console.error(`Holdfast can't start: ${message}\nFix: ${fix}`);
    process.exit(1);
  });
}
