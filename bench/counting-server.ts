/**
 * Runs the real server and counts its database queries. On SIGUSR2, writes the count to the file `queries` in the state
 * directory.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync, StatementSync } from "node:sqlite";
import { serve } from "../test/support/server/wrapped-server.ts";

let queries = 0;

function counted<Target extends object>(target: Target, names: readonly (keyof Target)[]): void {
  for (const name of names) {
    const method = target[name] as (...given: unknown[]) => unknown;
    target[name] = function (this: unknown, ...given: unknown[]) {
      queries += 1;
      return method.apply(this, given);
    } as Target[typeof name];
  }
}
counted(StatementSync.prototype, ["run", "get", "all", "iterate"]);
counted(DatabaseSync.prototype, ["exec"]);

const { stateDir } = await serve();
process.on("SIGUSR2", () => writeFileSync(join(stateDir, "queries"), String(queries)));
