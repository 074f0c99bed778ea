/** The server, under which what comes out of a checkpoint is broken before anybody can use it. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { Driver, Instance, Ports } from "@holdfast/engine";
import { replacing } from "./replacing.ts";
import { serve } from "./wrapped-server.ts";

export type Breakage = "root" | "keeper" | "none";

const breakage = process.env.HOLDFAST_BREAK_WAKES as Breakage | undefined;
const { HOLDFAST_DIR: dir = "" } = process.env;

/** What was restored and is about to run for the first time. */
const fresh = new Map<string, Instance>();

/** A root is taken before anything runs; a keeper is stopped as soon as it does, since what wakes it lets it go on. */
const breaking = (driver: Driver): Driver =>
  replacing(driver, {
    restore: async (...given) => {
      const instance = await driver.restore(...given);
      const { sandboxId } = instance;
      if (breakage === "root") execFileSync("umount", ["-l", join(dir, "sandboxes", sandboxId, "root")]);
      fresh.set(sandboxId, instance);
      return instance;
    },
    thaw: async (id, signal) => {
      await driver.thaw(id, signal);
      const instance = fresh.get(id);
      fresh.delete(id);
      if (breakage === "keeper" && instance !== undefined) process.kill(instance.pid, "SIGSTOP");
    },
  });

await serve((ports: Ports) => ({ ...ports, driver: breaking(ports.driver) }));
