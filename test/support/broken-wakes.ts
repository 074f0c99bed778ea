/** The server, under which what comes out of a checkpoint is broken before anybody can use it. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { Driver, Instance, Ports } from "@holdfast/engine";
import { replacing } from "./replacing.ts";
import { serve } from "./wrapped-server.ts";

export type Breakage = "root" | "keeper" | "none";

const breakage = process.env.HOLDFAST_BREAK_WAKES as Breakage | undefined;
const { HOLDFAST_DIR: dir = "" } = process.env;

const BREAK: Record<Breakage, (instance: Instance) => void> = {
  root: ({ sandboxId }) => {
    execFileSync("umount", ["-l", join(dir, "sandboxes", sandboxId, "root")]);
  },
  keeper: ({ pid }) => {
    process.kill(pid, "SIGSTOP");
  },
  none: () => undefined,
};

const breaking = (driver: Driver): Driver =>
  replacing(driver, {
    restore: async (...given) => {
      const instance = await driver.restore(...given);
      BREAK[breakage ?? "none"](instance);
      return instance;
    },
  });

await serve((ports: Ports) => ({ ...ports, driver: breaking(ports.driver) }));
