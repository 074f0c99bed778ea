import { createHash } from "node:crypto";
import { realpathSync } from "node:fs";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { SetupError, say } from "./say.mjs";

const WAIT_MS = 20 * 60_000;
const POLL_MS = 200;

/** Locks a checkout for its set-up, so that only one set-up runs in it at a time. */
export const holdSetup = (root) => hold("setup", root, "another set-up of this checkout");

/**
 * Waits for the lock on a directory, and returns a function that releases it. The lock is an abstract Unix socket
 * address, which the kernel frees when the process ends for any reason, so there is no lock file that could become
 * stale.
 */
export async function hold(what, directory, holder) {
  const key = createHash("sha256").update(realpathSync(directory)).digest("hex").slice(0, 32);
  const name = `holdfast-${what}-${key}`;
  const deadline = Date.now() + WAIT_MS;
  let server = await take(name);
  if (server === null) say(`waiting for ${holder}`);
  while (server === null) {
    if (Date.now() > deadline) throw new SetupError(`${holder} has not ended in 20 minutes`);
    await sleep(POLL_MS);
    server = await take(name);
  }
  return () => server.close();
}

/** Binds the address and returns the server, or null if another process has it. */
function take(name) {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", (error) => (error.code === "EADDRINUSE" ? resolve(null) : reject(error)));
    server.listen({ path: `\0${name}` }, () => resolve(server.unref()));
  });
}
