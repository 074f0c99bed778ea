/** A server on which every restored instance is broken before it can be used. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { Driver, Instance, Ports } from "@holdfast/engine";
import { replacingCapability } from "./replacing.ts";
import { serve } from "./wrapped-server.ts";

type Breakage = "root" | "keeper" | "none";

const breakage = process.env.HOLDFAST_BREAK_WAKES as Breakage | undefined;
const { HOLDFAST_DIR: dir = "" } = process.env;

/** The restored instance before its first thaw. */
const fresh = new Map<string, Instance>();

/** Unmounts the root of a restored instance before anything in it runs. */
const breakingRestore = (driver: Driver): Driver =>
  replacingCapability(driver, "standby", (standby) => ({
    restore: async (...given) => {
      const instance = await standby.restore(...given);
      const { sandboxId } = instance;
      if (breakage === "root") execFileSync("umount", ["-l", join(dir, "sandboxes", sandboxId, "root")]);
      fresh.set(sandboxId, instance);
      return instance;
    },
  }));

/** Stops the keeper of a restored instance right after the thaw, because the thaw would continue it. */
const breakingThaw = (driver: Driver): Driver =>
  replacingCapability(driver, "freezer", (freezer) => ({
    thaw: async (id, signal) => {
      await freezer.thaw(id, signal);
      const instance = fresh.get(id);
      fresh.delete(id);
      const pid = instance === undefined ? null : driver.describe(instance.identity).pid;
      if (breakage === "keeper" && pid !== null) process.kill(pid, "SIGSTOP");
    },
  }));

await serve((ports: Ports) => ({ ...ports, driver: breakingThaw(breakingRestore(ports.driver)) }));
