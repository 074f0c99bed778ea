import { type Config, readConfig } from "@holdfast/daemon";
import { startServer } from "@holdfast/daemon/main";
import type { Log, Ports } from "@holdfast/engine";

const silent: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: (fields, message) => console.error(message, fields),
  child: () => silent,
};

/** Starts the server of the main program with wrapped ports; returns its configuration. */
export const serve = async (wrap: (ports: Ports) => Ports = (ports) => ports): Promise<Config> => {
  const config = readConfig(process.env, { uid: process.getuid?.() ?? 0, isTerminal: false });
  const server = await startServer(config, silent, wrap);
  process.once("SIGTERM", () => {
    server.close().then(
      () => process.exit(0),
      () => process.exit(1),
    );
  });
  return config;
};
