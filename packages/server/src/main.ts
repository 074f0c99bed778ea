/** The one file that knows every part: wires them, listens, recovers, and lets go again. */
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { SandboxId } from "@holdfast/contract";
import { createOciDriver } from "@holdfast/drivers/oci";
import { createEngine, type Driver, type Log, systemClock, systemIds } from "@holdfast/engine";
import { holdStateDirectory, openStore } from "@holdfast/store";
import { ensureAdminKey } from "./admin-key.ts";
import { announce } from "./announcement.ts";
import { type Config, readConfig } from "./config.ts";
import type { App } from "./context.ts";
import { buildHttp } from "./http.ts";
import { createLogger } from "./logger.ts";
import { Metrics } from "./metrics.ts";
import { selfTest } from "./selftest.ts";
import { explain } from "./start-failure.ts";
import { VERSION } from "./version.ts";

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
 * server is told so before it touches a sandbox; until recovery is done calls are held.
 */
export async function startServer(config: Config, log: Log): Promise<RunningServer> {
  await using taken = new AsyncDisposableStack();
  const hold = holdStateDirectory(config.stateDir);
  taken.defer(() => hold.release());
  const store = await openStore({
    path: join(config.stateDir, "holdfast.db"),
    onUnreadable: (error) => log.error({ err: error }, "a record can't be read; it is kept and left out"),
  });
  taken.defer(() => store.close());
  const { stateDir, numbers, runtime } = config;
  const { installation } = store;
  const { driver, images } = await createOciDriver({
    stateDir,
    installation,
    clock: systemClock,
    log: log.child({ part: "oci" }),
    ...(runtime === undefined ? {} : { runtime }),
  });
  taken.defer(() => driver.close());

  const metrics = new Metrics();
  const ports = {
    installation,
    clock: systemClock,
    ids: systemIds,
    log: log.child({ part: "engine" }),
    store: metrics.watchStore(store),
    driver: metrics.watchDriver(driver),
    images,
  };
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
    hostPaths: [stateDir, REPOSITORY, "/sys/fs/cgroup"],
  });
  taken.defer(() => closeHttp(app, numbers.shutdownMs / 2));
  await app.listen({ host: config.host, port: config.port });
  await engine.start();
  recovered.resolve();
  const url = urlOf(app, config.host);
  const announcement = announce({ stateDir, repository: REPOSITORY, url });
  process.once("exit", () => announcement.withdraw());
  taken.defer(() => announcement.withdraw());
  log.info({ url, version: VERSION, installation, stateDir }, "serving");
  const owned = taken.move();
  return { url, keyFile, key, driver, close: () => owned.disposeAsync() };
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

/** The first signal lets go in order, within a bound; the second one ends the process at once. */
function closeOnSignal(server: RunningServer, log: Log, shutdownMs: number): void {
  let closing = false;
  const onSignal = (signal: string) => {
    if (closing) process.exit(1);
    closing = true;
    log.info({ signal }, "shutting down; sandboxes go on");
    setTimeout(() => {
      log.error({ shutdownMs }, "shutdown took too long and was cut; the next start recovers");
      process.exit(1);
    }, shutdownMs).unref();
    server.close().then(
      () => process.exit(0),
      (error) => {
        log.error({ err: error }, "shutdown failed; the next start recovers");
        process.exit(1);
      },
    );
  };
  process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
}

function dieLoudly(log: Log): void {
  process.on("uncaughtException", (error, origin) => {
    log.error({ err: error, origin }, "an error that nothing caught; the next start recovers");
    process.exit(1);
  });
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { "self-test": { type: "boolean", default: false } } });
  const config = readConfig(process.env, process.getuid?.() ?? 0);
  const log = createLogger({ level: config.logLevel });
  dieLoudly(log);
  const server = await startServer(config, log);
  closeOnSignal(server, log, config.numbers.shutdownMs);
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
