import { createHash } from "node:crypto";
import { realpathSync } from "node:fs";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { SetupError, say } from "./say.mjs";

const WAIT_MS = 20 * 60_000;
const POLL_MS = 200;

/** One set-up of a checkout at a time. */
export const holdSetup = (root) => hold("setup", root, "another set-up of this checkout");

/**
 * Waits until nobody else does the same to this directory, and gives what lets go of it. The lock is a name in the
 * kernel's own space of socket addresses, which ends with the process that took it, however that ends: nothing on disk
 * has to be judged stale.
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

/** The held name, or null where someone else has it. */
function take(name) {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", (error) => (error.code === "EADDRINUSE" ? resolve(null) : reject(error)));
    server.listen({ path: `\0${name}` }, () => resolve(server.unref()));
  });
}
