/**
 * Builds and packs the published package: `node packages/sdk/pack.ts [directory]` prints the tarball's path.
 *
 * In the repository `@holdfast/sdk` resolves to its TypeScript source, so that Node's type stripping, vitest and the
 * compiler use it without a build or a flag. Node does not strip types below node_modules, so the published package
 * contains JavaScript with declarations and its own package.json, written here.
 */
import { execFile } from "node:child_process";
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const here = fileURLToPath(new URL(".", import.meta.url));
const root = join(here, "..", "..");
const DEADLINE = { timeout: 120_000 };

interface Manifest {
  name: string;
  version: string;
  license: string;
}

const published = ({ name, version, license }: Manifest) => ({
  name,
  version,
  description: "The client of Holdfast: sandboxes that never lie, never hang and never leak.",
  license,
  type: "module",
  engines: { node: ">=20" },
  sideEffects: false,
  exports: { ".": { types: "./index.d.ts", default: "./index.js" } },
  types: "./index.d.ts",
  main: "./index.js",
});

/** Packs the published package into `directory` and returns the path of the tarball. */
export async function pack(directory: string): Promise<string> {
  await mkdir(directory, { recursive: true });
  const staging = await mkdtemp(join(tmpdir(), "holdfast-sdk-"));
  try {
    await build(staging);
    const target = ["--silent", "--pack-destination", resolve(directory)];
    const { stdout } = await run("npm", ["pack", ...target], { ...DEADLINE, cwd: staging });
    return resolve(directory, stdout.trim());
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
}

async function build(staging: string): Promise<void> {
  const tsc = join(root, "node_modules", ".bin", "tsc");
  await run(tsc, ["-p", join(here, "tsconfig.build.json"), "--outDir", staging], DEADLINE);
  for (const name of await readdir(staging, { recursive: true })) {
    if (name.endsWith(".d.ts")) await renameImports(join(staging, name));
  }
  const manifest = JSON.parse(await readFile(join(here, "package.json"), "utf8")) as Manifest;
  await writeFile(join(staging, "package.json"), `${JSON.stringify(published(manifest), null, 2)}\n`);
  await copyFile(join(here, "README.md"), join(staging, "README.md"));
  await copyFile(join(root, "LICENSE"), join(staging, "LICENSE")).catch(() => {});
}

/**
 * Renames `./x.ts` to `./x.js` in the imports of declarations. The compiler does this in code but not in declarations,
 * and not every compiler accepts `.ts` there.
 */
async function renameImports(path: string): Promise<void> {
  const text = await readFile(path, "utf8");
  await writeFile(path, text.replace(/(["']\.{1,2}\/[\w./-]+)\.ts(["'])/g, "$1.js$2"));
}

if (import.meta.main) console.log(await pack(resolve(process.argv[2] ?? here)));
