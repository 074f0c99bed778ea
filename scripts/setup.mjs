/**
 * Makes a checkout ready: `node scripts/setup.mjs start|test|check|criu`. Runs before every such command, and on Node 20,
 * because nothing is installed yet. Says nothing where there is nothing to do, one line per step otherwise.
 */
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { provideCriu } from "./setup/criu.mjs";
import { installDependencies } from "./setup/dependencies.mjs";
import { installHostPackages } from "./setup/host-packages.mjs";
import { buildKeeper } from "./setup/keeper.mjs";
import { holdSetup } from "./setup/lock.mjs";
import { SetupError, say } from "./setup/say.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** What each command needs, in the order in which it is needed. */
const STEPS = {
  check: [installDependencies],
  criu: [installDependencies, installHostPackages, provideCriu],
  start: [installDependencies, installHostPackages, buildKeeper, provideCriu],
  test: [installDependencies, installHostPackages, buildKeeper, provideCriu],
};

try {
  const purpose = process.argv[2] ?? "start";
  const steps = STEPS[purpose];
  if (steps === undefined) throw new SetupError(`unknown purpose "${purpose}": start, test, check or criu`);
  const release = await holdSetup(root);
  for (const step of steps) await step(root, purpose);
  release();
} catch (error) {
  if (!(error instanceof SetupError)) throw error;
  say(error.message);
  process.exitCode = 1;
}
