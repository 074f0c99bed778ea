/** The composition root: connects all components, listens, recovers, and releases everything on shutdown. */
import { realpathSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { InstallationId, SandboxId, Stats } from "@holdfast/contract";
import {
  checkHost,
  checkStateDir,
  createOciDriver,
  freezeAll,
  type OciMachine,
  type OciOptions,
} from "@holdfast/drivers/oci";
import { createEngine, type Driver, type Log, type Ports, systemClock, systemIds } from "@holdfast/engine";
import { keeperBinaries } from "@holdfast/keeper";
import type { App } from "@holdfast/server";
import {
  buildHttp,
  createLogger,
  createScrub,
  createWebhook,
  Metrics,
  ServerLog,
  VERSION,
} from "@holdfast/server";
import { holdStateDirectory, prepareStore } from "@holdfast/store";
import { ADAPTERS } from "./adapters.ts";
import { type Addresses, addressesOf, exposureWarning } from "./addresses.ts";
import { ensureAdminKey } from "./admin-key.ts";
import { announce } from "./announcement.ts";
import { BackupJob } from "./backup/backup-job.ts";
import { holdIdentity, recordPlace, requireNoOriginal, requireOwnPlace } from "./backup/copied-state-dir.ts";
import { Transfers } from "./backup/transfers.ts";
import { type Config, readConfig } from "./config.ts";
import { STOPPING, stoppedText, upText } from "./console-text.ts";
import { requireFreePort } from "./free-port.ts";
import { createRunKey } from "./run-key.ts";
import { selfTest } from "./selftest.ts";
import { findSelfTestLeftovers } from "./selftest-leftovers.ts";
import { closeOnSignal, endOnBugs, exitOnEarlySignal } from "./signals.ts";
import { explain, StartFailure } from "./start-failure.ts";
import { makeStateDir } from "./state-dir.ts";

const REPOSITORY = join(import.meta.dirname, "..", "..", "..");

interface RunningServer {
  url: string;
  addresses: Addresses;
  keyFile: string;
  key: string;
  driver: Driver;
  /** The number of sandboxes in each status. */
  sandboxes(): Promise<Stats["sandboxes"]>;
  backups: BackupJob;
  /** Stops the server. Sandboxes keep running; the next server finds them. */
  close(): Promise<void>;
}

/**
 * Starts a server. If the start fails, releases everything it acquired, and throws. The port is bound before recovery,
 * so that a second server fails before it touches a sandbox. Calls that arrive during recovery wait for its end. Tests
 * use `wrap` to inject faults between the engine and its ports.
 */
export async function startServer(
  config: Config,
  log: Log,
  wrap: (ports: Ports) => Ports = (ports) => ports,
  serverLog?: ServerLog,
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
  serverLog?.open(join(config.stateDir, "logs"));
  taken.defer(() => serverLog?.close());
  requireOwnPlace(config.stateDir);
  const prepared = await prepareStore({
    path: join(config.stateDir, "holdfast.db"),
    onUnreadable: (error) => log.error({ err: error }, "skipping unreadable record (kept in the database)"),
    onUpgrade: ({ from, to, copy }) =>
      log.warn({ from, to, copy }, "upgraded the database; to go back to the earlier version, use the copy"),
    onFull: () => {
      log.error({}, "disk full: freezing sandboxes until the database is open");
      return freezeAll(config.stateDir, systemClock);
    },
  });
  taken.defer(() => prepared.close());
  const { stateDir, numbers, runtime } = config;
  const { installation } = prepared;
  requireNoOriginal(stateDir, installation);
  const identity = await holdIdentity(installation);
  taken.defer(() => identity.release());
  const { driver } = await openDriver({
    stateDir,
    installation,
    clock: systemClock,
    log: log.child({ part: "oci" }),
    heartbeatMs: numbers.heartbeatMs,
    deadMs: numbers.linkDeadMs,
    jailLimits: {
      atOnce: numbers.jailsAtOnce,
      waiting: numbers.jailsWaiting,
      waitMs: numbers.fileCallWaitMs,
    },
    ...(runtime === undefined ? {} : { runtime }),
  });
  taken.defer(() => driver.close());
  notePlace(stateDir, installation, log);
  await requireFreePort(config);
  // The schema is upgraded only after everything else that a start needs has been prepared. If the start fails before
  // that, the earlier version of Holdfast can still open the database.
  const store = await prepared.open();
  taken.defer(() => store.close());

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
    expectedLabels: config.expectedLabels,
    notifier: config.webhook === undefined ? null : createWebhook(config.webhook, { installation, scrub }),
  });
  const engine = createEngine(ports, numbers);
  taken.defer(() => engine.stop());
  const backups = new BackupJob({
    ...{ engine, store, stateDir, version: VERSION, clock: systemClock },
    log: log.child({ part: "backup" }),
  });
  taken.defer(() => backups.stop());
  const transfers = new Transfers({
    ...{ engine, store, stateDir, driver, version: VERSION, clock: systemClock },
    log: log.child({ part: "transfers" }),
  });
  await transfers.clear();
  const { file: keyFile, secret: key, isNew } = await ensureAdminKey(stateDir, store.keys);
  if (isNew) log.info({ file: keyFile }, "created a new admin key");
  const runKey = createRunKey(store.keys, key);

  const recovered = Promise.withResolvers<void>();
  const app = buildHttp({
    engine,
    adapters: ADAPTERS,
    keys: runKey.keys,
    log: log.child({ part: "http" }),
    numbers,
    version: VERSION,
    installation,
    metrics,
    started: recovered.promise,
    hostPaths,
    logs: serverLog,
    backups,
    transfers,
    imageAliases: config.imageAliases,
    previewDomain: config.previewDomain,
    linkSecret: key,
  });
  taken.defer(() => closeHttp(app, numbers.shutdownMs / 2));
  await app.listen({ host: config.host, port: config.port });
  const addresses = addressesOf(config.host, portOf(app));
  const url = addresses.local;
  announcement.listening(url, runKey.secret, addresses.remote);
  taken.defer(() => announcement.closing());
  await engine.start();
  const removeLeftovers = await findSelfTestLeftovers(engine, log);
  recovered.resolve();
  const closing = new AbortController();
  const removal = removeLeftovers(closing.signal);
  taken.defer(() => {
    closing.abort();
    return removal;
  });
  log.info({ url, remote: addresses.remote, version: VERSION, installation, stateDir }, "serving");
  const warning = exposureWarning(config.host);
  if (warning !== null) log.warn({ urls: addresses.remote }, warning);
  const owned = taken.move();
  const sandboxes = async () => (await engine.stats()).sandboxes;
  return { url, addresses, keyFile, key, driver, backups, sandboxes, close: () => owned.disposeAsync() };
}

