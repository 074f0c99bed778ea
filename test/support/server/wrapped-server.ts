import type { Log, Ports } from "@holdfast/engine";
import { type Config, readConfig } from "@holdfast/server";
import { startServer } from "@holdfast/server/main";

const silent: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: (fields, message) => console.error(message, fields),
  child: () => silent,
};

/** The server, built by its own main program, with what its engine meets of the world wrapped. Says how it is configured. */
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
