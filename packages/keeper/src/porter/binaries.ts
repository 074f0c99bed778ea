import { accessSync, constants, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

export interface KeeperBinaries {
  keeper: string;
  porter: string;
  /** The version of both binaries, which are built together. */
  version: string;
}

const inBuild = (name: string) => fileURLToPath(new URL(`../../build/${name}`, import.meta.url));

/** Returns the paths of this package's C programs. If they are not built, the error says how to build them. */
export function keeperBinaries(): KeeperBinaries {
  const keeper = inBuild("keeper");
  const porter = inBuild("porter");
  try {
    accessSync(keeper, constants.X_OK);
    accessSync(porter, constants.X_OK);
    return { keeper, porter, version: readFileSync(inBuild("version"), "utf8").trim() };
  } catch (error) {
    throw new Error("keeper and porter are not built: run `node packages/keeper/build.mjs`", {
      cause: error,
    });
  }
}
