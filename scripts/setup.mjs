/**
 * Prepares a checkout: `node scripts/setup.mjs start|test|check|criu`. npm runs it before each of these commands. It
 * runs on Node 20, because no newer Node may be installed yet. It prints one line for each step that has something to
 * do.
 */
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { endCommands } from "./setup/command.mjs";
import { provideCriu } from "./setup/criu.mjs";
import { installDependencies } from "./setup/dependencies.mjs";
import { installHostPackages } from "./setup/host-packages.mjs";
import { buildKeeper } from "./setup/keeper.mjs";
import { holdSetup } from "./setup/lock.mjs";
import { SetupError, say } from "./setup/say.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** Steps of each command, in order. */
const STEPS = {
  check: [installDependencies],
  criu: [installDependencies, installHostPackages, provideCriu],
  start: [installDependencies, installHostPackages, buildKeeper, provideCriu],
  test: [installDependencies, installHostPackages, buildKeeper, provideCriu],
};

/** The exit codes of a shell for a program that was ended by these signals. */
const EXIT_CODES = { SIGINT: 130, SIGTERM: 143 };
for (const [signal, code] of Object.entries(EXIT_CODES)) {
  process.once(signal, async () => {
    await endCommands();
    process.stderr.write("\nSet-up stopped; 'npm start' continues it.\n");
    process.exit(code);
  });
}

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
