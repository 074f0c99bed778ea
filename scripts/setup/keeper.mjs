import { join } from "node:path";
import { run } from "./command.mjs";
import { SetupError, say } from "./say.mjs";

/** Builds the keeper, unless the build is up to date. Tests also need a build with sanitizers. */
export async function buildKeeper(root, purpose) {
  const variants = purpose === "test" ? [[], ["--sanitize"]] : [[]];
  for (const flags of variants) {
    const build = await run(process.execPath, [join(root, "packages", "keeper", "build.mjs"), ...flags], {
      cwd: root,
    });
    if (!build.ok) throw new SetupError(`the keeper can't be built:\n${build.output}`);
    if (build.output !== "") say(build.output);
  }
}
