import { hash, timingSafeEqual } from "node:crypto";
import { randomText } from "@holdfast/contract";
import type { Keys } from "@holdfast/server";

const PREFIX = "hf_run_";
const RANDOM_CHARACTERS = 40;

interface RunKey {
  /** The key that this process announces to the clients on its machine. */
  secret: string;
  /** The server's keys, extended so that the run key stands for the admin key. */
  keys: Keys;
}

/**
 * Creates the run key, which is valid until this process ends. Clients that find the server through its state directory
 * send the run key and never the admin key. If another program listens at the address of an ended server, it only
 * receives a key that no server accepts any more. Calls with the run key count as calls with the admin key, so that
 * idempotency keys, and the resources counted for a key, survive a restart of the server.
 */
export function createRunKey(keys: Keys, adminSecret: string): RunKey {
  const secret = PREFIX + randomText(RANDOM_CHARACTERS);
  const digest = digestOf(secret);
  return {
    secret,
    keys: {
      findKey: (given) => keys.findKey(given),
      standsFor: (given) => (timingSafeEqual(digestOf(given), digest) ? adminSecret : given),
    },
  };
}

const digestOf = (secret: string): Buffer => hash("sha256", secret, "buffer");
