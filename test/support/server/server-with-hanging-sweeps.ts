/** A server whose cleanup hangs for as long as a file of this name is in its state directory. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Store } from "@holdfast/engine";
import { replacing } from "./replacing.ts";
import { serve } from "./wrapped-server.ts";

const POLL_MS = 50;

const hanging = <S extends Store>(store: S, file: string): S =>
  replacing(store, {
    prunable: async (order) => {
      while (existsSync(file)) await sleep(POLL_MS);
      return store.prunable(order);
    },
  } as Partial<S>);

await serve((ports) => ({
  ...ports,
  store: hanging(ports.store, join(process.env.HOLDFAST_DIR ?? "", "hang-sweeps")),
}));