/**
 * Records the place of the state directory. A failure is only logged, because a full disk must not prevent the start.
 */
function notePlace(stateDir: string, installation: InstallationId, log: Log): void {
  try {
    recordPlace(stateDir, installation);
  } catch (error) {
    log.warn({ err: error }, "failed to note the location of the state directory");
  }
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
      "Holdfast must run as root, for mounts, cgroups and id maps. Sandboxes do not run as root on the host.",
      "Start it with sudo.",
    );
  }
  try {
    keeperBinaries();
  } catch (error) {
    const fix = "Run 'npm start', which builds the keeper, or 'node packages/keeper/build.mjs'.";
    throw new StartFailure("The keeper is not built.", fix, { cause: error });
  }
}

/** Opens the driver. If that fails, throws an error that lists what the host lacks. */
async function openDriver(options: OciOptions): Promise<OciMachine> {
  try {
    return await createOciDriver(options);
  } catch (error) {
    const lacking = (await checkHost(options.stateDir)).filter(({ ok, required }) => required && !ok);
    const fixes = lacking.map(({ name, found, fix }) => `${fix} (${name}: ${found})`);
    if (options.runtime)
      fixes.push("Unset HOLDFAST_RUNTIME, or set it to a runtime that works on this host.");
    const { message, fix } = explain(error);
    throw new StartFailure(message, fixes.join(" ") || fix, { cause: error });
  }
}

/** Lets requests in progress finish, up to a time limit. */
async function closeHttp(app: App, withinMs: number): Promise<void> {
  const timer = setTimeout(() => app.server.closeAllConnections(), withinMs);
  await app.close();
  clearTimeout(timer);
}

function portOf(app: App): number {
  const address = app.server.address();
  return typeof address === "object" && address ? address.port : 0;
}

/** Runs the self-test. Calls `broken` with the id of a sandbox before the self-test breaks that sandbox on purpose. */
async function runSelfTest(
  server: RunningServer,
  signal: AbortSignal,
  broken: (id: string) => void,
): Promise<boolean> {
  const { url, key, driver } = server;
  const soon = () => AbortSignal.timeout(10_000);
  return selfTest({
    url,
    key,
    signal,
    print: (line) => console.log(line),
    keeperPid: async (id) => {
      const seen = (await driver.observe([id as SandboxId], soon())).get(id as SandboxId);
      broken(id);
      if (seen?.seen !== "present") throw new Error(`the keeper is ${seen?.seen ?? "unknown"}`);
      const { pid } = driver.describe(seen.identity);
      if (pid === null) throw new Error("the keeper does not run on this host");
      return pid;
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
  // The secret is removed from the environment, because child processes inherit it.
  delete process.env.HOLDFAST_WEBHOOK_SECRET;
  const serverLog = new ServerLog(config.numbers);
  const unmentioned = new Set<string>();
  const { logLevel: level, logFormat: format } = config;
  const log = createLogger({ level, format, unmentioned, serverLog });
  endOnBugs(log);
  if (format === "text") console.log("Starting Holdfast …");
  const startedUp = exitOnEarlySignal();
  const server = await startServer(config, log, undefined, serverLog);
  startedUp();
  const interrupt = new AbortController();
  let selfTesting: Promise<boolean> = Promise.resolve(true);
  const isStopping = closeOnSignal({
    log,
    shutdownMs: config.numbers.shutdownMs,
    onStopping: () => console.log(STOPPING),
    close: async () => {
      // Interrupts the self-test and waits until it has deleted its sandboxes, so that they are not counted as running.
      interrupt.abort();
      await selfTesting.catch(() => false);
      const sandboxes = await server.sandboxes().catch(() => null);
      await server.close();
      return stoppedText(sandboxes);
    },
  });
  if (values["self-test"] && process.env.HOLDFAST_SELF_TEST !== "0") {
    console.log("\nSelf-test");
    selfTesting = runSelfTest(server, interrupt.signal, (id) => unmentioned.add(id));
    const passed = await selfTesting;
    // A shutdown has interrupted the self-test, and will end the process.
    if (isStopping()) return;
    if (!passed) {
      console.error("\nThe self-test failed: Holdfast cannot keep its promises on this host as configured.");
      console.error("Fix: run 'holdfast doctor', which shows what is missing and how to fix it.");
      await server.close();
      process.exit(1);
    }
  }
  console.log(upText({ ...server, host: config.host }));
}

if (import.meta.main) {
  main().catch((error: unknown) => {
    const { message, fix } = explain(error);
    console.error(`Holdfast can't start: ${message}\nFix: ${fix}`);
    process.exit(1);
  });
}
